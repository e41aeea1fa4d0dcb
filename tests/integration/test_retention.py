"""Early clean-up on request (seed 000, 7.3), and counters that must fit the rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from store.policy_rules import Policy
from store.retention import BEFORE_ALL, RetentionProgress
from tests.support.mailboxes import a_send, an_envelope
from tests.support.wakes import WorkerParts, worker_parts

DAY = 86_400


@pytest.fixture
async def worker(database: str, redis_url: str) -> AsyncIterator[WorkerParts]:
    async with worker_parts(database, redis_url) as parts:
        yield parts


async def aged_mail(worker: WorkerParts) -> None:
    """Three devices with four entries each, five days old; one entry of today; one short-lived; one acked."""
    for _ in range(3):
        device = await worker.device()
        await worker.submit(device, count=4)
    device = await worker.device()
    await worker.ack(device, await worker.submit(device))
    await worker.skip(5 * DAY)
    await worker.submit(device)
    [sender] = await worker.stores.devices(1)
    await worker.stores.submit.submit(a_send(sender, an_envelope(device)._replace(ttl_s=60)))


async def applied(
    worker: WorkerParts, longest: timedelta, *, after: RetentionProgress | None = None
) -> list[RetentionProgress]:
    start = (BEFORE_ALL, 0) if after is None else (after.device, after.position)
    return [step async for step in worker.retention.apply(longest, worker.audit, policy_version=7, after=start)]


async def test_the_preview_says_what_apply_then_does(worker: WorkerParts) -> None:
    await aged_mail(worker)
    longest = timedelta(days=3)
    preview = await worker.retention.preview(longest)
    assert (preview.shortened_envelopes, preview.removed_envelopes, preview.devices, preview.removed_devices) == (
        13,
        12,
        4,
        3,
    )
    assert preview.removed_bytes == 12 * len(b"sealed")
    steps = await applied(worker, longest)
    assert (steps[-1].envelopes, steps[-1].bytes) == (13, 13 * len(b"sealed"))
    again = await worker.retention.preview(longest)
    assert (again.shortened_envelopes, again.removed_envelopes) == (0, 0)
    [event] = await worker.audit.list()
    assert (event.event_type, event.outcome, event.policy_version) == ("retention.applied", "done", 7)
    assert event.detail == {"longest_s": 3 * DAY, "envelopes": 13, "bytes": 13 * len(b"sealed")}


async def test_shortened_lives_end_for_readers_at_once_and_nothing_gets_longer(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.submit(device)
    await worker.skip(4 * DAY)
    fresh = await worker.submit(device)
    lives = "SELECT max(expires_at - accepted_at) FROM envelopes"
    await applied(worker, timedelta(days=30))
    assert await worker.stores.postgres.fetchval(lives) == timedelta(days=7)
    await applied(worker, timedelta(days=3))
    assert await worker.stores.postgres.fetchval(lives) == timedelta(days=3)
    assert await worker.stores.whole_mailbox(device) == fresh


async def test_interrupted_it_goes_on_from_where_it_was_or_from_the_beginning(
    worker: WorkerParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.retention.RETENTION_STEP", 5)
    await aged_mail(worker)
    longest = timedelta(days=3)
    run = worker.retention.apply(longest, worker.audit, policy_version=1)
    first = await anext(run)
    await run.aclose()  # type: ignore[attr-defined]
    assert 0 < first.envelopes <= 5
    rest = await applied(worker, longest, after=first)
    assert first.envelopes + rest[-1].envelopes == 13
    assert (await applied(worker, longest))[-1].envelopes == 0
    outcomes = [event.outcome for event in await worker.audit.list()]
    assert outcomes == ["done", "done", "refused"]  # newest first; the interrupted one is told as well


async def test_shortening_and_cleaning_keeps_counters_right(worker: WorkerParts) -> None:
    await aged_mail(worker)
    await applied(worker, timedelta(days=3))
    while (await worker.retention.sweep("expired", Policy(), 100)).deleted:  # type: ignore[arg-type]
        pass
    assert await worker.reconciler.walk_counters(pause=0) == 0
    assert await worker.stores.postgres.fetchval("SELECT sum(stored_entries) FROM mailboxes") == 15
    assert await worker.stores.postgres.fetchval("SELECT sum(released_entries) FROM mailbox_owners") == 13


DRIFTS = [
    "UPDATE mailbox_owners SET released_entries = released_entries + 1",
    "UPDATE mailbox_owners SET released_entries = 0",
    "UPDATE mailbox_owners SET released_bytes = released_bytes + 3",
    "UPDATE mailbox_owners SET released_echoes = 2",
    "UPDATE mailboxes SET stored_entries = stored_entries + 5, stored_bytes = stored_bytes + 5",
    "UPDATE mailboxes SET stored_entries = 0, stored_bytes = 0",
    "UPDATE mailbox_owners SET floor_position = (SELECT max(position) FROM envelopes)",
]


@pytest.mark.parametrize("damage", DRIFTS)
async def test_drift_between_counters_and_rows_is_found_and_repaired(worker: WorkerParts, damage: str) -> None:
    device = await worker.device()
    mids = await worker.submit(device, count=4)
    await worker.ack(device, mids[:2])
    assert await worker.reconciler.walk_counters(pause=0) == 0
    await worker.stores.postgres.execute(damage)
    assert await worker.reconciler.walk_counters(pause=0) >= 1
    assert await worker.reconciler.walk_counters(pause=0) == 0
    row = await worker.stores.postgres.fetchrow(
        "SELECT b.stored_entries - w.released_entries AS entries, b.stored_bytes - w.released_bytes AS bytes,"
        " b.stored_echoes - w.released_echoes AS echoes FROM mailboxes b JOIN mailbox_owners w USING (device_id)"
        " WHERE device_id = $1",
        device,
    )
    assert row is not None
    assert tuple(row) == (2, 2 * len(b"sealed"), 0)
    assert await worker.stores.whole_mailbox(device) == mids[2:]
    assert worker.metrics.counter_drift._value.get() >= 1


async def test_the_walk_raises_floors_past_acked_rows_that_are_still_there(worker: WorkerParts) -> None:
    device = await worker.device()
    acked = await worker.submit(device, count=5)
    await worker.skip(120)
    kept = await worker.submit(device)
    await worker.ack(device, acked)
    floor = "SELECT floor_position FROM mailbox_owners WHERE device_id = $1"
    assert await worker.stores.postgres.fetchval(floor, device) == 0
    assert await worker.reconciler.walk_counters(pause=0) == 0
    first_kept = "SELECT min(position) FROM envelopes WHERE acked_at IS NULL"
    raised = await worker.stores.postgres.fetchval(floor, device)
    assert raised == await worker.stores.postgres.fetchval(first_kept) - 1
    assert await worker.stores.whole_mailbox(device) == kept


async def test_the_walk_comes_past_every_page(worker: WorkerParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.reconciler.PAGE_MAX", 3)
    devices = [await worker.device() for _ in range(10)]
    for device in devices:
        await worker.submit(device)
    await worker.stores.postgres.execute(
        "UPDATE mailbox_owners SET released_entries = 1 WHERE device_id = ANY ($1)",
        [devices[0], devices[5], devices[9]],
    )
    assert await worker.reconciler.walk_counters(pause=0) == 3


@pytest.mark.parametrize("damage", ["false", "true"])
async def test_wake_open_that_lies_is_found_and_the_intent_is_there_again(worker: WorkerParts, damage: str) -> None:
    device = await worker.device()
    await worker.submit(device)
    if damage == "true":  # an open mark without an open intent: submits would open none
        await worker.stores.postgres.execute("DELETE FROM outbox_events")
    else:
        await worker.stores.postgres.execute("UPDATE mailboxes SET wake_open = false WHERE wake_open")
    assert await worker.reconciler.walk_wakes(pause=0) == 1
    assert await worker.reconciler.walk_wakes(pause=0) == 0
    await worker.turn()
    assert (await worker.intent(device))["pushes_accepted"] == 1


async def test_after_a_restore_intents_are_opened_wherever_something_waits(worker: WorkerParts) -> None:
    waiting, empty = await worker.device(), await worker.device()
    await worker.submit(waiting)
    await worker.stores.postgres.execute("DELETE FROM outbox_events")
    await worker.stores.postgres.execute("UPDATE mailboxes SET wake_open = false")
    assert await worker.outbox.open_wakes([waiting, empty]) == 1
    assert await worker.outbox.open_wakes([waiting, empty]) == 0
    assert (await worker.state(waiting), await worker.state(empty)) == ("pending", None)
