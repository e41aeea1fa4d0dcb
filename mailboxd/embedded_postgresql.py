"""PostgreSQL for one machine, as durable as any: made for two cores, never by giving up a sync."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
from pathlib import Path
from typing import Final
from urllib.parse import quote

import asyncpg

from mailboxd.embedded_valkey import free_port
from mailboxd.server_process import ServerProcess
from mailboxd.unprivileged import EmbeddedError, ServerUser
from mailboxd.wheel_binaries import Programs

SUPERUSER: Final = "postgres"
OWNER: Final = "mailboxd"  # an ordinary role: what production gives, too
DATABASE: Final = "mailboxd"
PORT: Final = 5432  # of the Unix socket; nobody else's, since the directory is ours
INIT_SECONDS: Final = 120.0
START_SECONDS: Final = 300.0  # crash recovery may have to replay up to max_wal_size
STOP_SECONDS: Final = 60.0
_PID_LINE, _STATUS_LINE = 0, 7  # of postmaster.pid

SETTINGS: Final[dict[str, str]] = {
    # Durability: said here although these are the defaults, because a commit is this project's promise.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # WAL segments are recycled instead of made new: a new one costs tens of milliseconds in the commit that needs it.
    "min_wal_size": "1GB",
    "max_wal_size": "4GB",
    "wal_buffers": "16MB",
    "checkpoint_timeout": "15min",
    "checkpoint_completion_target": "0.9",
    # Two cores, short statements, everything in memory or close to it.
    "shared_buffers": "256MB",
    "effective_cache_size": "1GB",
    "work_mem": "8MB",
    "maintenance_work_mem": "128MB",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "random_page_cost": "1.1",
    "max_connections": "200",
    # Rows live for seconds: vacuum soon, in small steps.
    "autovacuum_naptime": "10s",
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_vacuum_insert_scale_factor": "0.1",
    "autovacuum_analyze_scale_factor": "0.05",
    "autovacuum_vacuum_cost_limit": "1000",
    # A client that is gone must not keep locks.
    "idle_in_transaction_session_timeout": "60s",
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    # Logs hold no statement, no value and no row (DETAIL quotes rows).
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] ",
    # The password is 256 random bits: stretching it would only make connecting slow.
    "scram_iterations": "1",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class EmbeddedPostgreSQL:
    """One cluster in `data_dir/postgres`, on a Unix socket in `run_dir`, or on a loopback port without one."""

    def __init__(
        self,
        data_dir: Path,
        run_dir: Path | None,
        user: ServerUser,
        programs: Programs,
        *,
        settings: dict[str, str] | None = None,
    ) -> None:
        self._cluster = data_dir / "postgres"
        self._log = data_dir / "logs" / "postgres.log"
        self._password_file = data_dir / "secrets" / "postgres-password"
        self._run_dir = run_dir
        self._user = user
        self._bin = programs.postgres_bin()
        self._settings = SETTINGS | (settings or {})
        self._port = PORT
        self._process: ServerProcess | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def program_dir(self) -> Path:
        return self._bin

    def dsn(self, *, role: str = OWNER, database: str = DATABASE) -> str:
        """For this cluster's life; holds the password."""
        password = self._password_file.read_text().strip()
        if self._run_dir is not None:
            directory = quote(str(self._run_dir), safe="/")
            return f"postgresql://{role}:{password}@/{database}?host={directory}&port={self._port}"
        return f"postgresql://{role}:{password}@127.0.0.1:{self._port}/{database}"

    @property
    def has_ended(self) -> bool:
        """Whether the server that was started is gone without having been stopped."""
        return self._process is not None and self._process.returncode is not None

    async def start(self) -> None:
        """Return once it takes connections and has its role and database; EmbeddedError says why it cannot."""
        await self._stop_what_was_left()
        if not (self._cluster / "PG_VERSION").exists():
            await self._init()
        self._check_version()
        if self._run_dir is None and self._process is None:  # one that ended comes back at its old address
            self._port = free_port()
        door = {
            "listen_addresses": "" if self._run_dir is not None else "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": str(self._run_dir) if self._run_dir is not None else "",
            "unix_socket_permissions": "0777",  # the password decides
        }
        options = [f"--{name}={value}" for name, value in (self._settings | door).items()]
        self._process = ServerProcess(
            "PostgreSQL",
            [str(self._bin / "postgres"), "-D", str(self._cluster), *options],
            self._user,
            self._log,
            stop_signal=signal.SIGINT,  # fast shutdown: roll back, checkpoint, end
        )
        await self._process.until(self._is_ready, at_most_seconds=START_SECONDS)
        await self._ensure_database()

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop(grace_seconds=STOP_SECONDS)
            self._process = None

    async def _init(self) -> None:
        """Make the cluster beside its place and rename it: an interrupted initdb leaves nothing half made."""
        new = self._cluster.with_name("postgres.new")
        shutil.rmtree(new, ignore_errors=True)
        if not self._password_file.exists():
            _write_private(self._password_file, secrets.token_hex(32))
        for_initdb = self._cluster.with_name("postgres.password")
        _write_private(for_initdb, self._password_file.read_text())
        self._user.own(for_initdb)
        new.mkdir(mode=0o700)
        self._user.own(new)
        try:
            await self._run(
                "initdb",
                *("-D", str(new), "-U", SUPERUSER, "--auth=scram-sha-256", f"--pwfile={for_initdb}"),
                # Byte order and no ICU: the same sorting on every machine and after every upgrade.
                *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
                *("--set=scram_iterations=1", "--no-instructions"),
                *(["--no-sync"] if self._settings["fsync"] == "off" else []),
            )
        finally:
            for_initdb.unlink()
        new.rename(self._cluster)
        _sync_directory(self._cluster.parent)

    async def _run(self, program: str, *arguments: str) -> None:
        process = await asyncio.create_subprocess_exec(
            str(self._bin / program),
            *arguments,
            cwd="/",
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            **self._user.popen_arguments(),
        )
        try:
            async with asyncio.timeout(INIT_SECONDS):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise EmbeddedError(f"{program} failed:\n{output.decode('utf-8', 'replace').strip()}")

    def _check_version(self) -> None:
        found = (self._cluster / "PG_VERSION").read_text().strip()
        # From the installation itself: 18.x reads clusters of 18 and of nothing else.
        config = (self._bin.parent / "share" / "postgres.bki").read_text().partition("\n")[0]
        wanted = config.rpartition(" ")[2].strip()
        if found != wanted:
            raise EmbeddedError(
                f"{self._cluster} was made by PostgreSQL {found}, and the one here is {wanted}: dump it with {found} "
                "and load it into a new data directory"
            )

    def _postmaster_lines(self) -> list[str]:
        try:
            return (self._cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def _is_ready(self) -> bool:
        lines = self._postmaster_lines()
        return (
            len(lines) > _STATUS_LINE and lines[_PID_LINE] == str(self.pid) and lines[_STATUS_LINE].strip() == "ready"
        )

    async def _stop_what_was_left(self) -> None:
        """End a server whose parent was killed, and remove the pid file of one that was killed itself.

        PostgreSQL clears the file by itself unless the pid in it belongs to some other living process of this user.
        """
        if not (lines := self._postmaster_lines()):
            return
        pid = int(lines[_PID_LINE])
        if self._is_our_postmaster(pid):
            os.kill(pid, signal.SIGINT)
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    while self._is_our_postmaster(pid):
                        await asyncio.sleep(0.05)
            except TimeoutError:
                raise EmbeddedError(f"an earlier PostgreSQL (pid {pid}) on {self._cluster} does not end") from None
        (self._cluster / "postmaster.pid").unlink(missing_ok=True)

    def _is_our_postmaster(self, pid: int) -> bool:
        try:
            return (
                Path(f"/proc/{pid}/cwd").readlink() == self._cluster.resolve()
                and Path(f"/proc/{pid}/exe").readlink().name == "postgres"
            )
        except OSError:
            return False

    async def _ensure_database(self) -> None:
        """The role and database of this project; safe to repeat after an interruption."""
        try:
            await self._make_database()
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            reason = str(error) or type(error).__name__
            raise EmbeddedError(f"PostgreSQL started and does not work: {reason} (more in {self._log})") from error

    async def _make_database(self) -> None:
        connection = await asyncpg.connect(self.dsn(role=SUPERUSER, database="postgres"), timeout=30)
        try:
            if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", OWNER):
                password = self._password_file.read_text().strip()
                await connection.execute(f"CREATE ROLE {OWNER} LOGIN PASSWORD '{password}'")
            if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE):
                await connection.execute(f"CREATE DATABASE {DATABASE} OWNER {OWNER}")
        finally:
            await connection.close()


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
