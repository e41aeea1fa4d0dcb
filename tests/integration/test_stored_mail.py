"""Mail put into the database by the million for the bench is as true as if it had been sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from loadtest.run import Run, Settings
from loadtest.scenarios.growth import GrowthFailed, growth
from loadtest.server import Server
from loadtest.stored_mail import NoRoom, check_room, put, room_needed, silent_mailboxes, spread
from protocol.ids import DeviceId
from store.retention import BEFORE_ALL
from tests.support.mailboxes import Stores, a_send, an_envelope
from tests.support.wakes import WorkerParts, worker_parts

BYTES = 300


@pytest.fixture
async def worker(database: str, redis_url: str) -> AsyncIterator[WorkerParts]:
    async with worker_parts(database, redis_url) as parts:
        yield parts


async def drifts(worker: WorkerParts) -> tuple[int, int]:
    """Mailboxes whose counters, and whose wake intents, do not say what their rows say."""
    counters = await worker.retention.repair_counters(BEFORE_ALL, 10_000)
    _, intents = await worker.outbox.repair_wake_open(BEFORE_ALL, 10_000)
    return counters.repaired, intents


async def taken(stores: Stores, sender: DeviceId, to: DeviceId) -> bool:
    """Whether a SEND to this mailbox is accepted and comes last in it."""
    envelope = an_envelope(to)
    await stores.submit.submit(a_send(sender, envelope))
    return (await stores.whole_mailbox(to))[-1] == envelope.mid


async def test_counters_heads_and_intents_say_what_the_rows_say_and_sends_go_on_above(
    worker: WorkerParts, database: str
) -> None:
    stores = worker.stores
    sender, before, empty = await stores.devices(3)
    await stores.submit.submit(a_send(sender, an_envelope(before)))
    connection = await asyncpg.connect(database)
    try:
        await silent_mailboxes(connection, 7)
        await put(connection, [before, empty], 5, BYTES)
        await spread(connection, 45, BYTES)  # six each, and three more
        await spread(connection, 3, BYTES)
        held = await connection.fetch(
            "SELECT count(*) AS entries, count(DISTINCT message_id) AS mids, sum(envelope_size) AS bytes"
            " FROM envelopes JOIN bench_silent ON device_id = recipient_device_id GROUP BY device_id ORDER BY 1"
        )
    finally:
        await connection.close()
    assert [row["entries"] for row in held] == [6] * 4 + [8] * 3
    assert all(row["mids"] == row["entries"] and row["bytes"] == row["entries"] * BYTES for row in held)
    assert await drifts(worker) == (0, 0)
    assert len(await stores.whole_mailbox(before)) == 6
    assert await taken(stores, sender, before)
    assert await taken(stores, sender, empty)
    assert await drifts(worker) == (0, 0)


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(tmp_path: Path) -> None:
    check_room(tmp_path, 1, 1)
    with pytest.raises(NoRoom, match=r"1,000,000,000,000 envelopes need .* GiB and .* GiB are free"):
        check_room(tmp_path, 10**12, 1_024)
    assert room_needed(5_000_000, 1_024) > 5_000_000 * 2 * 1_024


async def test_growth_says_that_the_disk_is_too_small_and_does_not_start(tmp_path: Path) -> None:
    server = Server(urls=("http://127.0.0.1:1",), postgres_dsn="postgresql://nobody", data_dir=tmp_path)
    with pytest.raises(GrowthFailed, match="GiB are free"):
        await growth(Run(server, Settings(stored=(0, 10**12))))
