"""The way of a message over one gateway: HELLO, WELCOME, SEND, push, ACK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protocol.frames import Ack, AckResult, MailboxBatch, Send, SendAck, SendEnvelope
from tests.support.gateways import GatewayLab, LocalGateway
from tests.support.mailboxes import a_cmid, a_mid


@pytest.fixture
async def lab(database: str, redis_url: str, tmp_path: Path) -> AsyncIterator[GatewayLab]:
    async with GatewayLab(database, redis_url, tmp_path) as running:
        yield running


@pytest.fixture
async def gateway(lab: GatewayLab) -> AsyncIterator[LocalGateway]:
    async with lab.gateway() as running:
        yield running


async def test_a_sent_envelope_is_pushed_and_gone_after_its_ack(lab: GatewayLab, gateway: LocalGateway) -> None:
    alice, bob = await lab.devices(2)
    sender, receiver = await gateway.session(alice), await gateway.session(bob)
    cmid, mid = a_cmid(), a_mid()
    sender.send(Send(cmid, (SendEnvelope(bob.id, mid, 1, b"sealed"),), echo=False))
    answer = await sender.expect(SendAck)
    assert (answer.cmid, answer.duplicate, answer.results[0].mid) == (cmid, False, mid)
    batch = await receiver.expect(MailboxBatch)
    assert [(entry.mid, entry.body) for entry in batch.entries] == [(mid, b"sealed")]
    assert (batch.ref, batch.more, batch.caught_up) == (None, False, True)
    receiver.send(Ack(7, (mid,)))
    assert await receiver.expect(AckResult) == AckResult(7, ("acked",))
    again = await gateway.session(bob)
    assert [entry for frame in again.seen if isinstance(frame, MailboxBatch) for entry in frame.entries] == []
