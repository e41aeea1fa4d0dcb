"""What is over goes, within its time, beside the hot path and by several workers at once (seed 001, 4)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from protocol.ids import DeviceId
from runtime.metrics import Metrics
from store.policy_rules import Policy
from store.retention import RetentionStore, Table
from tests.support.clock import FakeClock
from tests.support.mailboxes import a_send, an_envelope
from tests.support.wakes import WorkerParts, worker_parts
from worker.cleanup import Cleanup
from worker.metrics import WorkerMetrics

DAY = 86_400


@pytest.fixture
async def worker(database: str, redis_url: str) -> AsyncIterator[WorkerParts]:
    async with worker_parts(database, redis_url) as parts:
        yield parts


def a_cleanup(worker: WorkerParts, clock: Any | None = None, policy: Policy | None = None) -> Cleanup:
    """With a clock that agrees with the database's."""
    return Cleanup(
        worker.retention,
        lambda: policy or Policy(),
        WorkerMetrics(Metrics()),
        clock or DatabaseClock(worker),
        round_seconds=5,
    )


class DatabaseClock:
    """The wall clock of a host that is right: it goes with the test database's."""

    def __init__(self, worker: WorkerParts) -> None:
        self._worker = worker

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        import time

        return int((time.time() + getattr(self._worker, "_skipped", 0.0)) * 1000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


async def count(worker: WorkerParts, table: str) -> int:
    return int(await worker.stores.postgres.fetchval(f"SELECT count(*) FROM {table}"))


async def counters(worker: WorkerParts, device: DeviceId) -> tuple[int, int, int]:
    """Pending entries, bytes and echoes by the counters."""
    row = await worker.stores.postgres.fetchrow(
        "SELECT b.stored_entries - w.released_entries AS entries, b.stored_bytes - w.released_bytes AS bytes,"
        " b.stored_echoes - w.released_echoes AS echoes FROM mailboxes b JOIN mailbox_owners w USING (device_id)"
        " WHERE device_id = $1",
        device,
    )
    assert row is not None
    return row["entries"], row["bytes"], row["echoes"]


async def floor(worker: WorkerParts, device: DeviceId) -> int:
    return int(
        await worker.stores.postgres.fetchval("SELECT floor_position FROM mailbox_owners WHERE device_id = $1", device)
    )


async def head(worker: WorkerParts, device: DeviceId) -> int:
    return int(
        await worker.stores.postgres.fetchval("SELECT head_position FROM mailboxes WHERE device_id = $1", device)
    )


async def test_adr009_3_4_expired_envelopes_go_and_their_room_comes_back(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.submit(device, count=5)
    cleanup = a_cleanup(worker)
    assert await cleanup.round(Table.EXPIRED) == 0
    await worker.skip(7 * DAY + 1)
    assert await cleanup.round(Table.EXPIRED) == 5
    assert (await count(worker, "envelopes"), await counters(worker, device)) == (0, (0, 0, 0))
    assert await floor(worker, device) == await head(worker, device)


async def test_expired_echoes_are_counted_as_echoes(worker: WorkerParts) -> None:
    sender, device = await worker.device(), await worker.device()
    for _ in range(3):
        await worker.stores.submit.submit(a_send(sender, an_envelope(device), echo=True))
    assert await counters(worker, sender) == (0, 0, 3)
    await worker.skip(2 * DAY + 1)
    assert await a_cleanup(worker).round(Table.EXPIRED) == 3
    assert (await counters(worker, sender), (await counters(worker, device))[0]) == ((0, 0, 0), 3)


async def test_an_acked_entry_that_expires_is_not_released_twice(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.ack(device, await worker.submit(device))
    await worker.skip(7 * DAY + 1)
    cleanup = a_cleanup(worker)
    assert await cleanup.round(Table.EXPIRED) == 1
    assert await cleanup.round(Table.ACKED) == 0
    assert (await counters(worker, device), await count(worker, "ack_batches")) == ((0, 0, 0), 0)


async def test_adr009_1_1_acked_envelopes_are_gone_within_the_hour(worker: WorkerParts) -> None:
    device = await worker.device()
    acked, kept = await worker.submit(device, count=3), await worker.submit(device, count=2)
    await worker.ack(device, acked)
    cleanup = a_cleanup(worker)
    assert await cleanup.round(Table.ACKED) == 0
    await worker.skip(601)
    assert await cleanup.round(Table.ACKED) == 3
    assert await worker.stores.whole_mailbox(device) == kept
    assert await count(worker, "ack_batches") == 0
    oldest_kept = await worker.stores.postgres.fetchval("SELECT min(position) FROM envelopes")
    assert await floor(worker, device) == oldest_kept - 1


async def test_the_age_of_acked_ones_is_a_setting(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.ack(device, await worker.submit(device))
    assert await a_cleanup(worker, policy=Policy(acked_cleanup_s=0)).round(Table.ACKED) == 1


async def test_a_floor_never_passes_what_is_not_acked(worker: WorkerParts) -> None:
    device = await worker.device()
    mids = await worker.submit(device, count=10)
    await worker.ack(device, mids[1:9])
    await worker.skip(601)
    await a_cleanup(worker).round(Table.ACKED)
    assert await worker.stores.whole_mailbox(device) == [mids[0], mids[9]]
    await worker.ack(device, mids[:1])
    await worker.skip(601)
    await a_cleanup(worker).round(Table.ACKED)
    assert await worker.stores.whole_mailbox(device) == [mids[9]]


async def test_several_workers_at_once_remove_each_row_once(worker: WorkerParts) -> None:
    devices = [await worker.device() for _ in range(30)]
    for device in devices:
        await worker.ack(device, (await worker.submit(device, count=20))[:10])
    await worker.skip(7 * DAY + 1)
    rounds = [a_cleanup(worker).round(table) for table in (Table.EXPIRED, Table.ACKED) for _ in range(3)]
    deleted = sum(await asyncio.gather(*rounds))
    while rest := await a_cleanup(worker).round(Table.EXPIRED):
        deleted += rest
    assert deleted == 600
    assert await count(worker, "envelopes") == 0
    assert {await counters(worker, device) for device in devices} == {(0, 0, 0)}


async def test_an_owner_that_is_held_is_skipped_and_not_waited_for(worker: WorkerParts) -> None:
    held, free = await worker.device(), await worker.device()
    for device in (held, free):
        await worker.submit(device)
    await worker.skip(7 * DAY + 1)
    cleanup = a_cleanup(worker)
    async with worker.stores.postgres.transaction() as connection:
        await connection.execute("SELECT FROM mailbox_owners WHERE device_id = $1 FOR NO KEY UPDATE", held)
        async with asyncio.timeout(30):
            assert await cleanup.round(Table.EXPIRED) == 1
    assert await cleanup.round(Table.EXPIRED) == 1


async def test_batches_are_bounded(worker: WorkerParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.cleanup.ROWS_MAX", 10)
    batches: list[int] = []
    sweep = RetentionStore.sweep

    async def watched(self: RetentionStore, table: Table, policy: Policy, rows_max: int) -> Any:
        swept = await sweep(self, table, policy, rows_max)
        batches.append(swept.deleted)
        return swept

    monkeypatch.setattr(RetentionStore, "sweep", watched)
    device = await worker.device()
    await worker.submit(device, count=35)
    await worker.skip(7 * DAY + 1)
    assert await a_cleanup(worker).round(Table.EXPIRED) == 35
    assert batches == [10, 10, 10, 5]


async def test_one_big_ack_is_removed_whole(worker: WorkerParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.cleanup.ROWS_MAX", 10)
    device = await worker.device()
    for _ in range(3):
        await worker.ack(device, await worker.submit(device, count=30))
    await worker.skip(601)
    assert await a_cleanup(worker).round(Table.ACKED) == 90


@pytest.mark.parametrize("apart", [-301, 301])
async def test_expiry_stops_while_the_clocks_are_apart(worker: WorkerParts, clock: FakeClock, apart: float) -> None:
    device = await worker.device()
    await worker.submit(device)
    await worker.skip(7 * DAY + 1)
    cleanup = a_cleanup(worker, clock)
    now_ms = await worker.retention.database_ms()
    clock.jump_wall((now_ms - clock.wall_ms()) / 1000 + apart)
    assert await cleanup.round(Table.EXPIRED) == 0
    assert cleanup._metrics.expiry_stopped._value.get() == 1
    clock.jump_wall(-apart)
    assert await cleanup.round(Table.EXPIRED) == 1
    assert cleanup._metrics.expiry_stopped._value.get() == 0


CHALLENGES = """INSERT INTO auth_challenges
SELECT sha256(n::text::bytea), gen_random_uuid(), 'token', mailboxd_now(), mailboxd_now() + interval '60 seconds'
  FROM generate_series(1, 3) AS n"""
RECORDS = """INSERT INTO idempotency_records
SELECT gen_random_uuid(), gen_random_uuid(), 1, 201, 1, mailboxd_now(), mailboxd_now() + interval '1 day',
       gen_random_uuid()
  FROM generate_series(1, 3)"""
INTENTS = """INSERT INTO outbox_events
       (event_id, aggregate_ref, task_type, state, next_attempt_at, created_at, updated_at)
SELECT gen_random_uuid(), gen_random_uuid(), 'wake_device', 'completed', mailboxd_now(), mailboxd_now(), mailboxd_now()
  FROM generate_series(1, 3)"""
INVITES = """INSERT INTO invites (invite_hash, invite_tag, expires_at, used_at, revoked_at)
SELECT sha256(n::text::bytea), n::text, mailboxd_now() + interval '1 day', CASE n WHEN 1 THEN mailboxd_now() END,
       CASE n WHEN 2 THEN mailboxd_now() END
  FROM generate_series(1, 3) AS n"""
EVENTS = """INSERT INTO audit_events (event_type, request_id, outcome, policy_version)
SELECT 'policy.changed', n::text, 'done', 1 FROM generate_series(1, 3) AS n"""


@pytest.mark.parametrize(
    ("table", "name", "lifetime", "insert"),
    [
        (Table.CHALLENGES, "auth_challenges", 60, CHALLENGES),
        (Table.IDEMPOTENCY, "idempotency_records", DAY, RECORDS),
        (Table.OUTBOX, "outbox_events", DAY, INTENTS),
        (Table.AUDIT, "audit_events", 30 * DAY, EVENTS),
        (Table.INVITES, "invites", 31 * DAY, INVITES),
    ],
)
async def test_every_lifetime_of_the_data_model_ends_in_its_time(
    worker: WorkerParts, table: Table, name: str, lifetime: int, insert: str
) -> None:
    await worker.stores.postgres.execute(insert)
    await worker.skip(lifetime - 5)
    cleanup = a_cleanup(worker)
    assert (await cleanup.round(table), await count(worker, name)) == (0, 3)
    assert (await worker.retention.oldest_overdue(Policy()))[table] == 0
    await worker.skip(6)
    assert 0 < (await worker.retention.oldest_overdue(Policy()))[table] < 5
    assert (await cleanup.round(table), await count(worker, name)) == (3, 0)


async def test_open_intents_and_dead_letters_outlive_the_retention_of_completed_ones(worker: WorkerParts) -> None:
    device, dead = await worker.device(), await worker.device()
    for each in (device, dead):
        await worker.submit(each)
    await worker.outbox.bury((await worker.intent(dead))["event_id"], reason="made on purpose")
    await worker.skip(40 * DAY)
    assert await a_cleanup(worker).round(Table.OUTBOX) == 0


async def test_a_revoked_devices_mail_goes_and_its_mailbox_stays_known(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.submit(device, count=7)
    await worker.stores.postgres.execute(
        "INSERT INTO identities (identity_id, identity_public_bundle) VALUES ($1, 'x')", os.urandom(16)
    )
    await worker.stores.postgres.execute(
        "INSERT INTO devices (device_id, identity_id, device_public_key, status, revoked_at)"
        " SELECT $1, identity_id, $2, 'revoked', mailboxd_now() FROM identities",
        device, os.urandom(32),
    )  # fmt: skip
    await worker.stores.postgres.execute("UPDATE mailboxes SET state = 2 WHERE device_id = $1", device)
    assert await a_cleanup(worker).round(Table.REVOKED) == 7
    assert (await count(worker, "envelopes"), await counters(worker, device)) == (0, (0, 0, 0))
    assert await count(worker, "mailboxes WHERE state = 2") == 1


async def test_the_oldest_overdue_rows_show_in_seconds(worker: WorkerParts) -> None:
    device = await worker.device()
    mids = await worker.submit(device, count=2)
    await worker.ack(device, mids[:1])
    await worker.skip(7 * DAY + 100)
    overdue = await worker.retention.oldest_overdue(Policy())
    assert 99 < overdue[Table.EXPIRED] < 110
    assert 7 * DAY - 600 < overdue[Table.ACKED] < 7 * DAY
