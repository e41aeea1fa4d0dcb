"""`mailboxd admin keys …`: the keyring's rotation, and the checks that nobody is locked out by it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mailboxd.options import TAKES_IDS, ConfigFile, DataDir, Json
from mailboxd.terminal import CommandError, complain, print_result, table, time_text

if TYPE_CHECKING:
    from mailboxd.admin_session import AdminSession
    from runtime.key_rings import Purpose, Ring, StoredKey
    from runtime.keyring import Keyring

keys_app = typer.Typer(
    no_args_is_help=True,
    help=(
        "The keys in keyring.json. To replace one without locking anybody out: stage, restart all processes; rotate, "
        "restart; wait until the old one is no longer needed; retire, restart. With several hosts copy the file to "
        "each before its restart."
    ),
)
PurposeName = Annotated[
    str, typer.Argument(metavar="PURPOSE", help="fingerprint, cursor, token, push-token, vapid or log.")
]


@keys_app.command("list")
def list_keys(data_dir: DataDir = None, config_file: ConfigFile = None, as_json: Json = False) -> None:
    """List all keys by id, role and age. The keys themselves are never shown."""
    from mailboxd.settings import load_settings
    from runtime.config import ProcessConfig
    from runtime.keyring import Keyring

    secrets_dir = load_settings(ProcessConfig, data_dir=data_dir, config_file=config_file).secrets_dir
    _show(Keyring.load(secrets_dir), as_json=as_json)


@keys_app.command("stage")
def stage_key(
    purpose: PurposeName, data_dir: DataDir = None, config_file: ConfigFile = None, as_json: Json = False
) -> None:
    """Add a key that all processes know after their next restart and none uses yet."""
    _change(purpose, data_dir, config_file, as_json, lambda keyring, kind, now_ms: keyring.stage(kind, now_ms))
    complain(["the new key is staged: restart all processes, so that each knows it, before you rotate"])


@keys_app.command("rotate")
def rotate_key(
    purpose: PurposeName, data_dir: DataDir = None, config_file: ConfigFile = None, as_json: Json = False
) -> None:
    """Use the staged key from the next restart on; without one a new key, which needs all processes to stop first."""
    staged_at_ms: int | None = None

    def rotate(keyring: Keyring, kind: Purpose, now_ms: int) -> Keyring:
        nonlocal staged_at_ms
        ring = keyring.rings[kind]
        staged_at_ms = next((key.created_at_ms for key in ring.keys if ring.role(key) == "staged"), None)
        return keyring.rotate(kind, now_ms)

    _change(purpose, data_dir, config_file, as_json, rotate)
    # Which processes have read the file since cannot be seen from here, so that is for the operator to know.
    if staged_at_ms is None:
        complain(["no key was staged, so no process knows the new one: stop them all before you start the first again"])
    else:
        since = time_text(staged_at_ms)
        complain([f"restart all processes, first those that still run from before {since}: they do not know the key"])


@keys_app.command("retire", context_settings=TAKES_IDS)
def retire_key(
    purpose: PurposeName,
    key_id: Annotated[str, typer.Argument(help="As `keys list` shows it.")],
    force: Annotated[
        bool, typer.Option("--force", help="Also when something still needs it: that is refused from then on.")
    ] = False,
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Forget a key that is not in use any more. Refused while cursors, tokens, records or push routes may need it."""
    from mailboxd.admin_session import run_admin

    kind = _purpose(purpose)

    async def check_and_retire(session: AdminSession) -> Keyring:
        if not force and (reason := await _still_needed(session, session.keyring.rings[kind], key_id)):
            raise CommandError(f"{kind}: key {key_id} {reason}; --force retires it all the same")
        return await _written(session, lambda keyring: keyring.retire(kind, key_id), kind, "retired")

    _show(run_admin(data_dir, config_file, check_and_retire), as_json=as_json)


def _change(
    purpose: str,
    data_dir: DataDir,
    config_file: ConfigFile,
    as_json: bool,
    change: Callable[[Keyring, Purpose, int], Keyring],
) -> None:
    from mailboxd.admin_session import run_admin

    kind = _purpose(purpose)
    now_ms = time.time_ns() // 1_000_000
    _show(
        run_admin(
            data_dir,
            config_file,
            lambda session: _written(session, lambda keyring: change(keyring, kind, now_ms), kind, "changed"),
        ),
        as_json=as_json,
    )


async def _written(session: AdminSession, change: Callable[[Keyring], Keyring], kind: Purpose, what: str) -> Keyring:
    """The new keyring on disk, its public signing keys in the database, and the audit event.

    The file comes first: a key that is published and lost would be worse than one that is not published yet, which the
    next `init` or change makes good.
    """
    from mailboxd.init import public_signing_keys
    from runtime.keyring import update
    from store.audit import AuditOutcome, AuditType
    from store.instance import take_over_signing_keys

    audit = session.audit
    keyring = update(session.config.secrets_dir, change)
    await take_over_signing_keys(session.config.postgres_dsn, public_signing_keys(keyring))
    policy = await session.policy()
    await audit.record(
        session.postgres,
        AuditType.KEY_ROTATED,
        AuditOutcome.DONE,
        request_id=session.request_id,
        policy_version=policy.version,
        detail={"purpose": kind.value, "change": what},
    )
    return keyring


async def _still_needed(session: AdminSession, ring: Ring, key_id: str) -> str | None:
    """Why the key cannot go yet; None when it can, or when `retire` itself refuses it."""
    from protocol.limits import CURSOR_MAX_AGE_S, TOKEN_TTL_S
    from runtime.key_rings import Purpose
    from store.instance import fingerprint_key_in_use, push_token_key_in_use

    key = next((key for key in ring.keys if key.key_id == key_id), None)
    if key is None or ring.role(key) != "old":
        return None
    match ring.purpose:
        case Purpose.FINGERPRINT:
            needed = await fingerprint_key_in_use(session.postgres, int(key_id))
            return "still guards idempotency records; wait until they have expired" if needed else None
        case Purpose.PUSH_TOKEN:
            needed = await push_token_key_in_use(session.postgres, int(key_id))
            return (
                "still seals push routes; a running worker seals them anew within minutes of its restart"
                if needed
                else None
            )
        case Purpose.CURSOR:
            return _until(key, CURSOR_MAX_AGE_S, "cursors that it sealed")
        case Purpose.TOKEN:
            return _until(key, TOKEN_TTL_S, "tokens that it signed")
        case Purpose.LOG | Purpose.VAPID:
            return None


def _until(key: StoredKey, lifetime_s: int, what: str) -> str | None:
    needed_until_ms = (key.superseded_at_ms or 0) + lifetime_s * 1_000
    return (
        None
        if time.time_ns() // 1_000_000 >= needed_until_ms
        else f"may open {what} until {time_text(needed_until_ms)}"
    )


def _purpose(name: str) -> Purpose:
    from runtime.key_rings import Purpose

    try:
        return Purpose(name)
    except ValueError:
        raise CommandError(f"there is no key purpose {name}; there are {', '.join(Purpose)}") from None


def _show(keyring: Keyring, *, as_json: bool) -> None:
    keys: list[dict[str, Any]] = [
        {
            "purpose": ring.purpose.value,
            "key_id": key.key_id,
            "role": ring.role(key),
            "created_at_ms": key.created_at_ms,
            "superseded_at_ms": key.superseded_at_ms,
        }
        for ring in keyring.rings.values()
        for key in ring.keys
    ]
    rows = [
        (
            key["purpose"],
            key["key_id"],
            key["role"],
            time_text(key["created_at_ms"]),
            time_text(key["superseded_at_ms"]),
        )
        for key in keys
    ]
    print_result(
        {"keys": keys}, as_json=as_json, lines=table(("purpose", "key", "role", "created", "superseded"), rows)
    )
