"""Connections to PostgreSQL: codecs, the epoch of every connection, bounded waits, no driver error outside `store`.

A call that runs is never cancelled: a cancel request could hit the next statement of the pool's next user. When it
takes too long, the connection is dropped and the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from blake3 import blake3

from protocol.errors import ErrorCode, MailboxError
from store import array_codecs
from store.driver_call import in_place
from store.faults import DRIVER_ERRORS, Fault, breaks_connection, classify, not_connected, to_mailbox_error
from store.sql_files import load_sql

T = TypeVar("T")

ACQUIRE_TIMEOUT_S: Final = 2.0
CONNECT_TIMEOUT_S: Final = 5.0
CALL_TIMEOUT_S: Final = 30.0
EPOCH_BYTES: Final = 8

# The hot calls bring arrays. Left to itself the planner takes a scan or a hash join for a large one, which was
# measured at fourteen times the cost of walking the index once per element.
PINNED_PLANS: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
}


class Connection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg is not typed
    """A connection that knows the epoch of the database it reached (DESIGN, "epoch")."""

    epoch: bytes = bytes(EPOCH_BYTES)
    may_write: bool = True
    warned: bool = False  # the server sent a WARNING since the flag was cleared

    def get_reset_query(self) -> str:
        """Nobody here leaves session state behind, so giving a connection back costs no round trip."""
        return ""


def _same(value: bytes) -> bytes:
    return value


def _warning(connection: Connection, message: Any) -> None:
    if getattr(message, "severity_en", None) == "WARNING":
        connection.warned = True


async def prepare(connection: Connection) -> None:
    """Runs once for every new connection, before anybody uses it."""
    await connection.set_type_codec("uuid", schema="pg_catalog", encoder=_same, decoder=bytes, format="binary")
    array_codecs.install(connection)
    await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    row = await connection.fetchrow(load_sql("postgres")["read_epoch"])
    if row is None:
        raise MailboxError(ErrorCode.UNAVAILABLE, "The database holds no instance yet: run `mailboxd init`.")
    connection.epoch = blake3(row["timeline"].encode("ascii") + row["restore_epoch"]).digest(EPOCH_BYTES)
    connection.may_write = bool(row["may_write"])


class Postgres:
    """The pool for everything but the hot calls, and the maker of the hot calls' own connections."""

    def __init__(self, dsn: str, *, pool_min: int = 1, pool_max: int = 8, application_name: str = "mailboxd") -> None:
        self._dsn = dsn
        self._pool_min = pool_min
        self._pool_max = pool_max
        self._settings = {"application_name": application_name, "timezone": "UTC"}
        self._pool: asyncpg.Pool | None = None
        self.epoch = bytes(EPOCH_BYTES)  # of the newest connection

    async def open(self) -> None:
        """Connect. MailboxError(UNAVAILABLE), whose message tells the operator why, when that does not work."""
        try:
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=self._pool_min,
                max_size=self._pool_max,
                init=self._init,
                connection_class=Connection,
                timeout=CONNECT_TIMEOUT_S,
                server_settings=self._settings,
                target_session_attrs="read-write",
            )
        except (*DRIVER_ERRORS, ValueError) as error:  # ValueError: a DSN that the driver cannot take
            raise not_connected(error, within_seconds=CONNECT_TIMEOUT_S) from error

    async def close(self) -> None:
        """Wait a moment for calls in flight, then drop what is left."""
        if self._pool is None:
            return
        pool, self._pool = self._pool, None
        try:
            await asyncio.wait_for(pool.close(), timeout=5.0)
        except TimeoutError:
            pool.terminate()

    async def _init(self, connection: Connection) -> None:
        await prepare(connection)
        self.epoch = connection.epoch

    def lane(self, name: str, *, lock_timeout_ms: int = 0) -> Lane:
        """A connection of its own with pinned plans, for one coalescer; it connects at the first call."""
        settings = self._settings | PINNED_PLANS | {"lock_timeout": str(lock_timeout_ms)}
        settings["application_name"] = f"{settings['application_name']} {name}"
        return Lane(self, self._dsn, settings)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[PoolConnectionProxy]:
        """A pooled connection within 2 s, or UNAVAILABLE; driver errors inside become MailboxErrors."""
        if self._pool is None:
            raise to_mailbox_error(Fault.UNREACHED)
        try:
            connection = await self._pool.acquire(timeout=ACQUIRE_TIMEOUT_S)
        except DRIVER_ERRORS as error:
            raise to_mailbox_error(Fault.UNREACHED) from error
        try:
            yield connection
        except DRIVER_ERRORS as error:
            if breaks_connection(error):
                _terminate(connection)
            raise to_mailbox_error(classify(error)) from error
        finally:
            await asyncio.shield(self._pool.release(connection))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PoolConnectionProxy]:
        """One READ COMMITTED transaction that may write; committed on leaving, rolled back on an exception."""
        async with self.connection() as connection:
            if not connection.may_write:
                raise to_mailbox_error(Fault.REFUSED)
            async with connection.transaction():
                yield connection

    async def fetch(self, query: str, *args: Any) -> Sequence[asyncpg.Record]:
        async with self.connection() as connection:
            return await uncancelled(connection, connection.fetch(query, *args))

    async def fetchrow(self, query: str, *args: Any) -> asyncpg.Record | None:
        async with self.connection() as connection:
            return await uncancelled(connection, connection.fetchrow(query, *args))

    async def fetchval(self, query: str, *args: Any) -> Any:
        async with self.connection() as connection:
            return await uncancelled(connection, connection.fetchval(query, *args))

    async def execute(self, query: str, *args: Any) -> str:
        async with self.connection() as connection:
            return str(await uncancelled(connection, connection.execute(query, *args)))


async def uncancelled(connection: Any, call: Awaitable[T], timeout_s: float = CALL_TIMEOUT_S) -> T:
    """The call's result. A cancelled or overdue caller drops the connection instead of cancelling the statement."""
    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait((task,), timeout=timeout_s)
    except asyncio.CancelledError:
        _abandon(connection, task)
        raise
    if not done:
        _abandon(connection, task)
        raise TimeoutError
    return task.result()


def _abandon(connection: Any, task: asyncio.Future[Any]) -> None:
    _terminate(connection)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the error is ours: seen


def _terminate(connection: Any) -> None:
    """Drop the connection, also one that the pool took back when it broke: its stand-in refuses every call."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


class Lane:
    """One connection for one kind of batch. Broken, it is thrown away and made anew at the next call."""

    def __init__(self, postgres: Postgres, dsn: str, settings: dict[str, str]) -> None:
        self._postgres = postgres
        self._dsn = dsn
        self._settings = settings
        self._connection: Connection | None = None

    @property
    def epoch(self) -> bytes:
        """The epoch of the connection in use."""
        return self._connection.epoch if self._connection is not None else self._postgres.epoch

    async def connected(self) -> Connection:
        """The open connection; raises the driver's or socket's error when there is none to be had."""
        if self._connection is None or self._connection.is_closed():
            connection = await asyncpg.connect(
                self._dsn,
                connection_class=Connection,
                timeout=CONNECT_TIMEOUT_S,
                server_settings=self._settings,
                target_session_attrs="read-write",
            )
            try:
                await self._postgres._init(connection)
            except BaseException:
                connection.terminate()
                raise
            # The sign of a synchronous wait that was cancelled: committed here, perhaps not on the standby.
            connection.add_log_listener(_warning)
            self._connection = connection
        return self._connection

    async def call(self, query: str, *args: Any) -> list[asyncpg.Record]:
        """Run one autocommit statement; raises LaneFault, never a driver error.

        Repeats at once, a bounded number of times, what failed without effect and may succeed now.
        """
        for attempt in range(3):
            try:
                connection = await self.connected()
            except MailboxError as error:
                raise LaneFault(Fault.UNREACHED) from error
            except DRIVER_ERRORS as error:
                raise LaneFault(Fault.UNREACHED) from error
            if not connection.may_write:
                self.drop()  # a restored database that waits for after-restore: ask again at the next call
                raise LaneFault(Fault.REFUSED)
            connection.warned = False
            try:
                rows = await in_place(connection.fetch(query, *args), CALL_TIMEOUT_S)
            except asyncio.CancelledError:
                self.drop()
                raise
            except DRIVER_ERRORS as error:
                if breaks_connection(error):
                    self.drop()
                fault = classify(error)
                if fault is Fault.AGAIN and attempt < 2:
                    continue
                raise LaneFault(Fault.REFUSED if fault is Fault.AGAIN else fault) from error
            if connection.warned:
                raise LaneFault(Fault.UNKNOWN)
            return list(rows)
        raise AssertionError("unreachable")

    def drop(self) -> None:
        """Throw the connection away; the next call makes a new one."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                await connection.close(timeout=2.0)
            except DRIVER_ERRORS:
                connection.terminate()


class LaneFault(Exception):
    """A batch did not go through; says what that means for its requests."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.name)
        self.fault = fault

    def error(self) -> MailboxError:
        return to_mailbox_error(self.fault)
