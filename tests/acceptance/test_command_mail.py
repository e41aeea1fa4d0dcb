"""Mail by command: `send` puts a file in, `listen` gets it out, operators see and shorten what waits."""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from protocol.ids import to_text
from tests.support.blocking import BlockingRunner
from tests.support.command import Finished, command_line, environment, run
from tests.support.directories import servers_directory
from tests.support.up import Up, running_up, until

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    """One server for all tests here, with two gateways."""
    parent = servers_directory()
    with running_up(parent / "data", "--gateways", "2") as running:
        yield running
    shutil.rmtree(parent, ignore_errors=True)


def here(up: Up) -> tuple[str, str]:
    return "--data-dir", up.report["data_dir"]


def address_of(up: Up, state: Path, *, gateway: int = 0) -> str:
    shown = run("listen", "--address", "--json", "--state", str(state), "--url", up.report["urls"][gateway])
    assert shown.code == 0, shown.err
    return str(shown.json["address"])


def send(up: Up, to: str, state: Path, *arguments: str, content: bytes | None = None) -> Finished:
    done = subprocess.run(
        command_line("send", "--to", to, "--state", str(state), "--url", up.report["urls"][0], "--json", *arguments),
        env=environment(),
        input=content,
        capture_output=True,
        timeout=110,
        check=False,
    )
    return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())


def test_a_file_for_a_sleeping_device_comes_out_as_it_went_in(up: Up, tmp_path: Path) -> None:
    content = secrets.token_bytes(1_000_000)
    (tmp_path / "file").write_bytes(content)
    to = address_of(up, tmp_path / "listener", gateway=1)
    sent = send(up, to, tmp_path / "sender", str(tmp_path / "file"), "--ttl-s", "604800")
    assert (sent.code, sent.json["bytes"], sent.json["envelopes"]) == (0, len(content), 16)
    assert "at most" not in sent.err
    assert run("admin", "status", "--json", *here(up)).json["pending_entries"] == 16

    received = subprocess.run(
        command_line("listen", "--state", str(tmp_path / "listener"), "--url", up.report["urls"][1]),
        env=environment(),
        capture_output=True,
        timeout=110,
        check=False,
    )
    assert received.returncode == 0
    assert received.stdout == content
    until(
        lambda: run("admin", "status", "--json", *here(up)).json["pending_entries"] == 0, what="everything acknowledged"
    )


def test_a_pipe_works_at_both_ends_and_an_empty_one_too(up: Up, tmp_path: Path) -> None:
    to = address_of(up, tmp_path / "listener")
    for content in (b"", b"a few words\n"):
        assert send(up, to, tmp_path / "sender", content=content).code == 0
        received = run("listen", "--state", str(tmp_path / "listener"), *here(up))
        assert (received.code, received.out.encode()) == (0, content)


def test_a_life_beyond_what_the_instance_keeps_is_cut_and_said(up: Up, tmp_path: Path) -> None:
    to = address_of(up, tmp_path / "listener")
    sent = send(up, to, tmp_path / "sender", "--ttl-s", "604801", content=b"long-lived")
    assert sent.code == 0
    assert "mailboxd: this instance keeps mail for at most 604800 s, not 604801 s\n" in sent.err
    assert run("listen", "--state", str(tmp_path / "listener"), *here(up)).out == "long-lived"


def test_a_listener_that_follows_gets_the_files_of_several_senders(up: Up, tmp_path: Path) -> None:
    to = address_of(up, tmp_path / "listener")
    into = tmp_path / "into"
    into.mkdir()
    with subprocess.Popen(
        command_line("listen", "--follow", "--into", str(into), "--state", str(tmp_path / "listener"), *here(up)),
        env=environment(),
        stderr=subprocess.DEVNULL,
    ) as listener:
        contents = [secrets.token_bytes(size) for size in (70_000, 1)]
        for number, content in enumerate(contents):
            assert send(up, to, tmp_path / f"sender-{number}", content=content).code == 0
        until(lambda: len(list(into.iterdir())) == 2, what="both files are there")
        listener.send_signal(signal.SIGINT)
        assert listener.wait(60) == 130
    assert sorted(file.read_bytes() for file in into.iterdir()) == sorted(contents)


def test_a_wait_for_a_rate_limit_is_shown_and_the_file_arrives_whole(up: Up, tmp_path: Path) -> None:
    limits = ("submit_rate_per_device=8", "submit_burst_per_device=64", "submit_rate_per_pair=0")
    before = run("admin", "policy", "show", "--json", *here(up)).json
    assert run("admin", "policy", "set", *limits, *here(up)).code == 0
    try:
        version = run("admin", "policy", "show", "--json", *here(up)).json["version"]
        until(lambda: up.get("/v1/instance")["policy_version"] >= version, what="the gateway has the policy")
        content = secrets.token_bytes(6_500_000)  # 100 envelopes, and more than a burst allows at once
        (tmp_path / "file").write_bytes(content)
        to = address_of(up, tmp_path / "listener")
        sent = send(up, to, tmp_path / "sender", str(tmp_path / "file"))
        assert sent.code == 0
        assert "the server asks for patience (RATE_LIMITED)" in sent.err
    finally:
        given_back = [f"{name.partition('=')[0]}={before[name.partition('=')[0]]}" for name in limits]
        assert run("admin", "policy", "set", *given_back, *here(up)).code == 0
    received = subprocess.run(
        command_line("listen", "--state", str(tmp_path / "listener"), *here(up)),
        env=environment(),
        capture_output=True,
        timeout=110,
        check=False,
    )
    assert (received.returncode, received.stdout == content) == (0, True)


def test_a_full_inbox_is_said_and_leaves_the_mail_on_the_server(up: Up, tmp_path: Path) -> None:
    to = address_of(up, tmp_path / "listener")
    content = secrets.token_bytes(300_000)
    assert send(up, to, tmp_path / "sender", content=content).code == 0
    for _ in range(4):  # more often than a message may crash an app
        full = run("listen", "--kept-bytes-max", "150000", "--state", str(tmp_path / "listener"), *here(up))
        assert full.code == 1
        assert "the rest stays on the server" in full.err
        assert "--kept-bytes-max" in full.err
    assert run("admin", "status", "--json", *here(up)).json["pending_entries"] >= 3
    whole = subprocess.run(
        command_line("listen", "--state", str(tmp_path / "listener"), *here(up)),
        env=environment(),
        capture_output=True,
        timeout=110,
        check=False,
    )
    assert (whole.returncode, whole.stdout == content) == (0, True)


def test_nothing_goes_to_a_revoked_device_and_it_is_told(up: Up, tmp_path: Path) -> None:
    to = address_of(up, tmp_path / "listener")
    device = to.partition(".")[0]
    with subprocess.Popen(
        command_line("listen", "--state", str(tmp_path / "listener"), "--url", up.report["urls"][1]),
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as listener:
        until(lambda: run("admin", "status", "--json", *here(up)).json["devices_online"] > 0, what="it is online")
        assert run("admin", "devices", "revoke", device, "--json", *here(up)).json["was_active"] is True
        _, err = listener.communicate(timeout=30)
        assert (listener.returncode, "revoked" in err) == (1, True)
    assert run("admin", "devices", "revoke", device, "--json", *here(up)).json["was_active"] is False
    refused = send(up, to, tmp_path / "sender", content=b"x")
    assert (refused.code, refused.err) == (1, "mailboxd: refused: UNKNOWN_RECIPIENT\n")
    unknown = run("admin", "devices", "revoke", to_text(b"\xf8" * 16), *here(up))
    assert (unknown.code, "there is no device" in unknown.err) == (1, True)


def test_adr009_7_3_an_early_clean_up_is_previewed_applied_and_audited(up: Up, tmp_path: Path) -> None:
    to = address_of(up, tmp_path / "listener")
    assert send(up, to, tmp_path / "sender", content=b"x" * 150_000).code == 0
    before = run("admin", "retention", "preview", "--longest-s", "3600", "--json", *here(up)).json
    assert before["shortened_envelopes"] >= 3
    assert before["removed_envelopes"] == 0, "nothing is an hour old"
    again = run("admin", "retention", "preview", "--longest-s", "3600", "--json", *here(up)).json
    assert again == before, "a preview changes nothing"

    applied = run("admin", "retention", "apply", "--longest-s", "3600", "--json", *here(up))
    assert (applied.code, applied.json["shortened_envelopes"]) == (0, before["shortened_envelopes"])
    after = run("admin", "retention", "preview", "--longest-s", "3600", "--json", *here(up)).json
    assert after["shortened_envelopes"] == 0
    events = run("admin", "audit", "list", "--type", "retention.applied", "--json", *here(up)).json["events"]
    assert events[0]["detail"]["longest_s"] == 3_600


def test_a_dead_letter_is_seen_requeued_and_dropped(up: Up, blocking: BlockingRunner) -> None:
    first, second = b"\xf8" + secrets.token_bytes(15), secrets.token_bytes(16)
    assert to_text(first).startswith("-"), "an id may look like an option"

    async def bury() -> None:
        connection = await asyncpg.connect(up.report["postgres_dsn"])
        for event in (first, second):
            await connection.execute(
                "INSERT INTO outbox_events (event_id, aggregate_ref, task_type, state, reason, next_attempt_at,"
                " created_at, updated_at) VALUES ($1::text::uuid, gen_random_uuid(), 'wake_device', 'dead_letter',"
                " 'poison', now(), now(), now())",
                event.hex(),
            )
        await connection.close()

    blocking.run(bury())
    listed = run("admin", "dead-letters", "list", "--json", *here(up)).json["dead_letters"]
    assert {letter["event_id"] for letter in listed} == {to_text(first), to_text(second)}
    assert run("admin", "dead-letters", "show", "--json", *here(up), to_text(first)).json["reason"] == "poison"
    assert run("admin", "dead-letters", "requeue", *here(up), to_text(first)).code == 0
    assert run("admin", "dead-letters", "drop", *here(up), to_text(second)).code == 0
    assert run("admin", "dead-letters", "drop", *here(up), to_text(second)).code == 1
    assert run("admin", "dead-letters", "list", "--json", *here(up)).json["dead_letters"] == []
    types = [event["event_type"] for event in run("admin", "audit", "list", "--json", *here(up)).json["events"]]
    assert {"dead_letter.requeued", "dead_letter.dropped"} <= set(types)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("send", "--to", "nobody"), "an address is DEVICE.KEY"),
        (("send", "--to", f"{'A' * 21}Q.{'A' * 42}E", "/no/such/file"), "No such file"),
        (("listen", "--follow"), "--follow needs --into"),
        (("listen", "--into", "/no/such/dir"), "is no directory"),
        (("listen", "--url", "http://127.0.0.1:1", "--data-dir", "/x"), "either --url or --data-dir"),
    ],
)
def test_what_cannot_work_is_one_clear_line(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    done = run(*arguments, "--state", str(tmp_path / "state"))
    assert done.code == 1
    assert told in done.err
    assert done.err.count("\n") == 1


def test_a_server_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    done = run("listen", "--address", "--url", "http://127.0.0.1:1", "--state", str(tmp_path / "state"))
    assert done.code == 1
    assert done.err.startswith("mailboxd: ")
    assert done.err.count("\n") == 1
