"""Every key of the mail and every way to it leads with the device, so that it can be split up by device some day."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from protocol.frames import AckResult, MailboxBatch, PullMailbox, Send, SendAck, SendEnvelope
from tests.support.database import connected
from tests.support.gateways import GatewayLab
from tests.support.mailboxes import a_cmid, a_mid

DEVICE_COLUMN = {"envelopes": "recipient_device_id", "mailboxes": "device_id", "mailbox_owners": "device_id"}
_KEYS = """
SELECT t.relname AS table, i.indexrelid::regclass::text AS index,
       (SELECT a.attname FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attnum = i.indkey[0]) AS first,
       i.indisunique AS unique
  FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid WHERE t.relname = ANY ($1)
"""
_USED = """
SELECT indexrelname AS index, relname AS table, idx_scan AS scans FROM pg_stat_user_indexes WHERE relname = ANY ($1)
"""
_SCANNED = "SELECT relname AS table, seq_scan AS scans FROM pg_stat_user_tables WHERE relname = ANY ($1)"


@pytest.fixture
async def lab(database: str, redis_url: str, tmp_path: Path) -> AsyncIterator[GatewayLab]:
    async with GatewayLab(database, redis_url, tmp_path) as running:
        yield running


async def leading(connection: asyncpg.Connection) -> set[str]:
    """Indexes whose first column is the device."""
    rows = await connection.fetch(_KEYS, list(DEVICE_COLUMN))
    return {row["index"] for row in rows if row["first"] == DEVICE_COLUMN[row["table"]]}


async def test_every_key_leads_with_the_device(database: str) -> None:
    async with connected(database) as connection:
        keys = [row for row in await connection.fetch(_KEYS, list(DEVICE_COLUMN)) if row["unique"]]
        assert {row["index"] for row in keys} <= await leading(connection)
        assert {row["table"] for row in keys} == set(DEVICE_COLUMN)


async def test_a_life_of_mail_uses_no_index_of_the_mail_but_those(lab: GatewayLab, database: str) -> None:
    """HELLO, SEND with echo, push, ACK, PULL, a repeat, another session: as a gateway does them, and nothing else."""
    async with connected(database) as connection:
        await connection.execute(
            """INSERT INTO mailboxes (device_id, identity_id) SELECT gen_random_uuid(), gen_random_uuid()
                 FROM generate_series(1, 5000)"""
        )
        await connection.execute("INSERT INTO mailbox_owners (device_id) SELECT device_id FROM mailboxes")
        await connection.execute(
            """INSERT INTO envelopes (recipient_device_id, position, message_id, accepted_at, expires_at, envelope_size,
                      protocol_version, envelope_bytes)
               SELECT device_id, n, gen_random_uuid(), mailboxd_now(), mailboxd_now() + interval '7 days', 1, 1, '\\x00'
                 FROM mailboxes, generate_series(1, 5) AS n"""
        )
        await connection.execute("ANALYZE envelopes, mailboxes, mailbox_owners")
    alice, bob = await lab.devices(2)
    async with connected(database) as connection:
        used = {row["index"]: row["scans"] for row in await connection.fetch(_USED, list(DEVICE_COLUMN))}
        scanned = {row["table"]: row["scans"] for row in await connection.fetch(_SCANNED, list(DEVICE_COLUMN))}
    async with lab.gateway() as gateway:
        sender, receiver = await gateway.session(alice), await gateway.session(bob)
        envelopes = [SendEnvelope(bob.id, a_mid(), 1, b"sealed") for _ in range(5)]
        mids = [envelope.mid for envelope in envelopes]
        sender.send(*(Send(a_cmid(), (envelope,), echo=True) for envelope in envelopes))
        for _ in envelopes:
            await sender.find(SendAck)
        await receiver.find(MailboxBatch)
        receiver.ack(*mids[:3])
        await receiver.find(AckResult)
        receiver.send(PullMailbox(ref=7))
        while (await receiver.find(MailboxBatch)).ref != 7:
            pass
        again = await gateway.session(bob, instance=b"p" * 16)
        batches = [frame for frame in again.seen if isinstance(frame, MailboxBatch)]
        assert {entry.mid for batch in batches for entry in batch.entries} == set(mids[3:])
    # The gateway's connections are closed, and with them their counts are there.
    async with connected(database) as connection:
        after = {row["index"]: row["scans"] for row in await connection.fetch(_USED, list(DEVICE_COLUMN))}
        seen = {row["table"]: row["scans"] for row in await connection.fetch(_SCANNED, list(DEVICE_COLUMN))}
        walked = {index for index, scans in after.items() if scans > used[index]}
        assert walked <= await leading(connection)
        assert {"envelopes_pkey", "mailboxes_pkey", "mailbox_owners_pkey"} <= walked
    assert seen == scanned
