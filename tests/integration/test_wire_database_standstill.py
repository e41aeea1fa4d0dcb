"""A database that stands still: calls end in time, as UNAVAILABLE and not as a bug, and the pool goes on."""

from __future__ import annotations

import asyncpg
import pytest

from protocol.errors import ErrorCode, MailboxError, Outcome
from store.postgres import Postgres, uncancelled


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
