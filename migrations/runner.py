"""Applies and rolls back migrations: one runner at a time, each step whole or not at all, changed files refused.

A step in a transaction is committed together with its record in `schema_migrations`, so an interruption leaves it done
or not begun. A step outside of one is recorded as begun first and is simply repeated after an interruption.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import asyncpg
import structlog

from migrations.files import Migration, read_all

logger = structlog.get_logger(__name__)

LOCK_TIMEOUT_SECONDS: Final = 5  # of each lock that a step takes: longer, and it would block the traffic behind it
TURN_SECONDS: Final = 60  # how long to wait for another runner
CONNECT_SECONDS: Final = 10
# Any number that nothing else in the database uses; the first eight bytes of "mailboxd" fit.
MIGRATIONS_LOCK: Final = int.from_bytes(b"mailboxd", "big")

_SET_UP: Final = """
SET search_path TO public, pg_temp;
SET statement_timeout TO 0;
SET idle_in_transaction_session_timeout TO 0;
SET client_min_messages TO warning;
"""
_PUT_BACK: Final = """
RESET search_path; RESET lock_timeout; RESET statement_timeout; RESET idle_in_transaction_session_timeout;
RESET client_min_messages;
"""
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version      text PRIMARY KEY,
    name         text NOT NULL,
    content_hash text NOT NULL,
    state        text NOT NULL CHECK (state IN ('applying', 'applied', 'rolling_back')),
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""
_RECORD: Final = """
INSERT INTO schema_migrations (version, name, content_hash, state) VALUES ($1, $2, $3, $4)
ON CONFLICT (version) DO UPDATE SET state = excluded.state, content_hash = excluded.content_hash,
                                    name = excluded.name, changed_at = clock_timestamp()
"""


class MigrationError(Exception):
    """The schema is as it was before the step that failed; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Step:
    """One migration and where this database stands with it."""

    version: str
    name: str
    summary: str
    state: str  # pending, applying, applied, rolling_back; unknown: in the database, not in this release
    changed: bool  # the file is not the one that was applied


async def apply(
    database: str | asyncpg.Connection, target: str | None = None, *, migrations: Sequence[Migration] | None = None
) -> list[str]:
    """Bring the schema up to `target` (the newest without one) and return the versions that were applied.

    `database` is a DSN or a connection outside of a transaction. Repeating it changes nothing. Raises MigrationError:
    a changed or unknown applied migration, a lock that was not to be had in time, a step that failed.
    """
    known = read_all() if migrations is None else migrations
    _require_known(target, known)
    done = []
    async with turn(database) as connection:
        recorded = await _recorded(connection, known)
        for migration in known:
            if target is not None and migration.version > target:
                break
            if recorded.get(migration.version) == "applied":
                continue
            if recorded.get(migration.version) == "rolling_back":
                await _run(connection, migration, migration.rollback_sql, "rolling_back", None)
            await _run(connection, migration, migration.apply_sql, "applying", "applied")
            done.append(migration.version)
    return done


async def rollback(
    database: str | asyncpg.Connection,
    *,
    steps: int | None = None,
    target: str | None = None,
    migrations: Sequence[Migration] | None = None,
) -> list[str]:
    """Undo the newest `steps` migrations, or all after `target` ("none" for every one); return the versions undone.

    Rolling back drops what the step made, data included. Raises MigrationError as `apply` does.
    """
    if (steps is None) == (target is None):
        raise MigrationError("say either how many steps to roll back or to which version")
    known = read_all() if migrations is None else migrations
    if target != "none":
        _require_known(target, known)
    undone = []
    async with turn(database) as connection:
        recorded = await _recorded(connection, known)
        standing = [migration for migration in reversed(known) if migration.version in recorded]
        if steps is not None:
            wanted = standing[:steps]
        else:
            wanted = [migration for migration in standing if target == "none" or migration.version > str(target)]
        for migration in wanted:
            await _run(connection, migration, migration.rollback_sql, "rolling_back", None)
            undone.append(migration.version)
    return undone


async def status(
    database: str | asyncpg.Connection, *, migrations: Sequence[Migration] | None = None
) -> tuple[Step, ...]:
    """Every migration of this release and of the database, in order. Takes no lock and changes nothing."""
    known = {migration.version: migration for migration in (read_all() if migrations is None else migrations)}
    async with _connected(database) as connection:
        rows = {row["version"]: row for row in await _read_records(connection)}
    steps = []
    for version in sorted(known.keys() | rows.keys()):
        migration, row = known.get(version), rows.get(version)
        if migration is None:
            steps.append(Step(version, rows[version]["name"], "", "unknown", changed=False))
        else:
            changed = row is not None and row["content_hash"] != migration.content_hash
            state = row["state"] if row is not None else "pending"
            steps.append(Step(version, migration.name, migration.summary, state, changed))
    return tuple(steps)


async def is_current(database: str | asyncpg.Connection) -> bool:
    """Whether this release's migrations are all applied; newer ones may be there as well (a rolling upgrade)."""
    return all(step.state in ("applied", "unknown") for step in await status(database))


def _require_known(target: str | None, known: Sequence[Migration]) -> None:
    if target is not None and target not in {migration.version for migration in known}:
        raise MigrationError(f"there is no migration {target}")


async def _recorded(connection: asyncpg.Connection, known: Sequence[Migration]) -> dict[str, str]:
    """State by version, once it is sure that what is applied is what the files say."""
    hashes = {migration.version: migration.content_hash for migration in known}
    recorded: dict[str, str] = {}
    for row in await _read_records(connection):
        if row["version"] not in hashes:
            raise MigrationError(f"{row['name']} is applied and not part of this release: use a release that knows it")
        # An interrupted step is run again from the file, so only a finished one pins its content.
        if row["state"] == "applied" and row["content_hash"] != hashes[row["version"]]:
            raise MigrationError(
                f"{row['name']} was changed after it was applied: take the original file, and put the change into "
                "a new migration"
            )
        recorded[row["version"]] = row["state"]
    return recorded


async def _read_records(connection: asyncpg.Connection) -> list[Any]:
    if await connection.fetchval("SELECT to_regclass('public.schema_migrations') IS NULL"):
        return []
    return list(
        await connection.fetch(
            "SELECT version, name, content_hash, state FROM public.schema_migrations ORDER BY version"
        )
    )


async def _run(connection: asyncpg.Connection, migration: Migration, sql: str, begun: str, done: str | None) -> None:
    """Run one half and record it: as `done`, or as not there when that is None."""
    try:
        if migration.in_transaction:
            async with connection.transaction():
                # The simple protocol: the text goes as it is, PostgreSQL alone takes it apart.
                await connection.execute(sql)
                await _record(connection, migration, done)
        else:
            await _record(connection, migration, begun)
            for statement in migration.statements(sql):
                await connection.execute(statement)
            await _record(connection, migration, done)
    except asyncpg.LockNotAvailableError:
        raise MigrationError(
            f"{migration.name}: no lock within {LOCK_TIMEOUT_SECONDS} s, and this step changed nothing: "
            "find the long transaction (pg_stat_activity) and repeat"
        ) from None
    except (
        OSError,
        asyncpg.InterfaceError,
        asyncpg.PostgresConnectionError,
        asyncpg.OperatorInterventionError,
    ) as error:
        raise MigrationError(f"{migration.name}: the connection was lost; repeat it, that is safe") from error
    except asyncpg.PostgresError as error:
        raise MigrationError(f"{migration.name}: {error.sqlstate} {error}") from error
    logger.info("migration step", migration=migration.name, state=done or "rolled back")


async def _record(connection: asyncpg.Connection, migration: Migration, state: str | None) -> None:
    if state is None:
        await connection.execute("DELETE FROM schema_migrations WHERE version = $1", migration.version)
    else:
        await connection.execute(_RECORD, migration.version, migration.name, migration.content_hash, state)


@asynccontextmanager
async def turn(
    database: str | asyncpg.Connection, advisory_lock: int = MIGRATIONS_LOCK
) -> AsyncIterator[asyncpg.Connection]:
    """A connection that is the only runner of its database; released with the connection if this process dies."""
    async with _connected(database) as connection:
        await connection.execute(_SET_UP)
        try:
            await connection.execute(f"SET lock_timeout TO '{TURN_SECONDS}s'")
            await connection.fetchval("SELECT pg_advisory_lock($1)", advisory_lock)
        except asyncpg.LockNotAvailableError:
            raise MigrationError(f"another migration has been running for more than {TURN_SECONDS} s") from None
        try:
            await connection.execute(f"SET lock_timeout TO '{LOCK_TIMEOUT_SECONDS}s'")
            await connection.execute(_TABLE)
            yield connection
        finally:
            if not connection.is_closed():
                await connection.fetchval("SELECT pg_advisory_unlock($1)", advisory_lock)
                await connection.execute(_PUT_BACK)


@asynccontextmanager
async def _connected(database: str | asyncpg.Connection) -> AsyncIterator[asyncpg.Connection]:
    if not isinstance(database, str):
        yield database
        return
    try:
        connection = await asyncpg.connect(
            database,
            timeout=CONNECT_SECONDS,
            server_settings={"application_name": "mailboxd migrate"},
            target_session_attrs="read-write",
        )
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as error:
        raise MigrationError(f"cannot connect to the database: {str(error) or type(error).__name__}") from error
    try:
        yield connection
        await connection.close()
    finally:
        # Failed or cancelled in the middle, the server must not go on by itself: dropping the connection rolls back.
        connection.terminate()
