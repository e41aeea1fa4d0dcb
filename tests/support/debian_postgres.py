"""The PostgreSQL that Debian installs (15 on Debian 12): an older server that production may run."""

from __future__ import annotations

import asyncio
import glob
import shutil
import signal
from pathlib import Path

import pytest

from mailboxd.server_process import ServerProcess
from mailboxd.unprivileged import server_user
from tests.support.directories import servers_directory

START_SECONDS = 60.0
STOP_SECONDS = 30.0


class DebianPostgres:
    """A throw-away cluster on a Unix socket; the superuser `postgres` comes in without a password."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._directory = servers_directory()
        self._user = server_user(self._directory / "cluster")
        self._process: ServerProcess | None = None

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@/postgres?host={self._directory}/run&port=5432"

    async def start(self) -> None:
        for name in ("cluster", "run"):
            (self._directory / name).mkdir(mode=0o700 if name == "cluster" else 0o755)
            self._user.own(self._directory / name)
        cluster = str(self._directory / "cluster")
        initdb = await asyncio.create_subprocess_exec(
            str(self._programs / "initdb"),
            *("-D", cluster, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"),
            stdout=asyncio.subprocess.DEVNULL,
            cwd="/",
            **self._user.popen_arguments(),
        )
        if await initdb.wait() != 0:
            raise RuntimeError("initdb failed")
        options = (
            "fsync=off",
            "listen_addresses=",
            f"unix_socket_directories={self._directory}/run",
            "max_connections=50",
        )
        self._process = ServerProcess(
            "PostgreSQL of Debian",
            [str(self._programs / "postgres"), "-D", cluster, *(f"--{option}" for option in options)],
            self._user,
            self._directory / "postgres.log",
            stop_signal=signal.SIGINT,
        )
        await self._process.until(self._is_ready, at_most_seconds=START_SECONDS)

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop(grace_seconds=STOP_SECONDS)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _is_ready(self) -> bool:
        try:
            return "ready" in (self._directory / "cluster" / "postmaster.pid").read_text()
        except FileNotFoundError:
            return False


def require_debian_postgres() -> DebianPostgres:
    """One that is not started yet, or a skip that names the package."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL of Debian is missing: apt-get install postgresql")
    return DebianPostgres(Path(found[-1]).parent)
