"""The books at the end of a run: counters equal rows, nothing waits any more, nothing is left open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import asyncpg
from redis.asyncio import Redis

from loadtest.faults.world import Role, World
from loadtest.processes import tree

DUE_S_MAX: Final = 80.0  # for what is due now: a dead worker keeps its jobs for 45 s, its publications for 60 s
REST_S_MAX: Final = 90.0  # for what waits for the end of a lease
LEAVE_S_MAX: Final = 20.0
_POLL_S: Final = 0.1
_LANES: Final = 8  # connections a process holds beside its pool, at most
_POOL_MAX: Final = 10  # postgres_pool_max by default
_DESCRIPTORS_SPARE: Final = 24  # of a process that was idle when it was first counted
_TCP: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED, _CLOSE_WAIT = "01", "08"

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


class Descriptors:
    """The open files of gateways and workers, from when a world was fresh: they may not grow from fault to fault."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def left_behind(self) -> list[str]:
        """What is still open of clients that are gone, and connections above the pools; waits a moment for the last."""
        end = time.monotonic() + LEAVE_S_MAX
        while (problems := await self._problems()) and time.monotonic() < end:
            await asyncio.sleep(_POLL_S)
        return problems

    async def _problems(self) -> list[str]:
        problems = []
        for role in self._world.roles:
            open_ = _sockets_on(role.port) if role in self._world.gateways else 0
            if open_:
                problems.append(f"{role.name} still holds {open_} connections of clients that are gone")
            if (files := _files(role)) > _POOL_MAX + _LANES + _DESCRIPTORS_SPARE + 8:
                problems.append(f"{role.name} has {files} open files with no client connected")
        if not self._world.given.postgres_dsn:
            problems += await _connections_over_the_pool(self._world)
        return problems


async def connections_by_process(world: World) -> dict[str, int]:
    """PostgreSQL's connections, by the name that the processes give them."""
    connection = await world.connect()
    try:
        rows = await connection.fetch(
            "SELECT application_name AS name, count(*) AS n FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND application_name LIKE 'mailboxd%' GROUP BY 1"
        )
    finally:
        await connection.close()
    return {row["name"]: row["n"] for row in rows}


async def _connections_over_the_pool(world: World) -> list[str]:
    total = sum((await connections_by_process(world)).values())
    bound = (_POOL_MAX + _LANES) * len(world.roles)
    return [f"PostgreSQL has {total} connections of mailboxd, above {bound}"] if total > bound else []


def _sockets_on(port: int) -> int:
    """Accepted connections of a listening port that are open, or that the server forgot to close."""
    count = 0
    for table in _TCP:
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] in (_ESTABLISHED, _CLOSE_WAIT):
                count += 1
    return count


def _files(role: Role) -> int:
    try:
        return len(list(Path(f"/proc/{role.pid}/fd").iterdir())) if role.process.is_running else 0
    except OSError:
        return 0


def still_alive(pids: Iterable[int]) -> Sequence[int]:
    """Which of these processes (or their children) have not ended."""
    return [pid for pid in pids if tree(pid)]
