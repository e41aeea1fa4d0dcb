"""Backfills: filling old rows in after an expanding migration, while everything runs.

A migration brings an SQL function
`backfill_NAME(after text, rows_max integer, OUT reached text, OUT rows_changed bigint)` that changes at most `rows_max`
rows beyond `after` (null: from the start), in the order of a key, and says how far it got; null means done. Each call
is one short transaction together with its progress, so an interrupted backfill goes on where it stopped, and the pace
leaves the database to its users.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import asyncpg
import structlog

from migrations.runner import MigrationError, turn

logger = structlog.get_logger(__name__)

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,50}")
ROWS_PER_BATCH: Final = 1_000
ROWS_PER_SECOND: Final = 5_000
LOCK_TIMEOUT_MS: Final = 500  # of a row that live traffic holds: give way, traffic goes first
LOCKED_PAUSE_SECONDS: Final = 1.0
LOCKED_MAX: Final = 300  # tries in a row for one batch
_ADVISORY_LOCK: Final = int.from_bytes(b"backfill", "big")  # not the migrations' own: those need not wait for hours

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS schema_backfills (
    name         text PRIMARY KEY,
    reached      text,
    rows_changed bigint NOT NULL DEFAULT 0,
    done         boolean NOT NULL DEFAULT false,
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""
_PROGRESS: Final = "SELECT reached, rows_changed, done FROM schema_backfills WHERE name = $1"
_ADVANCE: Final = """
UPDATE schema_backfills SET reached = $2::text, rows_changed = rows_changed + $3, done = $2::text IS NULL,
                            changed_at = clock_timestamp() WHERE name = $1
"""

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """How far one has got, over all its runs."""

    reached: str | None
    rows_changed: int
    done: bool


async def run_backfill(
    database: str | asyncpg.Connection,
    name: str,
    *,
    sleep: Sleep,
    rows_per_second: int = ROWS_PER_SECOND,
    rows_per_batch: int = ROWS_PER_BATCH,
    batches_max: int | None = None,
) -> BackfillProgress:
    """Go on with the backfill `name` to its end, or for `batches_max` batches. Repeating a finished one does nothing.

    `sleep` lets the time pass that the pace asks for (`Clock.sleep`). Backfills of one database take turns. Raises
    MigrationError when there is no such function, a batch fails, or a batch's locks are not to be had for minutes.
    """
    if not NAME.fullmatch(name) or rows_per_second < 1 or rows_per_batch < 1:
        raise MigrationError(f"{name!r} is no name of a backfill, or its pace is below 1")
    async with turn(database, _ADVISORY_LOCK) as connection:
        await connection.execute(f"SET lock_timeout TO '{LOCK_TIMEOUT_MS}ms'")
        await connection.execute(_TABLE)
        await connection.execute("INSERT INTO schema_backfills (name) VALUES ($1) ON CONFLICT DO NOTHING", name)
        progress = BackfillProgress(*await connection.fetchrow(_PROGRESS, name))
        batches = 0
        while not progress.done and (batches_max is None or batches < batches_max):
            if batches:
                await sleep(rows_per_batch / rows_per_second)
            progress = await _batch(connection, name, progress.reached, rows_per_batch, sleep)
            batches += 1
            logger.info("backfill batch", backfill=name, rows=progress.rows_changed, done=progress.done)
        return progress


async def _batch(
    connection: asyncpg.Connection, name: str, after: str | None, rows_max: int, sleep: Sleep
) -> BackfillProgress:
    """One batch and its progress in one transaction, tried again for as long as others hold its rows."""
    for _ in range(LOCKED_MAX):
        try:
            async with connection.transaction():
                call = f"SELECT reached, rows_changed FROM backfill_{name}($1::text, $2::integer)"  # noqa: S608 - NAME
                row = await connection.fetchrow(call, after, rows_max)
                await connection.execute(_ADVANCE, name, row["reached"], row["rows_changed"])
                return BackfillProgress(*await connection.fetchrow(_PROGRESS, name))
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
            await sleep(LOCKED_PAUSE_SECONDS)
        except asyncpg.UndefinedFunctionError:
            raise MigrationError(f"there is no backfill {name} in this schema") from None
        except (OSError, asyncpg.InterfaceError, asyncpg.PostgresError) as error:
            raise MigrationError(f"backfill {name}: {type(error).__name__}: {error}; repeated, it goes on") from error
    raise MigrationError(f"backfill {name}: its rows were locked {LOCKED_MAX} times in a row; repeated, it goes on")
