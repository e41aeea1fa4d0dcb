"""A database that stands still: calls end in time, as UNAVAILABLE and not as a bug, and the pool goes on."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from protocol.errors import ErrorCode, MailboxError, Outcome
from store.postgres import LaneFault, Postgres, uncancelled
from tests.support.waiting import eventually


async def test_an_overdue_call_is_unavailable_with_an_unknown_outcome(database: str) -> None:
    postgres = Postgres(database, pool_max=1)
    await postgres.open()
    try:
        with pytest.raises(MailboxError) as refused:
            async with postgres.connection() as connection:
                await uncancelled(connection, connection.fetch("SELECT pg_sleep(10)"), timeout_s=0.1)
        assert (refused.value.code, refused.value.outcome) == (ErrorCode.UNAVAILABLE, Outcome.UNKNOWN)
        assert await postgres.fetchval("SELECT 1") == 1
    finally:
        await postgres.close()


async def test_a_connection_that_broke_under_its_user_is_unavailable(database: str) -> None:
    postgres = Postgres(database, pool_max=1)
    await postgres.open()
    try:
        with pytest.raises(MailboxError) as refused:
            async with postgres.connection() as connection:
                connection.terminate()
                raise asyncpg.ConnectionDoesNotExistError("it broke")
        assert refused.value.code is ErrorCode.UNAVAILABLE
        assert await postgres.fetchval("SELECT 1") == 1
    finally:
        await postgres.close()


async def _statements_of(postgres: Postgres, text: str) -> list[str]:
    rows = await postgres.fetch(
        "SELECT state FROM pg_stat_activity"
        " WHERE datname = current_database() AND query LIKE $1 AND pid <> pg_backend_pid()",
        f"%{text}%",
    )
    return [row["state"] for row in rows]


async def test_a_cancelled_call_of_a_lane_goes_on_in_the_database_and_its_connection_is_dropped(database: str) -> None:
    """A cancel request could hit the next statement; whoever was cancelled does not know the outcome anyway."""
    postgres = Postgres(database, pool_max=1)
    await postgres.open()
    lane = postgres.lane("test")
    try:
        before = await lane.connected()
        call = asyncio.ensure_future(lane.call("SELECT pg_sleep(2), 'abandoned'"))

        async def runs() -> bool:
            return await _statements_of(postgres, "abandoned") == ["active"]

        await eventually(runs)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert before.is_closed()
        assert [tuple(row) for row in await lane.call("SELECT 1")] == [(1,)]
        assert await runs()
    finally:
        await lane.close()
        await postgres.close()


async def test_an_overdue_call_of_a_lane_is_unknown_and_the_next_one_has_a_new_connection(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres = Postgres(database, pool_max=1)
    await postgres.open()
    lane = postgres.lane("test")
    try:
        before = await lane.connected()
        monkeypatch.setattr("store.postgres.CALL_TIMEOUT_S", 0.1)
        with pytest.raises(LaneFault) as failed:
            await lane.call("SELECT pg_sleep(10)")
        assert failed.value.error().outcome is Outcome.UNKNOWN
        monkeypatch.undo()
        assert [tuple(row) for row in await lane.call("SELECT 1")] == [(1,)]
        assert before.is_closed()
    finally:
        await lane.close()
        await postgres.close()
