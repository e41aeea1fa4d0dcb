"""PostgreSQL and Valkey in a directory of one machine: what `mailboxd up`, the demo and the tests run on.

Below the data directory: `postgres/` (the cluster), `valkey/`, `run/` (sockets), `logs/`, `secrets/` (the password),
`programs/` (only where the installed ones cannot be reached). Nothing outside of it is written or changed.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Final, Self

from mailboxd.embedded_postgresql import EmbeddedPostgreSQL
from mailboxd.embedded_valkey import EmbeddedValkey
from mailboxd.unprivileged import (
    EmbeddedError,
    UnreachablePath,
    default_data_dir,
    first_closed,
    require_reachable,
    server_user,
)
from mailboxd.wheel_binaries import Programs

__all__ = ["EmbeddedError", "EmbeddedServices", "UnreachablePath", "default_data_dir"]

LOCK_FILE: Final = "services.lock"
_LOCK_WAIT_SECONDS: Final = 2.0
_SOCKET_NAME_BYTES: Final = len("/valkey-00000000.sock")  # the longer one of both servers
_SOCKET_PATH_BYTES_MAX: Final = 107  # sun_path without its NUL


class EmbeddedServices:
    """`async with EmbeddedServices(data_dir) as services`: both run inside the block and are gone after it.

    They also stop, cleanly, when this process dies in any other way. One owner a directory: a second one is refused.
    Enter it from a thread that lives on (see `server_process`).
    """

    def __init__(self, data_dir: Path, *, postgres_settings: dict[str, str] | None = None) -> None:
        self._data_dir = data_dir.absolute()
        self._postgres_settings = postgres_settings
        self._postgres: EmbeddedPostgreSQL | None = None
        self._valkey: EmbeddedValkey | None = None
        self._lock: int | None = None

    @property
    def data_dir(self) -> Path:
        return self._data_dir

    @property
    def postgres(self) -> EmbeddedPostgreSQL:
        if self._postgres is None:
            raise EmbeddedError("the embedded services are not started")
        return self._postgres

    @property
    def postgres_dsn(self) -> str:
        """For the ordinary role that owns the database; holds the password."""
        return self.postgres.dsn()

    @property
    def redis_url(self) -> str:
        if self._valkey is None:
            raise EmbeddedError("the embedded services are not started")
        return self._valkey.url

    @property
    def pids(self) -> dict[str, int]:
        return {
            "postgres": self._postgres.pid if self._postgres else 0,
            "valkey": self._valkey.pid if self._valkey else 0,
        }

    async def start(self) -> None:
        """Start both; EmbeddedError says what to change. After an error or a cancellation nothing runs."""
        user = server_user(self._data_dir / "postgres")
        nearest = next(step for step in (self._data_dir, *self._data_dir.parents) if step.exists())
        require_reachable(nearest.parent if nearest == self._data_dir else nearest, user)
        self._make_directories(opened=user.switches)
        require_reachable(self._data_dir, user)
        await self._take_lock()
        try:
            programs = Programs(self._data_dir, user)
            run_dir: Path | None = self._data_dir / "run"
            long = len(os.fsencode(str(run_dir))) + _SOCKET_NAME_BYTES > _SOCKET_PATH_BYTES_MAX
            if long or "," in str(run_dir):  # PostgreSQL and its clients take a comma for the next directory
                run_dir = None
            else:
                user.own(self._data_dir / "run")
            self._postgres = EmbeddedPostgreSQL(
                self._data_dir, run_dir, user, programs, settings=self._postgres_settings
            )
            self._valkey = EmbeddedValkey(self._data_dir, run_dir, user, programs)
            await self._valkey.start()
            await self._postgres.start()
        except BaseException:
            await self.stop()
            raise

    def ended(self) -> tuple[str, ...]:
        """Which of both (`postgres`, `valkey`) ended by itself since it was started."""
        return tuple(name for name, server in self._servers().items() if server.has_ended)

    async def start_again(self, name: str) -> None:
        """Start one that ended, at its old address; EmbeddedError says why it cannot."""
        await self._servers()[name].start()

    async def stop(self) -> None:
        """Return when both are gone. Cancelled, it kills what is left (PostgreSQL recovers at its next start)."""
        try:
            if self._valkey is not None:
                await self._valkey.stop()
        finally:
            try:
                if self._postgres is not None:
                    await self._postgres.stop()
            finally:
                if self._lock is not None:
                    os.close(self._lock)
                    self._lock = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    def _servers(self) -> dict[str, EmbeddedPostgreSQL | EmbeddedValkey]:
        servers = {"postgres": self._postgres, "valkey": self._valkey}
        return {name: server for name, server in servers.items() if server is not None}

    def _make_directories(self, *, opened: bool) -> None:
        """`opened`: the servers' user is another one and must get through; the secrets stay closed to it."""
        if not self._data_dir.exists():
            self._data_dir.mkdir(parents=True, mode=0o711 if opened else 0o700)
        for name, mode in (("run", 0o711), ("logs", 0o755), ("secrets", 0o700)):
            directory = self._data_dir / name
            if not directory.exists():
                directory.mkdir(mode=mode)
                directory.chmod(mode)
        if opened and first_closed(self._data_dir, server_user(self._data_dir / "postgres")) is not None:
            self._data_dir.chmod(self._data_dir.stat().st_mode | 0o011)

    async def _take_lock(self) -> None:
        lock = os.open(self._data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            async with asyncio.timeout(_LOCK_WAIT_SECONDS):
                while not _locked(lock):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            os.close(lock)
            raise EmbeddedError(f"other embedded services run on {self._data_dir} already") from None
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
