"""The books at the end of a run: counters equal rows, nothing waits any more, outbox and queue are at rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Final

import asyncpg
from redis.asyncio import Redis

from loadtest.faults.world import World

DUE_S_MAX: Final = 80.0  # for what is due now: a dead worker keeps its jobs for 45 s, its publications for 60 s
REST_S_MAX: Final = 90.0  # for what waits for the end of a lease
_POLL_S: Final = 0.1

# One statement, one snapshot: counters and rows of the same moment.
_DRIFT: Final = """
    SELECT count(*) FROM mailboxes m JOIN mailbox_owners o USING (device_id)
    LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE kind = 0) AS entries, count(*) FILTER (WHERE kind = 1) AS echoes,
               coalesce(sum(envelope_size) FILTER (WHERE kind = 0), 0) AS bytes
        FROM envelopes e WHERE e.recipient_device_id = m.device_id AND e.acked_at IS NULL) AS r ON true
    WHERE m.device_id = ANY($1::uuid[])
      AND (m.stored_entries - o.released_entries, m.stored_bytes - o.released_bytes,
           m.stored_echoes - o.released_echoes) IS DISTINCT FROM (r.entries, r.bytes, r.echoes)
"""
_WAITING: Final = """
    SELECT count(*) FROM envelopes
    WHERE recipient_device_id = ANY($1::uuid[]) AND acked_at IS NULL AND kind = 0 AND expires_at > mailboxd_now()
"""
_OPEN: Final = """
    SELECT state, count(*) AS n FROM outbox_events
    WHERE state <> 'completed' AND ($1 OR state <> 'pending' OR next_attempt_at <= mailboxd_now()) GROUP BY state
"""


async def check_books(world: World, devices: Iterable[bytes]) -> list[str]:
    """What is wrong with the database and the queue once all clients have settled; empty when nothing is.

    Intents that wait for the lease of a session may stay open: see `at_rest`.
    """
    problems: list[str] = []
    ids = [device.hex() for device in devices]
    connection = await world.connect()
    try:
        if waiting := await connection.fetchval(_WAITING, ids):
            problems.append(f"{waiting} entries wait un-acked although every client has settled")
        if open_ := await _when_finished(world, connection, DUE_S_MAX, leased=False):
            problems.append(f"due and not done: {open_}")
        if drifted := await connection.fetchval(_DRIFT, ids):
            problems.append(f"the counters of {drifted} mailboxes differ from their rows")
    finally:
        await connection.close()
    return problems


async def at_rest(world: World) -> list[str]:
    """What is still open when every device has been gone for longer than its lease: nothing may be."""
    connection = await world.connect()
    try:
        open_ = await _when_finished(world, connection, REST_S_MAX, leased=True)
    finally:
        await connection.close()
    return [f"outbox and queue did not come to rest: {open_}"] if open_ else []


async def server_time_ms(world: World) -> int:
    connection = await world.connect()
    try:
        return int(await connection.fetchval("SELECT extract(epoch FROM mailboxd_now()) * 1000"))
    finally:
        await connection.close()


async def _when_finished(
    world: World, connection: asyncpg.Connection, within_s: float, *, leased: bool
) -> dict[str, Any]:
    """Wait until nothing is open; what still is at the end of the time, or a dead letter at once."""
    end = time.monotonic() + within_s
    while (open_ := await _unfinished(world, connection, leased=leased)) and time.monotonic() < end:
        if "dead_letter" in open_:
            break
        await asyncio.sleep(_POLL_S)
    return open_


async def _unfinished(world: World, connection: asyncpg.Connection, *, leased: bool) -> dict[str, Any]:
    """Intents by state and messages in streams; `leased`: those, too, that wait for a later moment."""
    found: dict[str, Any] = {row["state"]: row["n"] for row in await connection.fetch(_OPEN, leased)}
    given = world.given.redis_url
    streams = 0
    for redis in [Redis.from_url(given, socket_timeout=5.0)] if given else world.owned_valkey.clients():
        async with redis:
            if (await redis.role())[0] != b"master":
                continue
            async for key in redis.scan_iter(match="mb:*:jobs", _type="stream"):
                streams += await redis.xlen(key)
    return {**found, "stream": streams} if streams else found
