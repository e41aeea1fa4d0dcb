"""Mailboxes straight in the database, for the scenarios that measure it without a gateway in front.

Nobody receives there, so what became of the messages is asked of the rows.
"""

from __future__ import annotations

import os
from typing import Final

import asyncpg

from protocol.ids import DeviceId


async def create(dsn: str, count: int) -> list[DeviceId]:
    """Make `count` active mailboxes, numbered in bench_devices. Their devices count as online: nobody is woken."""
    devices = [DeviceId(os.urandom(16)) for _ in range(count)]
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute("DROP TABLE IF EXISTS bench_devices")
            await connection.execute("CREATE TABLE bench_devices (n integer PRIMARY KEY, device_id uuid NOT NULL)")
            await connection.execute(
                "INSERT INTO bench_devices SELECT n, id::uuid FROM unnest($1::text[]) WITH ORDINALITY AS d(id, n)",
                [device.hex() for device in devices],
            )
            await connection.execute(
                "INSERT INTO mailboxes (device_id, identity_id) SELECT device_id, device_id FROM bench_devices"
            )
            await connection.execute(
                "INSERT INTO mailbox_owners (device_id, online_until)"
                " SELECT device_id, mailboxd_now() + interval '1 day' FROM bench_devices"
            )
        await connection.execute("ANALYZE bench_devices, mailboxes, mailbox_owners")
    finally:
        await connection.close()
    return devices


async def check(dsn: str, *, confirmed: int, acked: int, in_order: bool) -> dict[str, int]:
    """Whether the mailboxes of bench_devices hold what was confirmed and acked, and nothing else; {} if all is right.

    `in_order`: every id is eight bytes of its sender and eight that count up, so the order of positions is known, too.
    """
    connection = await asyncpg.connect(dsn)
    try:
        row = await connection.fetchrow(_CHECK)
        behind = await connection.fetchval(_BEHIND) if in_order else 0
    finally:
        await connection.close()
    found = {
        "confirmed_but_not_stored": confirmed - row["stored"],
        "acked_but_not_released": acked - row["released"],
        "mailboxes_whose_rows_differ_from_their_counters": row["miscounted"],
        "mailboxes_whose_head_is_not_their_last_position": row["misheaded"],
        "out_of_order": behind,
    }
    return {problem: count for problem, count in found.items() if count}


# The counters only rise, and count what clean-up has deleted since; rows that are not acked are all there.
_CHECK: Final = """
WITH held AS (
    SELECT e.recipient_device_id AS id, count(*) AS rows, count(*) FILTER (WHERE e.acked_at IS NULL) AS waiting,
           max(e.position) AS last
      FROM envelopes e JOIN bench_devices d ON d.device_id = e.recipient_device_id GROUP BY e.recipient_device_id
)
SELECT sum(b.stored_entries)::bigint AS stored, sum(o.released_entries)::bigint AS released,
       count(*) FILTER (WHERE coalesce(h.waiting, 0) <> b.stored_entries - o.released_entries
                           OR coalesce(h.rows, 0) > b.stored_entries) AS miscounted,
       count(*) FILTER (WHERE h.last > b.head_position
                           OR h.rows = b.stored_entries AND h.last <> b.head_position) AS misheaded
  FROM bench_devices d JOIN mailboxes b USING (device_id) JOIN mailbox_owners o USING (device_id)
  LEFT JOIN held h ON h.id = d.device_id
"""
_BEHIND: Final = """
SELECT count(*)
  FROM (SELECT e.message_id < lag(e.message_id) OVER (
                   PARTITION BY e.recipient_device_id, left(e.message_id::text, 18) ORDER BY e.position) AS behind
          FROM envelopes e JOIN bench_devices d ON d.device_id = e.recipient_device_id) AS e
 WHERE e.behind
"""
