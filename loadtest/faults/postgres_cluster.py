"""What operators build around one PostgreSQL: a synchronous standby, base backups with archived WAL, a small disk.

All with PostgreSQL's own programs from the wheel, as the ordinary user that its server runs as.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import asyncpg

from loadtest.faults.postgres_server import DATABASE, OWNER, SUPERUSER, PostgresServer, run
from loadtest.faults.process import WorldFailed
from loadtest.faults.programs import own, popen_arguments, server_user

STEP_S_MAX: Final = 60.0
DISK_BYTES: Final = 256 * 1_048_576
_POLL_S: Final = 0.05

# What replication and archiving ask of the primary; set from the start, since both need a restart.
PRIMARY_SETTINGS: Final[Mapping[str, str]] = {"wal_level": "replica", "max_wal_senders": "4", "hot_standby": "on"}


async def execute(server: PostgresServer, *statements: str) -> None:
    """Each as its own statement, as the superuser in the project's database."""
    connection = await asyncpg.connect(server.admin_dsn, timeout=10.0)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def value_of(server: PostgresServer, query: str, *arguments: Any) -> Any:
    """The first column of the first row."""
    connection = await asyncpg.connect(server.admin_dsn, timeout=10.0)
    try:
        return await connection.fetchval(query, *arguments)
    finally:
        await connection.close()


async def until(server: PostgresServer, query: str, *arguments: Any, within_s: float = STEP_S_MAX) -> None:
    """Wait until the query gives true; WorldFailed when it does not in time."""
    try:
        async with asyncio.timeout(within_s):
            while not await value_of(server, query, *arguments):
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise WorldFailed(f"{server.name}: not within {within_s:.0f} s: {query}") from None


async def set_and_reload(server: PostgresServer, **settings: str) -> None:
    """ALTER SYSTEM, and a reload that every new connection sees. A setting given to `launch` is stronger."""
    for name, value in settings.items():
        await execute(server, f"ALTER SYSTEM SET {name} = '{value}'")
    await execute(server, "SELECT pg_reload_conf()")
    for name, value in settings.items():
        await until(server, "SELECT current_setting($1) = $2", name, value)


async def synchronous_standby_of(primary: PostgresServer, directory: Path) -> PostgresServer:
    """A running hot standby: from now on a commit of the primary returns when both disks have it."""
    standby = PostgresServer(directory, name="standby", settings=primary.settings | {"cluster_name": "standby"})
    standby.password = primary.password
    await _copy_of(primary, standby, "--write-recovery-conf")
    await standby.start()
    await until(primary, "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'")
    await set_and_reload(primary, synchronous_standby_names="*")
    await until(primary, "SELECT sync_state = 'sync' FROM pg_stat_replication")
    return standby


async def promote(standby: PostgresServer) -> None:
    """Make it the primary; returns when it takes writes."""
    await standby.run("pg_ctl", "promote", "-D", str(standby.data), "--wait", "--timeout", f"{STEP_S_MAX:.0f}")
    await until(standby, "SELECT NOT pg_is_in_recovery()")


def multi_host_dsn(*servers: PostgresServer) -> str:
    """One DSN for all of them, in the order in which they are tried."""
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"postgresql://{OWNER}:{servers[0].password}@{hosts}/{DATABASE}"


class Backups:
    """Base backups and the WAL archive of one server, in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self._base = directory / "base"
        self._wal = directory / "wal"
        for path in (directory, self._wal):
            path.mkdir(mode=0o711)
            own(path)

    @property
    def settings(self) -> dict[str, str]:
        """For the server that is backed up, from its start on."""
        return {
            **PRIMARY_SETTINGS,
            "archive_mode": "on",
            "archive_command": f"cp %p {self._wal}/%f.new && mv -n {self._wal}/%f.new {self._wal}/%f",
        }

    async def take(self, server: PostgresServer) -> None:
        """A base backup; WAL comes from the archive."""
        await server.run(
            "pg_basebackup", "-d", server.dsn_of(role=SUPERUSER, database="postgres"), "-D", str(self._base),
            "--checkpoint=fast", "--wal-method=none", "--no-manifest", "--no-sync",
        )  # fmt: skip

    async def mark(self, server: PostgresServer, name: str) -> None:
        """Name this moment: a restore may end here."""
        await value_of(server, "SELECT pg_create_restore_point($1)::text", name)

    async def archive_all(self, server: PostgresServer) -> None:
        """Return when everything that was committed before is in the archive."""
        segment = await value_of(server, "SELECT pg_walfile_name(pg_switch_wal())")
        try:
            async with asyncio.timeout(STEP_S_MAX):
                while not (self._wal / segment).exists():
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise WorldFailed(f"{segment} was not archived within {STEP_S_MAX:.0f} s") from None

    async def restore(self, server: PostgresServer, *, to: str, marker: str) -> None:
        """Put the server's cluster back to a named moment and start it; it takes connections when this returns.

        It is marked as restored, as docs/operations.md asks for. The server must be stopped; what it had is removed.
        """
        shutil.rmtree(server.data)
        await run(["cp", "-a", str(self._base), str(server.data)], os.environ, cwd="/", **popen_arguments())
        (server.data / "recovery.signal").touch()
        own(server.data / "recovery.signal")
        with (server.data / "postgresql.conf").open("a") as settings:
            settings.write(
                f"\nrestore_command = 'cp {self._wal}/%f %p'\n"
                f"recovery_target_name = '{to}'\nrecovery_target_action = 'promote'\nmailboxd.restored = '{marker}'\n"
            )
        await server.start()
        await until(server, "SELECT NOT pg_is_in_recovery()")


class SmallDisk:
    """A file system of its own (tmpfs, so root and its right to mount are needed) that can be filled and emptied."""

    def __init__(self, directory: Path, *, size: int = DISK_BYTES) -> None:
        self.directory = directory
        self._size = size
        self._ballast = directory / "ballast"

    def mount(self) -> bool:
        """False where this process may not mount."""
        self.directory.mkdir(mode=0o711, exist_ok=True)
        owner = server_user() or (0, 0)
        options = f"size={self._size},mode=0711,uid={owner[0]},gid={owner[1]}"
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "mailboxd-small-disk", str(self.directory)],
            capture_output=True,
            check=False,
        )
        return mounted.returncode == 0

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.directory)], capture_output=True, check=False)

    def fill(self) -> None:
        """Take what is free, to the last page."""
        block = bytes(1_048_576)
        with self._ballast.open("ab", buffering=0) as ballast:
            while block:
                try:
                    ballast.write(block)
                except OSError:  # ENOSPC: and now the rest, in smaller pieces
                    block = block[: len(block) // 2] if len(block) > 4_096 else b""

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    @property
    def free_bytes(self) -> int:
        return shutil.disk_usage(self.directory).free


async def _copy_of(source: PostgresServer, target: PostgresServer, *options: str) -> None:
    target.directory.mkdir(mode=0o711, exist_ok=True)
    own(target.directory)
    await target.run(
        "pg_basebackup", "-d", source.dsn_of(role=SUPERUSER, database="postgres"), "-D", str(target.data),
        "--checkpoint=fast", "--wal-method=stream", "--no-manifest", "--no-sync", *options,
    )  # fmt: skip
