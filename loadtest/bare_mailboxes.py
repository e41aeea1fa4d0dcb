"""Mailboxes straight in the database, for the scenarios that measure it without a gateway in front."""

from __future__ import annotations

import os

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
