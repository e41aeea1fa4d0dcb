"""A database that went back in time takes no mail before `mailboxd admin after-restore`, and is whole after it."""

from __future__ import annotations

import json
import shutil
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.blocking import BlockingRunner
from tests.support.command import run
from tests.support.directories import servers_directory
from tests.support.up import Up, running_up, until

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def up() -> Iterator[Up]:
    parent = servers_directory()
    with running_up(parent / "data") as running:
        yield running
    shutil.rmtree(parent, ignore_errors=True)


class Database:
    """The running server's database, as the drill that restored it may change it."""

    def __init__(self, up: Up, blocking: BlockingRunner) -> None:
        self._dsn: str = up.report["postgres_dsn"]
        self._cluster = Path(up.report["data_dir"]) / "postgres"
        self._blocking = blocking

    def fetch(self, sql: str, *, role: str = "mailboxd") -> list[Any]:
        async def ask() -> list[Any]:
            # The embedded cluster gives its superuser the same password.
            connection = await asyncpg.connect(self._dsn.replace("//mailboxd:", f"//{role}:"))
            try:
                return list(await connection.fetch(sql))
            finally:
                await connection.close()

        return self._blocking.run(ask())

    def mark_as_restored(self, marker: str) -> None:
        """What the drill writes into postgresql.conf, and a restart's effect on connections."""
        with (self._cluster / "postgresql.conf").open("a") as settings:
            settings.write(f"\nmailboxd.restored = '{marker}'\n")
        self.fetch("SELECT pg_reload_conf()", role="postgres")
        until(lambda: self.fetch("SELECT current_setting('mailboxd.restored', true) AS it")[0]["it"] == marker)
        self.fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'mailboxd'", role="postgres")


def is_ready(up: Up) -> bool:
    try:
        return bool(up.get("/readyz")["status"] == "ready")
    except urllib.error.HTTPError:
        return False


def test_nothing_is_written_until_after_restore_and_then_all_is_well(
    up: Up, blocking: BlockingRunner, tmp_path: Path
) -> None:
    here = ("--data-dir", up.report["data_dir"])
    database = Database(up, blocking)
    state = tmp_path / "listener"
    to = run("listen", "--address", "--state", str(state), *here).out.strip()
    lost = run("listen", "--address", "--state", str(tmp_path / "lost"), *here).out.strip().partition(".")[0]
    sender = ("--state", str(tmp_path / "sender"), *here)
    (tmp_path / "file").write_bytes(b"sealed before the restore")
    assert run("send", "--to", to, str(tmp_path / "file"), *sender).code == 0
    database.fetch(
        "INSERT INTO prekeys (device_id, key_id, public_key)"
        " SELECT device_id, 7, decode(repeat('ab', 32), 'hex') FROM devices"
    )

    # Revoked after the backup was taken: the log outside knows it, the restored database does not.
    assert run("admin", "devices", "revoke", *here, lost).code == 0
    log = tmp_path / "revocations.jsonl"
    log.write_text(run("admin", "devices", "revocations", *here).out)
    assert [json.loads(line)["device_id"] for line in log.read_text().splitlines()] == [lost]
    database.fetch("UPDATE devices SET status = 'active', revoked_at = NULL")
    database.fetch("UPDATE mailboxes SET state = 1")
    database.fetch("UPDATE mailbox_owners SET released_entries = 0, released_bytes = 0")
    database.fetch("UPDATE mailboxes SET stored_entries = stored_entries + 5")
    (before,) = database.fetch("SELECT restore_epoch::text FROM instances")

    database.mark_as_restored("drill-1")
    until(lambda: not is_ready(up), what="a restored database is noticed")
    refused = run("admin", "policy", "set", "acked_cleanup_s=5", *here)
    assert refused.code == 1, "nobody writes"

    faulty = run("admin", "after-restore", "--revocations", str(log), "--json", *here)
    assert (faulty.code, "counters of 3 devices" in faulty.err) == (1, True), faulty.err
    assert not is_ready(up), "a fault leaves the database closed"
    done = run("admin", "after-restore", "--revocations", str(log), "--json", *here)
    assert done.code == 0, done.err
    assert (done.json["revocations_applied"], done.json["prekeys_suspect"]) == (1, 2)
    until(lambda: is_ready(up), what="writes go on without a restart")

    (after,) = database.fetch("SELECT restore_epoch::text FROM instances")
    assert after != before, "every cursor of before is refused once"
    assert [row["state"] for row in database.fetch("SELECT DISTINCT state FROM prekeys")] == ["suspect"]
    again = run("listen", "--state", str(state), *here)
    assert (again.code, again.out) == (0, "sealed before the restore")
    assert run("send", "--to", f"{lost}.{to.partition('.')[2]}", str(tmp_path / "file"), *sender).code == 1

    twice = run("admin", "after-restore", *here)
    assert (twice.code, "--force" in twice.err) == (1, True)
    (event,) = run("admin", "audit", "list", "--type", "restore.finished", "--json", *here).json["events"]
    assert event["outcome"] == "done"


def test_a_log_that_is_not_one_is_refused_line_by_line(up: Up, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"device_id": "short"}\n\nnot json\n')
    refused = run("admin", "after-restore", "--revocations", str(log), "--data-dir", up.report["data_dir"])
    assert refused.code == 1
    assert [f"{log}:{number}:" in refused.err for number in (1, 2, 3)] == [True] * 3
