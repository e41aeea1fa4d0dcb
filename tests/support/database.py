"""A plain connection that speaks the store's codecs, and a clock that stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from store.postgres import PINNED_PLANS, Connection, prepare


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """As a lane of the store connects: ids are bytes, plans are pinned."""
    connection = await asyncpg.connect(dsn, connection_class=Connection, server_settings=PINNED_PLANS)
    try:
        await prepare(connection)
        yield connection
    finally:
        await connection.close()


async def freeze_clock(connection: asyncpg.Connection, now_us: int) -> None:
    """Every rule of this database sees this instant, for all connections, until it is set again."""
    await connection.execute(
        "CREATE OR REPLACE FUNCTION mailboxd_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE "
        f"AS $$ SELECT timestamptz 'epoch' + interval '{int(now_us)} microseconds' $$"
    )
