"""From an empty database to a working instance: migrate, init, doctor, policy, keys, invites, audit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import asyncpg
import pytest

from protocol.ids import to_text
from runtime.keyring import KEYRING_FILE, Keyring
from tests.support.blocking import BlockingRunner
from tests.support.command import Finished, run

Settings = dict[str, str]


@pytest.fixture
def settings(empty_database: str, redis_url: str, tmp_path: Path) -> Settings:
    return {
        "MAILBOXD_POSTGRES_DSN": empty_database,
        "MAILBOXD_REDIS_URL": redis_url,
        "MAILBOXD_SECRETS_DIR": str(tmp_path / "secrets"),
    }


@pytest.fixture
def instance(uninitialised_database: str, redis_url: str, tmp_path: Path) -> Settings:
    """Settings of an initialised instance."""
    settings = {
        "MAILBOXD_POSTGRES_DSN": uninitialised_database,
        "MAILBOXD_REDIS_URL": redis_url,
        "MAILBOXD_SECRETS_DIR": str(tmp_path / "secrets"),
    }
    assert run("init", settings=settings).code == 0
    return settings


def verdicts(doctor: Finished) -> dict[str, str]:
    return {finding["check"]: finding["verdict"] for finding in doctor.json["findings"]}


def test_an_empty_database_becomes_an_instance_in_two_commands(settings: Settings) -> None:
    before = run("migrate", "status", "--json", settings=settings)
    assert (before.code, before.json["current"]) == (1, False)
    too_early = run("init", settings=settings)
    assert (too_early.code, too_early.err) == (
        1,
        "mailboxd: The database does not have this release's schema: run `mailboxd migrate apply`.\n",
    )
    applied = run("migrate", "apply", "--json", settings=settings)
    assert (applied.code, applied.json["applied"][0]) == (0, "0001")
    assert run("migrate", "apply", "--json", settings=settings).json == {"applied": []}
    assert run("migrate", "status", "--json", settings=settings).json["current"] is True
    assert "run mailboxd init" in run("admin", "status", settings=settings).err.replace("`", "")

    made = run("init", "--registration", "invite", "--json", settings=settings)
    assert made.code == 0
    assert (made.json["instance_created"], made.json["keyring_created"]) == (True, True)
    again = run("init", "--registration", "open", "--json", settings=settings)
    assert (again.json["instance_created"], again.json["keyring_created"]) == (False, False)
    assert again.json["instance_id"] == made.json["instance_id"]
    policy = run("admin", "policy", "show", "--json", settings=settings)
    assert policy.json["registration"] == "invite", "a second init changes nothing"
    assert run("admin", "status", "--json", settings=settings).json["instance_id"] == made.json["instance_id"]


def test_a_schema_rolls_back_and_comes_again(settings: Settings) -> None:
    applied = run("migrate", "apply", "--json", settings=settings).json["applied"]
    assert run("migrate", "rollback", settings=settings).code == 1
    undone = run("migrate", "rollback", "--to", "none", "--json", settings=settings)
    assert undone.json["rolled_back"] == applied[::-1]
    assert run("migrate", "apply", "--json", settings=settings).json["applied"] == applied


def test_the_doctor_says_what_is_missing_until_nothing_is(settings: Settings) -> None:
    first = run("doctor", "--json", settings=settings)
    assert (first.code, first.json["healthy"]) == (1, False)
    assert verdicts(first)["postgresql"] == verdicts(first)["redis"] == "ok"
    assert (verdicts(first)["schema"], verdicts(first)["instance"], verdicts(first)["keyring"]) == ("failed",) * 3
    run("migrate", "apply", settings=settings)
    run("init", settings=settings)
    last = verdicts(run("doctor", "--json", settings=settings))
    assert (last["schema"], last["instance"], last["keyring"]) == ("ok", "ok", "ok")


def test_the_doctor_names_services_that_do_not_answer(tmp_path: Path) -> None:
    found = run(
        "doctor",
        settings={
            "MAILBOXD_POSTGRES_DSN": "postgresql://name:hidden-word@127.0.0.1:1/none",
            "MAILBOXD_REDIS_URL": "redis://:hidden-word@127.0.0.1:1/0",
            "MAILBOXD_SECRETS_DIR": str(tmp_path),
        },
    )
    assert found.code == 1
    assert found.out.count("cannot be reached") == 2
    assert "hidden-word" not in found.out + found.err
    assert "Traceback" not in found.err


def test_another_keyring_than_the_instances_is_never_taken(instance: Settings, tmp_path: Path) -> None:
    lost = run("init", settings={**instance, "MAILBOXD_SECRETS_DIR": str(tmp_path / "elsewhere")})
    assert lost.code == 1
    assert "restore it from its backup" in lost.err
    assert not (tmp_path / "elsewhere" / KEYRING_FILE).exists(), "no new keyring takes the place of a lost one"

    (tmp_path / "other").mkdir()
    foreign = Keyring.generate(0)
    written = tmp_path / "other" / KEYRING_FILE
    document = json.loads((tmp_path / "secrets" / KEYRING_FILE).read_text())
    document["token"]["keys"][0]["id"] = foreign.token_signing[0]
    document["token"]["current"] = foreign.token_signing[0]
    written.write_text(json.dumps(document))
    written.chmod(0o600)
    refused = run("init", settings={**instance, "MAILBOXD_SECRETS_DIR": str(tmp_path / "other")})
    assert (refused.code, "another keyring" in refused.err) == (1, True)


def test_policy_changes_are_whole_versioned_and_audited(instance: Settings) -> None:
    changed = run(
        "admin", "policy", "set", "pending_entries_max=7", "registration=closed", "ttl_s_min=5", "--json",
        settings=instance,
    )  # fmt: skip
    assert changed.code == 0
    assert (changed.json["version"], changed.json["pending_entries_max"]) == (2, 7)

    refused = run(
        "admin", "policy", "set", "pending_entries_max=0", "ttl_s_min=86400", "ttl_s_default=60", "bogus=1", "word",
        settings=instance,
    )  # fmt: skip
    assert refused.code == 78
    assert refused.err.count("\n") == len(refused.err.splitlines()) == 4
    assert all(name in refused.err for name in ("pending_entries_max", "ttl_s_min=86400 is above", "bogus", "word"))

    now = run("admin", "policy", "show", "--json", settings=instance).json
    assert (now["version"], now["pending_entries_max"], now["ttl_s_min"]) == (2, 7, 5)
    same = run("admin", "policy", "set", "pending_entries_max=7", "--json", settings=instance)
    assert same.json["version"] == 2, "what changes nothing is no new version"

    (event,) = run("admin", "audit", "list", "--type", "policy.changed", "--json", settings=instance).json["events"]
    assert event["detail"] == {"settings": ["pending_entries_max", "ttl_s_min"]}
    assert event["policy_version"] == 2


def test_invites_are_shown_once_and_revoked_by_their_tag(instance: Settings) -> None:
    made = run("admin", "invites", "create", "--lifetime-s", "3600", "--json", settings=instance).json
    listed = run("admin", "invites", "list", "--json", settings=instance)
    assert [invite["status"] for invite in listed.json["invites"]] == ["open"]
    assert made["invite"] not in listed.out
    assert run("admin", "invites", "revoke", made["tag"], settings=instance).code == 0
    assert run("admin", "invites", "revoke", made["tag"], settings=instance).code == 1
    (invite,) = run("admin", "invites", "list", "--json", settings=instance).json["invites"]
    assert invite["status"] == "revoked"


def test_an_identity_is_disabled_until_it_is_enabled_again(instance: Settings, blocking: BlockingRunner) -> None:
    identity = os.urandom(16)

    async def insert() -> None:
        connection = await asyncpg.connect(instance["MAILBOXD_POSTGRES_DSN"])
        await connection.execute(
            "INSERT INTO identities (identity_id, identity_public_bundle) VALUES ($1::text::uuid, 'bundle')",
            identity.hex(),
        )
        await connection.close()

    blocking.run(insert())
    name = to_text(identity)
    for command, status in (("disable", "disabled"), ("enable", "active")):
        done = run("admin", "identities", command, "--json", name, settings=instance)
        assert done.json == {"identity_id": name, "status": status, "changed": True}
    again = run("admin", "identities", "enable", name, settings=instance)
    assert (again.code, again.out) == (0, "the identity is active already\n")
    unknown = run("admin", "identities", "disable", to_text(os.urandom(16)), settings=instance)
    assert (unknown.code, "there is no identity" in unknown.err) == (1, True)


def test_keys_rotate_with_an_overlap_that_cannot_be_cut_short_by_mistake(instance: Settings) -> None:
    secrets_dir = Path(instance["MAILBOXD_SECRETS_DIR"])
    first = Keyring.load(secrets_dir)
    staged = run("admin", "keys", "stage", "cursor", settings=instance)
    assert (staged.code, "restart all processes" in staged.err) == (0, True)
    rotated = run("admin", "keys", "rotate", "cursor", "--json", settings=instance)
    roles = {key["key_id"]: key["role"] for key in rotated.json["keys"] if key["purpose"] == "cursor"}
    assert roles == {"1": "old", "2": "current"}
    assert "do not know the key" in rotated.err  # those that still run from before it was staged
    assert Keyring.load(secrets_dir).cursor_ring[1][1] == first.cursor_ring[1][1]

    early = run("admin", "keys", "retire", "cursor", "1", settings=instance)
    assert (early.code, "--force" in early.err) == (1, True)
    assert run("admin", "keys", "retire", "cursor", "2", "--force", settings=instance).code == 78, "in use"
    assert run("admin", "keys", "retire", "cursor", "1", "--force", settings=instance).code == 0
    assert list(Keyring.load(secrets_dir).cursor_ring[1]) == [2]
    assert run("admin", "keys", "rotate", "nothing", settings=instance).code == 1


def test_the_public_half_of_a_new_signing_key_is_published(instance: Settings) -> None:
    old, _ = Keyring.load(Path(instance["MAILBOXD_SECRETS_DIR"])).token_signing
    unstaged = run("admin", "keys", "rotate", "token", settings=instance)
    assert (unstaged.code, "no key was staged" in unstaged.err) == (0, True)
    assert verdicts(run("doctor", "--json", settings=instance))["instance"] == "ok"
    assert run("admin", "keys", "retire", "token", old, "--force", settings=instance).code == 0
    assert verdicts(run("doctor", "--json", settings=instance))["instance"] == "ok"
    listed = run("admin", "keys", "list", settings=instance)
    secrets = json.loads((Path(instance["MAILBOXD_SECRETS_DIR"]) / KEYRING_FILE).read_text())
    assert all(
        key["secret"] not in listed.out for ring in secrets.values() if isinstance(ring, dict) for key in ring["keys"]
    )


def test_wrong_settings_are_all_named_with_the_exit_code_for_configuration(tmp_path: Path) -> None:
    file = tmp_path / "mailboxd.toml"
    file.write_text('heartbeat_s = 1\nlisten = "nowhere"\nbogus = true\n')
    shown = run("config", "--config", str(file), settings={"MAILBOXD_SWEEP": "3"})
    assert shown.code == 78
    for name in ("HEARTBEAT_S", "LISTEN", "bogus", "MAILBOXD_SWEEP", "POSTGRES_DSN", "REDIS_URL"):
        assert name in shown.err, name
    assert "Traceback" not in shown.err


def test_the_effective_settings_mask_their_secrets(instance: Settings) -> None:
    shown = run("config", "--json", settings=instance)
    assert set(shown.json) == {"gateway", "worker"}
    password = instance["MAILBOXD_POSTGRES_DSN"].partition("@")[0].rpartition(":")[2]
    assert password
    assert password not in shown.out


@pytest.mark.parametrize(
    "command", [(), ("up",), ("gateway",), ("admin",), ("admin", "policy", "set"), ("migrate", "apply")]
)
def test_every_command_explains_itself(command: tuple[str, ...]) -> None:
    shown = run(*command, "--help")
    assert (shown.code, shown.err) == (0, "")
    assert "Usage:" in shown.out


def test_an_unknown_command_is_a_usage_error() -> None:
    assert run("upp").code == 2
