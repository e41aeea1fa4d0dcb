"""Deadlocks cannot happen: everything that takes locks, at once, over many connections, on few mailboxes."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from protocol.errors import ErrorCode, MailboxError
from protocol.ids import DeviceId, MessageId
from store.policy_rules import Policy
from store.records import AckRequest
from store.retention import BEFORE_ALL, Table
from tests.support.mailboxes import a_send, an_envelope
from tests.support.wakes import WorkerParts, put_route, worker_parts

MAILBOXES = 12
POLICY = Policy(acked_cleanup_s=0, completed_outbox_retention_s=3_600)
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"

Step = Callable[[WorkerParts, list[DeviceId]], Awaitable[object]]


def some(devices: list[DeviceId], count: int) -> list[DeviceId]:
    return random.sample(devices, random.randint(1, count))


async def submit(worker: WorkerParts, devices: list[DeviceId]) -> None:
    envelopes = [an_envelope(device)._replace(ttl_s=60) for device in some(devices, 6)]
    actor = random.choice(devices)
    request = a_send(actor, *envelopes, session=random.randint(1, 50), echo=random.random() < 0.5)
    await worker.stores.submit.submit(request)


async def ack(worker: WorkerParts, devices: list[DeviceId]) -> None:
    device = random.choice(devices)
    mids = tuple(MessageId(mid) for mid in (await worker.stores.whole_mailbox(device))[:50]) or (
        MessageId(os.urandom(16)),
    )
    await worker.stores.acks.ack(AckRequest(device, mids), session=random.randint(1, 50))


async def contact(worker: WorkerParts, devices: list[DeviceId]) -> None:
    await worker.stores.postgres.execute("SELECT touch_contacts_v1($1)", sorted(some(devices, 6)))


async def route(worker: WorkerParts, devices: list[DeviceId]) -> None:
    await put_route(worker.stores, random.choice(devices), "http://127.0.0.1:1/push")


async def work(worker: WorkerParts, devices: list[DeviceId]) -> None:
    claimed = await worker.outbox.claim(50, published_for=timedelta(seconds=1))
    for publication in claimed.publications:
        job = await worker.outbox.begin(publication.event_id, lease=timedelta(seconds=1))
        if job is None:
            continue
        choice = random.random()
        if choice < 0.4:
            await worker.outbox.pushed(job, await worker.outbox.push_begins(job.device))
        elif choice < 0.7:
            await worker.outbox.complete(job, reason="nothing_waits")
        elif choice < 0.9:
            await worker.outbox.bury(job.event_id, reason="poison")


async def requeue(worker: WorkerParts, devices: list[DeviceId]) -> None:
    for letter in await worker.outbox.dead_letters(5):
        await worker.outbox.requeue_dead_letter(worker.stores.postgres, letter.event_id)


async def clean_up(worker: WorkerParts, devices: list[DeviceId]) -> None:
    for table in (Table.EXPIRED, Table.ACKED, Table.OUTBOX):
        await worker.retention.sweep(table, POLICY, 100)


async def repair(worker: WorkerParts, devices: list[DeviceId]) -> None:
    await worker.retention.repair_counters(BEFORE_ALL, 5)
    await worker.outbox.repair_wake_open(BEFORE_ALL, 5)
    await worker.outbox.take_back_overdue(50)
    await worker.outbox.open_wakes(some(devices, 6))


async def force_repair(worker: WorkerParts, devices: list[DeviceId]) -> None:
    await worker.stores.postgres.execute("SELECT repair_counters_v1($1)", random.choice(devices))


async def shorten(worker: WorkerParts, devices: list[DeviceId]) -> None:
    async for _ in worker.retention.apply(timedelta(seconds=random.randint(20, 60)), worker.audit, policy_version=1):
        pass


STEPS: list[Step] = [submit, ack, contact, route, work, requeue, clean_up, repair, force_repair, shorten]


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.slow)])
async def test_no_deadlock_between_gateways_workers_and_repair(database: str, redis_url: str, seconds: float) -> None:
    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(worker_parts(database, redis_url)) for _ in range(3)]
        one = processes[0]
        devices = await one.stores.devices(MAILBOXES)
        before = await one.stores.postgres.fetchval(DEADLOCKS)
        end = asyncio.get_running_loop().time() + seconds
        done: dict[str, int] = {}

        async def keep_on(worker: WorkerParts, step: Step) -> None:
            while asyncio.get_running_loop().time() < end:
                try:
                    await step(worker, devices)
                except MailboxError as error:
                    if error.code is not ErrorCode.UNAVAILABLE:  # no connection within 2 s: a busy machine
                        raise
                    continue
                done[step.__name__] = done.get(step.__name__, 0) + 1  # type: ignore[attr-defined]

        await asyncio.gather(*(keep_on(worker, step) for worker in processes for step in STEPS))
        assert set(done) == {step.__name__ for step in STEPS}  # type: ignore[attr-defined]
        await one.stores.postgres.execute("SELECT pg_stat_force_next_flush()")
        assert await one.stores.postgres.fetchval(DEADLOCKS) == before
        assert await one.retention.repair_counters(BEFORE_ALL, 100) == (max(devices), 0)
