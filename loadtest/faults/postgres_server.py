"""A PostgreSQL of the kit's own, from the wheel: on a loopback port, to be killed, frozen and started again."""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import asyncpg

from loadtest.faults.process import Process, WorldFailed, unused_port
from loadtest.faults.programs import own, popen_arguments, postgres_bin

SUPERUSER: Final = "postgres"
OWNER: Final = "mailboxd"  # an ordinary role, as production gives
DATABASE: Final = "mailboxd"
PROGRAM_S_MAX: Final = 120.0
_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}

# As durable as in production, on purpose: nothing here may be proven with a sync left out.
SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "64MB",
    "min_wal_size": "160MB",
    "max_wal_size": "512MB",
    "max_connections": "120",
    "jit": "off",
    "random_page_cost": "1.1",
    "autovacuum_naptime": "10s",
    "idle_in_transaction_session_timeout": "60s",
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
    "log_line_prefix": "%m [%p] ",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class PostgresServer:
    """One cluster in `directory/data`. `dsn` is what servers are told; a cluster with standbys gives one of its own."""

    def __init__(
        self, directory: Path, *, name: str = "postgres", settings: Mapping[str, str] | None = None, port: int = 0
    ) -> None:
        self.directory = directory
        self.name = name
        self.data = directory / "data"
        self.port = port or unused_port()
        self.settings = {**SETTINGS, **(settings or {})}
        self.password = secrets.token_hex(16)
        self.environment: dict[str, str] = {}  # of the server, beside the usual
        self.process = Process(name, directory / f"{name}.log", stop_signal=signal.SIGINT)  # fast shutdown

    def dsn_of(self, *, role: str = OWNER, host: str = "127.0.0.1", port: int = 0, database: str = DATABASE) -> str:
        return f"postgresql://{role}:{self.password}@{host}:{port or self.port}/{database}"

    @property
    def dsn(self) -> str:
        """For gateways and workers, straight to it."""
        return self.dsn_of()

    @property
    def admin_dsn(self) -> str:
        """For the kit: a superuser in the same database."""
        return self.dsn_of(role=SUPERUSER)

    async def create(self) -> None:
        """initdb, first start, role and database. Nothing is running before, it runs after."""
        self.directory.mkdir(mode=0o711, exist_ok=True)
        own(self.directory)
        password_file = self.directory / f"{self.name}.password"
        password_file.write_text(self.password)
        own(password_file)
        await self.run(
            "initdb", "-D", str(self.data), "-U", SUPERUSER, "--auth=scram-sha-256", f"--pwfile={password_file}",
            "--encoding=UTF8", "--locale=C", "--set=scram_iterations=1", "--no-instructions", "--no-sync",
        )  # fmt: skip
        password_file.unlink()
        await self.start()
        connection = await asyncpg.connect(self.dsn_of(role=SUPERUSER, database="postgres"))
        try:
            await connection.execute(f"CREATE ROLE {OWNER} LOGIN PASSWORD '{self.password}'")
            await connection.execute(f"CREATE DATABASE {DATABASE} OWNER {OWNER}")
        finally:
            await connection.close()

    def launch(self) -> None:
        """Run it without waiting until it answers."""
        options = {
            **self.settings,
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
        }
        arguments = [f"--{key}={value}" for key, value in options.items()]
        self.process.spawn(
            [str(postgres_bin() / "postgres"), "-D", str(self.data), *arguments],
            {**_ENVIRONMENT, **self.environment}, cwd="/", **popen_arguments(),
        )  # fmt: skip

    async def start(self) -> None:
        """Run it and return when it takes connections (also read-only ones, of a standby)."""
        self.launch()
        await self.process.until(self.answers)

    async def answers(self) -> bool:
        try:
            connection = await asyncpg.connect(self.dsn_of(role=SUPERUSER, database="postgres"), timeout=2.0)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        await connection.close()
        return True

    async def kill(self) -> None:
        """SIGKILL to the postmaster; return when its backends have noticed and are gone."""
        await self.process.kill()

    async def shut_down_immediately(self) -> None:
        """Immediate shutdown (SIGQUIT): no checkpoint, recovery at the next start."""
        await self.process._end(signal.SIGQUIT)

    def freeze(self) -> None:
        self.process.freeze()

    def cont(self) -> None:
        self.process.cont()

    async def stop(self) -> None:
        """Fast shutdown; it may be started again."""
        await self.process.stop()

    async def close(self) -> None:
        """At the world's end: nothing of it is left running or mounted."""
        await self.process.stop()

    async def run(self, program: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        """Run one of PostgreSQL's own programs as its user; its output, or WorldFailed with it."""
        command = [str(postgres_bin() / program), *arguments]
        return await run(command, {**_ENVIRONMENT, **(environment or {})}, **popen_arguments(), cwd="/")


async def run(
    command: Sequence[str], environment: Mapping[str, str], *, within_s: float = PROGRAM_S_MAX, **how: Any
) -> str:
    """Run a program to its end and return what it printed; WorldFailed when it fails or takes too long."""
    process = await asyncio.create_subprocess_exec(
        *command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True, **how,
    )  # fmt: skip
    try:
        async with asyncio.timeout(within_s):
            said, _ = await process.communicate()
    except TimeoutError:
        raise WorldFailed(f"{Path(command[0]).name} took more than {within_s:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = said.decode("utf-8", "replace")
    if process.returncode:
        raise WorldFailed(f"{' '.join(command[:4])} ended with {process.returncode}:\n{text[-2_000:]}")
    return text
