"""Mail that lies there, by the million: put into the database set by set, as true as if it had been sent.

Positions, counters, head, wake intent and every index say what submits would have made them say; only the idempotency
records are left out, which are gone two hours after a SEND. A test compares with the repair's own look at the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from shutil import disk_usage
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from protocol.ids import DeviceId

ROWS_A_TRANSACTION: Final = 100_000
# A page is filled to the half (fillfactor 50), and what does not fit whole leaves a gap: three times the body at most,
# row head and index entries on top. WAL up to max_wal_size comes beside it.
BODY_TIMES: Final = 3
ROW_AND_INDEX_BYTES: Final = 300
WAL_BYTES: Final = 5 * 2**30


class NoRoom(Exception):
    """The disk does not hold what was asked for; the message says how much is missing."""


def room_needed(envelopes: int, payload_bytes: int) -> int:
    """Bytes of disk for so many more envelopes."""
    return envelopes * (BODY_TIMES * payload_bytes + ROW_AND_INDEX_BYTES) + WAL_BYTES


def check_room(data_dir: Path, envelopes: int, payload_bytes: int) -> None:
    """NoRoom if that many more envelopes do not fit beside `data_dir`."""
    needed, free = room_needed(envelopes, payload_bytes), disk_usage(data_dir).free
    if needed > free:
        raise NoRoom(f"{envelopes:,} envelopes need {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free")


async def silent_mailboxes(connection: asyncpg.Connection[Any], count: int) -> None:
    """Mailboxes of devices that never come, for `spread`. They count as online for a day: nobody is woken."""
    async with connection.transaction():
        await connection.execute("CREATE TABLE IF NOT EXISTS bench_silent (device_id uuid PRIMARY KEY)")
        await connection.execute("INSERT INTO bench_silent SELECT gen_random_uuid() FROM generate_series(1, $1)", count)
        await connection.execute(
            "INSERT INTO mailboxes (device_id, identity_id) SELECT device_id, device_id FROM bench_silent"
            " ON CONFLICT DO NOTHING"
        )
        await connection.execute(
            "INSERT INTO mailbox_owners (device_id, online_until)"
            " SELECT device_id, mailboxd_now() + interval '1 day' FROM bench_silent ON CONFLICT DO NOTHING"
        )


async def spread(
    connection: asyncpg.Connection[Any], envelopes: int, payload_bytes: int, *, ends_at: datetime | None = None
) -> None:
    """Put `envelopes` into the silent mailboxes, evenly and in turn, as many senders would.

    They live for seven days, or until `ends_at`.
    """
    silent = [row["device_id"] for row in await connection.fetch("SELECT device_id FROM bench_silent")]
    each, rest = divmod(envelopes, len(silent))
    # A slice of devices with all its envelopes: a transaction touches each mailbox once.
    step = max(1, ROWS_A_TRANSACTION // max(1, each))
    for at in range(0, len(silent) if each else 0, step):
        await _put(connection, silent[at : at + step], each, payload_bytes, ends_at)
    if rest:
        await _put(connection, silent[:rest], 1, payload_bytes, ends_at)


async def put(connection: asyncpg.Connection[Any], devices: Sequence[DeviceId], each: int, payload_bytes: int) -> None:
    """Put `each` envelopes into the mailbox of each of `devices`, whose mailboxes exist."""
    await _put(connection, [device.hex() for device in devices], each, payload_bytes)


async def settle(dsn: str) -> None:
    """What a database that got this mail over days has behind it: vacuum, statistics, a checkpoint.

    Freezing, too: else PostgreSQL's next vacuums do it at once for all that was filled in a minute, beside what is
    measured, where mail that came over days is frozen as it comes.
    """
    connection = await asyncpg.connect(superuser(dsn))
    try:
        await connection.execute("VACUUM (FREEZE, ANALYZE) envelopes, mailboxes, mailbox_owners, outbox_events")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()


def superuser(dsn: str) -> str:
    """The address of an embedded cluster's superuser, who has the same password as the owner."""
    parts = urlsplit(dsn)
    credentials, _, place = parts.netloc.rpartition("@")
    password = credentials.partition(":")[2]
    return urlunsplit(parts._replace(netloc=f"postgres:{password}@{place}"))


async def _put(
    connection: asyncpg.Connection[Any],
    devices: Sequence[object],
    each: int,
    payload_bytes: int,
    ends_at: datetime | None = None,
) -> None:
    async with connection.transaction():
        # In submit's order: mailbox, envelopes, counters, outbox. Positions are microseconds and lie above the head.
        await connection.execute(_LOCK, devices)
        await connection.execute(_INSERT, devices, each, payload_bytes, ends_at)
        await connection.execute(_COUNT, devices, each, payload_bytes)
        await connection.execute(_INTEND, devices)


_LOCK: Final = """
SELECT FROM mailboxes WHERE device_id = ANY ($1::uuid[]) ORDER BY device_id FOR NO KEY UPDATE
"""
_INSERT: Final = """
INSERT INTO envelopes (recipient_device_id, message_id, position, accepted_at, expires_at, envelope_size,
                       protocol_version, kind, envelope_bytes)
SELECT b.device_id, gen_random_uuid(), p.position, t.at, coalesce($4, t.at + interval '7 days'), $3, 1, 0, body.bytes
  FROM generate_series(1, $2::integer) AS n(n)
 CROSS JOIN (SELECT device_id, greatest(head_position, (extract(epoch FROM mailboxd_now()) * 1000000)::bigint) AS base
               FROM mailboxes WHERE device_id = ANY ($1::uuid[])) AS b
 CROSS JOIN LATERAL (SELECT b.base + n.n AS position) AS p
 CROSS JOIN LATERAL (SELECT to_timestamp(p.position / 1000 / 1000.0) AS at) AS t
 CROSS JOIN (SELECT decode(repeat('5a', $3::integer), 'hex') AS bytes) AS body
 ORDER BY n.n, b.device_id
"""
_COUNT: Final = """
UPDATE mailboxes b
   SET head_position = s.head, wake_position = s.head, wake_open = true,
       stored_entries = b.stored_entries + $2::bigint, stored_bytes = b.stored_bytes + $2::bigint * $3::bigint
  FROM (SELECT d.id, (SELECT max(e.position) FROM envelopes e WHERE e.recipient_device_id = d.id) AS head
          FROM unnest($1::uuid[]) AS d(id)) AS s
 WHERE b.device_id = s.id
"""
_INTEND: Final = """
INSERT INTO outbox_events AS x (event_id, aggregate_ref, task_type, next_attempt_at, created_at, updated_at)
SELECT gen_random_uuid(), o.device_id, 'wake_device', greatest(t.now, o.online_until), t.now, t.now
  FROM (SELECT mailboxd_now() AS now) AS t, mailbox_owners o WHERE o.device_id = ANY ($1::uuid[]) ORDER BY o.device_id
    ON CONFLICT (aggregate_ref, task_type) WHERE state <> 'dead_letter' DO UPDATE
   SET state = 'pending', generation = x.generation + 1, next_attempt_at = excluded.next_attempt_at,
       updated_at = excluded.updated_at
 WHERE x.state = 'completed'
"""
