"""A client on a slow link is not a silent one: its signs of life wait unread behind what it has yet to take."""

from __future__ import annotations

import asyncio
import os
import socket

from protocol.frames import MailboxBatch, PullMailbox
from tests.support.gateways import GatewayLab, ShiftedClock
from tests.support.raw_client import PONG, ws_frame
from tests.support.waiting import eventually

SOCKET_BUFFER_BYTES = 32 * 1024  # so that what is sent waits in the gateway and not in the kernel


async def test_a_client_that_takes_a_large_batch_slowly_keeps_its_session(lab: GatewayLab) -> None:
    shifted = ShiftedClock()
    async with lab.gateway(clock=shifted, sweep_s=0.5, heartbeat_s=5) as gateway:
        alice, sender = await lab.device(), await gateway.session(await lab.device())
        for _ in range(16):
            await sender.deliver(alice.id, os.urandom(60_000))
        client = await gateway.socket()
        await client.hello(alice.token, window_entries=1)
        await client.find(MailboxBatch)
        session = gateway.gateway.services.registry.of_device(alice.id)
        assert session is not None
        assert session.connection.transport is not None
        connection = session.connection
        keep_small(client.writer.transport, socket.SO_RCVBUF)
        keep_small(session.connection.transport, socket.SO_SNDBUF)
        client.send(PullMailbox(1))
        await eventually(lambda: connection.reading_paused, what="the batch waits for the client")
        for _ in range(4):  # 80 s: many times what the heartbeat allows
            client.send_raw(ws_frame(b"", PONG))
            await client.reader.readexactly(100_000)
            shifted.ahead_s += 20
            gateway.gateway.door.tick()
            assert connection.reading_paused
            assert connection.is_open


def keep_small(transport: asyncio.WriteTransport, which: int) -> None:
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, which, SOCKET_BUFFER_BYTES)
