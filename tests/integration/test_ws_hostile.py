"""Slow, silent and hostile clients: bounded memory, closed in time, nobody else notices for long."""

from __future__ import annotations

import asyncio
import os

import pytest

from protocol.codec import encode_client_frame
from protocol.frames import Ack, Hello, MailboxBatch, Ping, Pong, PullMailbox, SendAck
from tests.support.gateways import GatewayLab, LocalGateway
from tests.support.mailboxes import a_mid
from tests.support.raw_client import PING, RawClient, ws_frame
from tests.support.waiting import eventually

MIB = 1024 * 1024


async def serves(client: RawClient) -> None:
    client.send(Ping("here"))
    assert (await client.find(Pong)).t == "here"


async def test_half_sent_frames_cannot_hold_the_process_budget(
    lab: GatewayLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.ws_door.STUCK_BUDGET_S", 1.0)
    async with lab.gateway(inbound_bytes_max=16 * MIB) as gateway:
        budget = gateway.gateway.services.inbound
        honest = await gateway.session(await lab.device())
        hostile = [await gateway.session(await lab.device()) for _ in range(7)]
        for client in hostile:
            client.send_raw(ws_frame(bytes(4 * MIB - 64))[: 3 * MIB])
        await eventually(lambda: budget.exceeded, what="the budget is exhausted")
        most = budget.used
        assert most < 16 * MIB + 7 * 512 * 1024  # exceeded by one read a connection at most
        # The largest go, one a second, until there is room; who says whole things is served again.
        await serves(honest)
        await eventually(lambda: not budget.exceeded, within_seconds=30, what="there is room")
        await serves(honest)
        codes = []
        for client in hostile:
            try:
                codes.append((await client.closed(within_seconds=0.2)).code)
            except TimeoutError:
                codes.append(0)
        assert 4503 in codes
        assert 0 in codes  # no more than needed


async def test_bytes_in_flight_are_given_back(lab: GatewayLab, gateway: LocalGateway) -> None:
    alice, bob = await lab.devices(2)
    sender = await gateway.session(alice)
    for _ in range(5):
        await sender.deliver(bob.id, os.urandom(50_000))
    sender.send_raw(ws_frame(bytes(100_000))[:60_000])
    budget = gateway.gateway.services.inbound
    await eventually(lambda: budget.used >= 60_000, what="the half frame is counted")
    sender.cut()
    await eventually(lambda: budget.used == 0, what="everything is given back")


async def test_a_client_that_asks_and_never_reads_costs_bounded_memory(lab: GatewayLab, gateway: LocalGateway) -> None:
    alice, bob = await lab.devices(2)
    sender = await gateway.session(alice)
    for _ in range(40):
        await sender.deliver(bob.id, os.urandom(60_000))
    client = await gateway.socket()
    await client.hello(bob.token, window_entries=1)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    for n in range(500):
        client.send(PullMailbox(n, None, 256))
    client.send_raw(ws_frame(b"p" * 100, PING) * 5_000)
    session = gateway.gateway.services.registry.of_device(bob.id)
    assert session is not None
    transport = session.connection.transport
    assert transport is not None
    await eventually(lambda: transport.get_write_buffer_size() > 64 * 1024, what="answers pile up")
    largest = 0
    for _ in range(50):
        await serves(sender)
        largest = max(largest, transport.get_write_buffer_size())
    assert largest < 8 * MIB  # a few pages in flight and what one read brought
    assert session.state.in_flight <= 4


async def test_a_flood_of_small_requests_leaves_others_their_turn(lab: GatewayLab, gateway: LocalGateway) -> None:
    flooder, other = await gateway.session(await lab.device()), await gateway.session(await lab.device())
    flood = b"".join(ws_frame(encode_client_frame(Ack(n, (a_mid(),)))) for n in range(20_000))
    flooder.send_raw(flood)
    async with asyncio.timeout(15):
        for _ in range(20):
            await serves(other)
    flooder.cut()
    await serves(other)


async def test_connections_without_hello_hold_next_to_nothing(lab: GatewayLab, gateway: LocalGateway) -> None:
    clients = [await gateway.socket() for _ in range(20)]
    for client in clients:
        client.send_raw(ws_frame(encode_client_frame(Hello("t" * 16_000)))[:15_000])
    await eventually(lambda: gateway.gateway.services.inbound.used == 20 * 15_000, what="all of it has come in")
    await serves(await gateway.session(await lab.device()))
    for client in clients:
        client.cut()
    await eventually(lambda: gateway.gateway.services.inbound.used == 0, what="given back")


async def test_a_session_whose_socket_is_cut_while_much_is_on_its_way_leaves_nothing(
    lab: GatewayLab, gateway: LocalGateway
) -> None:
    alice, bob = await lab.devices(2)
    sender = await gateway.session(alice)
    mids = [await sender.deliver(bob.id, os.urandom(60_000)) for _ in range(20)]
    for _ in range(5):
        client = await gateway.socket()
        await client.hello(bob.token, window_entries=1_024, window_bytes=8 * MIB)
        client.send(PullMailbox(1), Ack(2, (a_mid(),)))
        client.cut()
    await eventually(lambda: gateway.gateway.services.registry.of_device(bob.id) is None, what="all are gone")
    client = await gateway.session(bob, window_entries=1_024, window_bytes=8 * MIB)
    assert [entry.mid for frame in client.seen if isinstance(frame, MailboxBatch) for entry in frame.entries] == mids
    assert not any(isinstance(frame, SendAck) for frame in client.seen)
    assert gateway.gateway.services.inbound.used == 0
