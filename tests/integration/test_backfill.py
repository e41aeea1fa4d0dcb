"""Backfills: paced, resumable, and live traffic goes first (seed 001, section 5)."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from migrations.backfill import run_backfill
from migrations.runner import MigrationError
from tests.support.waiting import eventually

ROWS = 2_500
SCHEMA = f"""
CREATE TABLE t (id bigint PRIMARY KEY, a text, b text);
INSERT INTO t SELECT i, 'x' FROM generate_series(1, {ROWS}) AS s(i);
CREATE FUNCTION backfill_b(after text, rows_max integer, OUT reached text, OUT rows_changed bigint)
LANGUAGE plpgsql AS $$
BEGIN
    WITH batch AS (SELECT id FROM t WHERE id > coalesce(after, '0')::bigint ORDER BY id LIMIT rows_max FOR UPDATE),
         changed AS (UPDATE t SET b = coalesce(b, '') || a FROM batch WHERE t.id = batch.id RETURNING t.id)
    SELECT max(id)::text, count(*) INTO reached, rows_changed FROM changed;
END
$$;
"""


class Pauses:
    """The pace, without its time."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


async def ask(dsn: str, sql: str) -> Any:
    connection = await asyncpg.connect(dsn)
    try:
        if sql is SCHEMA:
            return await connection.execute(sql)
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def test_adr001_5_every_row_is_filled_once_at_the_pace_asked_for(empty_database: str, pauses: Pauses) -> None:
    await ask(empty_database, SCHEMA)
    done = await run_backfill(empty_database, "b", sleep=pauses, rows_per_second=2_000, rows_per_batch=1_000)
    assert (done.rows_changed, done.done) == (ROWS, True)
    assert await ask(empty_database, "SELECT count(*) FROM t WHERE b = 'x'") == ROWS
    assert pauses.taken == [0.5] * 3


async def test_adr001_5_interrupted_it_goes_on_where_it_stopped(empty_database: str, pauses: Pauses) -> None:
    await ask(empty_database, SCHEMA)
    some = await run_backfill(empty_database, "b", sleep=pauses, batches_max=2)
    assert (some.reached, some.rows_changed, some.done) == ("2000", 2_000, False)
    await run_backfill(empty_database, "b", sleep=pauses)
    assert await ask(empty_database, "SELECT count(*) FROM t WHERE b = 'x'") == ROWS
    again = await run_backfill(empty_database, "b", sleep=pauses)
    assert (again.rows_changed, again.done) == (ROWS, True)
    assert await ask(empty_database, "SELECT count(*) FROM t WHERE b = 'x'") == ROWS


async def test_a_row_that_traffic_holds_is_waited_for_without_holding_others(
    empty_database: str, pauses: Pauses
) -> None:
    await ask(empty_database, SCHEMA)
    holder = await asyncpg.connect(empty_database)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("UPDATE t SET a = 'y' WHERE id = 1500")
    running = asyncio.create_task(run_backfill(empty_database, "b", sleep=pauses))
    await eventually(lambda: 1.0 in pauses.taken, what="it gave way once")
    await asyncio.wait_for(ask(empty_database, "UPDATE t SET a = 'z' WHERE id = 1501 RETURNING 1"), 30)
    await transaction.commit()
    await holder.close()
    assert (await running).done
    assert await ask(empty_database, "SELECT string_agg(b, '' ORDER BY id) FROM t WHERE id IN (1500, 1501)") == "yz"


async def test_a_cancelled_one_holds_nothing(empty_database: str, pauses: Pauses) -> None:
    await ask(empty_database, SCHEMA)
    standing = asyncio.Event()

    async def stand(_seconds: float) -> None:
        standing.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(run_backfill(empty_database, "b", sleep=stand))
    await asyncio.wait_for(standing.wait(), 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await asyncio.wait_for(run_backfill(empty_database, "b", sleep=pauses), 60)).done


@pytest.mark.parametrize("name", ["unknown", "b(null, 1); DROP TABLE t; --", ""])
async def test_an_unknown_name_is_refused(empty_database: str, pauses: Pauses, name: str) -> None:
    await ask(empty_database, SCHEMA)
    with pytest.raises(MigrationError):
        await run_backfill(empty_database, name, sleep=pauses)
    assert await ask(empty_database, "SELECT count(*) FROM t WHERE b IS NULL") == ROWS
