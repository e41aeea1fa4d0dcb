"""Quotas while a run goes on: one statement every other second looks at all mailboxes.

A breach that is gone again when a run ends would be seen by nobody who looks only then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import asyncpg

from loadtest.faults.world import World

EVERY_S: Final = 2.0
STATEMENT_MS_MAX: Final = 3_000  # a look that waits for a lock gives up
_CUT_OFF_S: Final = 5.0  # and for a database that stands still

# InternalClientError: what a call that was cut off may say instead.
_AWAY: Final = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

# The rows themselves, not only the counters that the server goes by: a counter that is too low hides a breach.
_OVER: Final = """
    WITH bounds AS (
        SELECT (policy ->> 'pending_entries_max')::bigint AS entries, (policy ->> 'pending_bytes_max')::bigint AS bytes
        FROM instances),
    counted AS (
        SELECT m.device_id FROM mailboxes m JOIN mailbox_owners o USING (device_id), bounds b
        WHERE m.stored_entries - o.released_entries > b.entries OR m.stored_bytes - o.released_bytes > b.bytes),
    held AS (
        SELECT e.recipient_device_id FROM envelopes e, bounds b WHERE e.acked_at IS NULL AND e.kind = 0
        GROUP BY e.recipient_device_id, b.entries, b.bytes
        HAVING count(*) > b.entries OR sum(e.envelope_size) > b.bytes)
    SELECT count(*) FROM (SELECT device_id FROM counted UNION SELECT recipient_device_id FROM held) AS over
"""


class QuotaWatch:
    """What was seen: how often somebody could look, and the most mailboxes that were over their quota at once."""

    def __init__(self, world: World) -> None:
        self.looks = 0
        self.most = 0
        self._world = world

    async def look(self) -> None:
        """Once, now. Raises what the driver raises where the database does not answer in its time."""
        connection = await self._world.connect()
        try:
            async with asyncio.timeout(_CUT_OFF_S):
                await connection.execute(f"SET statement_timeout = {STATEMENT_MS_MAX}")
                self.most = max(self.most, int(await connection.fetchval(_OVER)))
        finally:
            connection.terminate()
        self.looks += 1

    async def go_on(self) -> None:
        """Look until cancelled, whatever becomes of the database meanwhile."""
        while True:
            with suppress(*_AWAY):
                await self.look()
            await asyncio.sleep(EVERY_S)

    def problems(self) -> list[str]:
        """A breach, and that nobody could look."""
        if self.most:
            return [f"{self.most} mailboxes held more than their quota at once"]
        return [] if self.looks else ["no look at the quotas succeeded"]


@asynccontextmanager
async def quotas_watched(world: World) -> AsyncIterator[QuotaWatch]:
    """Look again and again over the block; where there is no database to see, nothing is looked at."""
    watch = QuotaWatch(world)
    if not world.sees_the_database:
        yield watch
        return
    watching = asyncio.create_task(watch.go_on(), name="watch-quotas")
    try:
        yield watch
    finally:
        failed = watching.done()
        watching.cancel()
        await asyncio.wait((watching,))
    if failed:
        watching.result()
