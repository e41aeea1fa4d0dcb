"""Devices that come, go, replace each other and ack over both gateways while wakes are lost: all mail arrives."""

from __future__ import annotations

import asyncio
import random

import pytest

from protocol.frames import AckResult, Defer, MailboxBatch, Send, SendAck, SendEnvelope
from protocol.ids import MessageId
from tests.support.gateways import Device, GatewayLab, LocalGateway
from tests.support.mailboxes import a_cmid, a_mid
from tests.support.raw_client import Closed, RawClient
from tests.support.seeds import random_seeds
from tests.support.waiting import pace

SECONDS = 6.0
DEVICES = 5


class Receiver:
    """One device's life: it connects anywhere, takes what comes, acks or defers, and is cut off or replaced."""

    def __init__(self, device: Device, gateways: list[LocalGateway], dice: random.Random) -> None:
        self.device = device
        self.got: set[MessageId] = set()
        self.acked: set[MessageId] = set()
        self.closed_with: set[int] = set()
        self._asked: dict[int, MessageId] = {}
        self._gateways = gateways
        self._dice = dice
        self._attempt = 0

    async def live(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            self._attempt += 1
            client = await self._dice.choice(self._gateways).socket()
            try:
                fields = {
                    "instance": self.device.id,
                    "attempt": self._attempt,
                    "window_entries": self._dice.choice((1, 3, 50)),
                }
                await client.hello(self.device.token, **fields)
                await self._receive(client, stopping, self._dice.uniform(0.05, 1.0))
            except Closed as closed:
                self.closed_with.add(closed.code)
            client.cut()

    async def drain(self, gateway: LocalGateway, expected: set[MessageId]) -> None:
        """Take all that is left."""
        self._attempt += 1
        client = await gateway.socket()
        await client.hello(self.device.token, instance=self.device.id, attempt=self._attempt)
        seen: list[MessageId] = []
        async with asyncio.timeout(60):
            while not expected <= self.got:
                batch = await client.find(MailboxBatch)
                seen += [entry.mid for entry in batch.entries]
                self._take(client, batch, always=True)
        assert len(seen) == len(set(seen))  # within one session an entry is pushed once

    async def _receive(self, client: RawClient, stopping: asyncio.Event, seconds: float) -> None:
        seen: set[MessageId] = set()
        try:
            async with asyncio.timeout(seconds):
                while not stopping.is_set():
                    frame = await client.frame()
                    if isinstance(frame, AckResult):
                        self.acked.add(self._asked[frame.ref])
                    if isinstance(frame, MailboxBatch):
                        mids = {entry.mid for entry in frame.entries}
                        assert not mids & seen  # within one session an entry is pushed once
                        assert not mids & self.acked  # what was acked never comes back
                        seen |= mids
                        self._take(client, frame)
        except TimeoutError:
            return

    def _take(self, client: RawClient, batch: MailboxBatch, *, always: bool = False) -> None:
        for entry in batch.entries:
            self.got.add(entry.mid)
            if always or self._dice.random() < 0.8:
                ref = len(self._asked)
                self._asked[ref] = entry.mid
                client.ack(entry.mid, ref=ref)
            else:
                client.send(Defer((entry.mid,)))


async def sends(
    gateway: LocalGateway, sender: Device, to: list[Device], dice: random.Random, stopping: asyncio.Event
) -> dict[bytes, set[MessageId]]:
    """SEND to random recipients until told to stop; what was confirmed for whom."""
    client = await gateway.session(sender)
    sent: dict[bytes, set[MessageId]] = {device.id: set() for device in to}
    while not stopping.is_set():
        recipients = dice.sample(to, dice.randint(1, len(to)))
        body = b"x" * dice.choice((10, 3_000))
        envelopes = tuple(SendEnvelope(device.id, a_mid(), 1, body) for device in recipients)
        client.send(Send(a_cmid(), envelopes, echo=False))
        await client.find(SendAck)
        for envelope in envelopes:
            sent[envelope.to].add(envelope.mid)
        await pace(dice.choice((0, 0, 0.02)))
    return sent


@pytest.mark.parametrize("seed", random_seeds(1))
async def test_all_mail_arrives_in_the_end_and_none_twice_in_a_session(lab: GatewayLab, seed: int) -> None:
    dice = random.Random(seed)
    async with lab.gateway(sweep_s=1.0) as one, lab.gateway(sweep_s=1.0) as two:
        gateways = [one, two]
        devices = await lab.devices(DEVICES)
        receivers = [Receiver(device, gateways, dice) for device in devices]
        senders = await lab.devices(2)
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for receiver in receivers:
                group.create_task(receiver.live(stopping))
            sending = [
                group.create_task(sends(gateway, sender, devices, dice, stopping))
                for gateway, sender in zip(gateways, senders, strict=True)
            ]
            async with asyncio.timeout(SECONDS + 60):
                for _ in range(int(SECONDS)):
                    await pace(1)
                    await lab.redis.execute_command("CLIENT", "KILL", "TYPE", "PUBSUB")
            stopping.set()
        for receiver in receivers:
            expected = set().union(*(task.result()[receiver.device.id] for task in sending))
            assert expected
            await receiver.drain(dice.choice(gateways), expected)
            assert receiver.got == expected
            assert receiver.closed_with <= {1000, 1006, 4408, 4429}
