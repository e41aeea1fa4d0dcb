"""The hot statements walk indexes, at a million rows and whatever the size of the batch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from store.records import AckRequest
from store.sql_files import load_sql
from tests.support.database import connected
from tests.support.mailboxes import Stores, a_send, an_envelope, stores

HOT_TABLES = ("envelopes", "mailboxes", "mailbox_owners", "idempotency_records", "outbox_events")


async def scans(gateway: Stores) -> dict[str, int]:
    await gateway.postgres.execute("SELECT pg_stat_force_next_flush()")
    rows = await gateway.postgres.fetch(
        "SELECT relname, seq_scan FROM pg_stat_user_tables WHERE relname = ANY ($1)", HOT_TABLES
    )
    return {row["relname"]: row["seq_scan"] for row in rows}


async def fill(gateway: Stores, entries_each: int) -> None:
    """A thousand mailboxes with `entries_each` entries each."""
    async with gateway.postgres.transaction() as connection:
        await connection.execute(
            """INSERT INTO mailboxes (device_id, identity_id, head_position, stored_entries, wake_open)
               SELECT md5('d' || n)::uuid, gen_random_uuid(), $1, $1, true FROM generate_series(1, 1000) AS n""",
            entries_each,
        )
        await connection.execute(
            "INSERT INTO mailbox_owners (device_id) SELECT device_id FROM mailboxes ON CONFLICT DO NOTHING"
        )
        await connection.execute(
            """INSERT INTO envelopes (recipient_device_id, position, message_id, accepted_at, expires_at, envelope_size,
                      protocol_version, envelope_bytes)
               SELECT b.device_id, p, gen_random_uuid(), mailboxd_now(), mailboxd_now() + interval '7 days',
                      1, 1, '\\x00'
                 FROM mailboxes b, generate_series(1, $1) AS p WHERE b.head_position = $1""",
            entries_each,
        )
        await connection.execute(
            """INSERT INTO idempotency_records (actor_scope_hash, idempotency_key_hash, operation, response_status,
                      secret_key_id, created_at, expires_at, request_fingerprint)
               SELECT md5('d' || n % 1000)::uuid, gen_random_uuid(), 1, 201, 1, mailboxd_now(),
                      mailboxd_now() + interval '2 hours', gen_random_uuid()
                 FROM generate_series(1, 1000 * $1::bigint) AS n""",
            entries_each,
        )
    await gateway.postgres.execute("ANALYZE")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


@pytest.mark.parametrize("entries_each", [2, pytest.param(1_000, marks=pytest.mark.slow)])
async def test_submit_and_ack_never_scan_a_table(database: str, entries_each: int) -> None:
    async with stores(database) as gateway:
        await fill(gateway, entries_each)
        devices = await gateway.devices(200)
        rows = await gateway.postgres.fetch("SELECT device_id FROM mailboxes WHERE wake_open LIMIT 200")
        crowded = [row["device_id"] for row in rows]
        before = await scans(gateway)
        for size in (1, 5, 64):
            for _ in range(8):  # past the planner's custom plans
                envelopes = [an_envelope(to) for to in crowded[:size]]
                await asyncio.gather(
                    *(
                        gateway.submit.submit(a_send(devices[n], envelope, session=n, echo=True))
                        for n, envelope in enumerate(envelopes)
                    )
                )
                await asyncio.gather(
                    *(gateway.acks.ack(AckRequest(e.to, (e.mid,)), session=n) for n, e in enumerate(envelopes))
                )
        await gateway.submit.drain(5.0)
        await gateway.acks.drain(5.0)
        assert await scans(gateway) == before


@pytest.mark.parametrize("entries_each", [2, pytest.param(1_000, marks=pytest.mark.slow)])
async def test_a_read_walks_the_primary_key_from_the_floor(database: str, entries_each: int) -> None:
    async with stores(database) as gateway, connected(database) as connection:
        await fill(gateway, entries_each)
        rows = await gateway.postgres.fetch("SELECT device_id FROM mailboxes LIMIT 64")
        devices = [row["device_id"] for row in rows]
        explained = await connection.fetchval(
            "EXPLAIN (FORMAT JSON) " + load_sql("mailbox")["read_mailboxes"],
            devices,
            [0] * len(devices),
            [100] * len(devices),
            [1 << 20] * len(devices),
        )
        plan = json.loads(explained)[0]["Plan"]
        scanned = [node for node in nodes(plan) if node.get("Relation Name") in HOT_TABLES]
        assert {node["Node Type"] for node in scanned} == {"Index Scan"}
        (walk,) = [node for node in scanned if node["Relation Name"] == "envelopes"]
        assert walk["Index Name"] == "envelopes_pkey"
        assert "position" in walk["Index Cond"]
