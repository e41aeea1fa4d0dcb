"""Phones that are asleep behind sockets that look alive: woken within the stated times (DESIGN, "Stated times")."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protocol.frames import AckResult, Entry, MailboxBatch
from tests.support.gateways import Device, Door, GatewayLab
from tests.support.push_receiver import PushReceiver, push_receiver
from tests.support.waiting import eventually
from tests.support.wakes import WorkerParts, put_route, worker_parts
from tests.support.worker_process import WorkerLab

HEARTBEAT = {
    "MAILBOXD_HEARTBEAT_S": "5"
}  # silence is noticed after 15 s, a lease ends 25 s after the last sign of life
LEASE_SECONDS = 25


@pytest.fixture
async def lab(database: str, redis_url: str, tmp_path: Path) -> AsyncIterator[GatewayLab]:
    async with GatewayLab(database, redis_url, tmp_path) as made:
        yield made


@pytest.fixture
def workers(lab: GatewayLab) -> WorkerLab:
    return WorkerLab(lab.dsn, lab.redis_url, lab.directory)


@pytest.fixture
async def parts(lab: GatewayLab, workers: WorkerLab) -> AsyncIterator[WorkerParts]:
    """For looking and for moving the database's clock."""
    async with worker_parts(lab.dsn, lab.redis_url, seal=workers.seal) as made:
        yield made


@pytest.fixture
async def receiver() -> AsyncIterator[PushReceiver]:
    async with push_receiver() as made:
        yield made


async def a_phone(lab: GatewayLab, parts: WorkerParts, receiver: PushReceiver) -> Device:
    phone = await lab.device()
    await put_route(parts.stores, phone.id, receiver.url, seal=parts.seal)
    return phone


async def send_to(door: Door, sender: Device, phone: Device) -> float:
    """The loop's time at which the commit was known."""
    client = await door.session(sender)
    await client.deliver(phone.id)
    await client.leave()
    return asyncio.get_running_loop().time()


@pytest.mark.slow
async def test_a_phone_behind_a_black_hole_is_woken_when_its_lease_is_over(
    lab: GatewayLab, workers: WorkerLab, parts: WorkerParts, receiver: PushReceiver
) -> None:
    async with lab.process(settings=HEARTBEAT) as door, workers.worker():
        phone, sender = await a_phone(lab, parts, receiver), await lab.device()
        await door.session(phone)  # from here on nobody reads it or answers its pings
        committed = await send_to(door, sender, phone)
        await receiver.wait_for(1, within_seconds=LEASE_SECONDS + 15)
        assert asyncio.get_running_loop().time() - committed > 5  # it was taken for online at first


async def test_a_phone_whose_gateway_was_killed_is_woken_when_its_lease_is_over(
    lab: GatewayLab, workers: WorkerLab, parts: WorkerParts, receiver: PushReceiver
) -> None:
    async with lab.process(settings=HEARTBEAT) as dying, lab.process(settings=HEARTBEAT) as other, workers.worker():
        phone, sender = await a_phone(lab, parts, receiver), await lab.device()
        await dying.session(phone)
        dying.send(signal.SIGKILL)
        await dying.ended()
        await send_to(other, sender, phone)
        assert receiver.received == []
        await parts.skip(LEASE_SECONDS + 1)
        await receiver.wait_for(1, within_seconds=15)


async def test_a_phone_that_leaves_with_mail_on_the_way_is_woken_at_once(
    lab: GatewayLab, workers: WorkerLab, parts: WorkerParts, receiver: PushReceiver
) -> None:
    async with lab.process(settings=HEARTBEAT) as door, workers.worker():
        phone, sender = await a_phone(lab, parts, receiver), await lab.device()
        session = await door.session(phone)
        await send_to(door, sender, phone)
        session.cut()
        await receiver.wait_for(1, within_seconds=15)
        await eventually(lambda: was_pushed(parts, phone))


async def was_pushed(parts: WorkerParts, phone: Device) -> bool:
    return bool((await parts.intent(phone.id))["pushes_accepted"] == 1)


async def test_a_push_that_was_swallowed_comes_again_until_the_phone_does(
    lab: GatewayLab, workers: WorkerLab, parts: WorkerParts, receiver: PushReceiver
) -> None:
    async with lab.process(settings=HEARTBEAT) as door, workers.worker():
        phone, sender = await a_phone(lab, parts, receiver), await lab.device()
        await send_to(door, sender, phone)
        await receiver.wait_for(1)
        await parts.skip(31)
        await receiver.wait_for(2)
        session = await door.session(phone)
        entries: list[Entry] = [e for batch in session.seen if isinstance(batch, MailboxBatch) for e in batch.entries]
        session.ack(*(entry.mid for entry in entries))
        await session.expect(AckResult)
        await session.leave()
        await parts.skip(600)
        await send_to(door, sender, phone)  # a new wake, at once, with no repeat of the old one before it
        await receiver.wait_for(3)
        assert len(receiver.received) == 3
