"""The scenarios without a receiver look at the rows afterwards: what the store did wrong fails the run."""

from __future__ import annotations

import asyncpg
import pytest

from loadtest import bare_mailboxes
from loadtest.db_ceiling import db_ceiling
from loadtest.run import Run, Settings
from loadtest.server import Server

# Each does to the rows what a store with a bug might have done.
FORGETS_AN_ACK = """
UPDATE envelopes SET acked_at = NULL WHERE message_id = (SELECT message_id FROM envelopes ORDER BY position LIMIT 1)
"""
COUNTS_WRONG = "UPDATE mailboxes SET stored_entries = stored_entries + 1 WHERE device_id = (SELECT device_id FROM b)"
FORGETS_THE_HEAD = "UPDATE mailboxes SET head_position = head_position - 1 WHERE device_id = (SELECT device_id FROM b)"
SWAPS_TWO = """
UPDATE envelopes e SET message_id = (left(e.message_id::text, 18) || '-ffff-ffffffffffff')::uuid
  FROM (SELECT recipient_device_id AS id, min(position) AS first FROM envelopes
         GROUP BY recipient_device_id, left(message_id::text, 18) HAVING count(*) > 1 LIMIT 1) AS f
 WHERE e.recipient_device_id = f.id AND e.position = f.first
"""
ONE = "WITH b AS (SELECT device_id FROM bench_devices WHERE n = 1) "


async def a_run(database: str) -> dict[str, int]:
    """A short `db-ceiling`; gives what `check` was told about it."""
    server = Server(urls=("http://127.0.0.1:1",), postgres_dsn=database)
    result = await db_ceiling(Run(server, Settings(devices=4, payload_bytes=100, seconds=0.3, warmup_s=0.0)))
    assert (result["ok"], result["problems"]) == (True, {})
    connection = await asyncpg.connect(database)
    try:
        stored = await connection.fetchval("SELECT count(*) FROM envelopes")
    finally:
        await connection.close()
    assert stored >= 4
    return {"confirmed": stored, "acked": stored}


@pytest.mark.parametrize(
    ("tampering", "problem"),
    [
        (FORGETS_AN_ACK, {"mailboxes_whose_rows_differ_from_their_counters": 1}),
        (
            ONE + COUNTS_WRONG,
            {"confirmed_but_not_stored": -1, "mailboxes_whose_rows_differ_from_their_counters": 1},
        ),
        (ONE + FORGETS_THE_HEAD, {"mailboxes_whose_head_is_not_their_last_position": 1}),
        (SWAPS_TWO, {"out_of_order": 1}),
    ],
    ids=["an-ack", "a-counter", "a-head", "an-order"],
)
async def test_a_run_is_clean_and_one_wrong_row_or_counter_is_found(
    database: str, tampering: str, problem: dict[str, int]
) -> None:
    told = await a_run(database)
    assert await bare_mailboxes.check(database, **told, in_order=True) == {}
    connection = await asyncpg.connect(database)
    try:
        await connection.execute(tampering)
    finally:
        await connection.close()
    assert await bare_mailboxes.check(database, **told, in_order=True) == problem


async def test_a_message_that_was_confirmed_and_is_not_there_is_found(database: str) -> None:
    told = await a_run(database)
    told["confirmed"] += 1
    assert await bare_mailboxes.check(database, **told, in_order=True) == {"confirmed_but_not_stored": 1}
