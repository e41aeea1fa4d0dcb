"""Gateways as processes of their own, on the production loop: mail between them, takeover, drain, sudden death."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.certificate import self_signed
from protocol.frames import AckResult, GoAway, Hello, MailboxBatch, Ping, Pong, Send, SendAck, SendEnvelope
from protocol.ids import MessageId
from tests.support.gateways import GatewayLab
from tests.support.mailboxes import a_cmid, a_mid
from tests.support.raw_client import RawClient
from tests.support.waiting import eventually


@pytest.fixture
async def lab(database: str, redis_url: str, tmp_path: Path) -> AsyncIterator[GatewayLab]:
    async with GatewayLab(database, redis_url, tmp_path) as running:
        yield running


def pushed(client: RawClient) -> list[MessageId]:
    return [
        entry.mid
        for frame in client.seen
        if isinstance(frame, MailboxBatch) and frame.ref is None
        for entry in frame.entries
    ]


async def receive(client: RawClient, count: int, within_seconds: float = 30.0) -> list[MessageId]:
    async with asyncio.timeout(within_seconds):
        while len(pushed(client)) < count:
            await client.find(MailboxBatch, within_seconds)
    return pushed(client)


async def test_mail_and_takeover_between_two_processes(lab: GatewayLab) -> None:
    async with lab.process() as one, lab.process() as two:
        alice, bob = await lab.devices(2)
        sender, receiver = await one.session(alice), await two.session(bob)
        mids = [await sender.deliver(bob.id, os.urandom(30_000)) for _ in range(10)]
        assert await receive(receiver, 10) == mids
        receiver.ack(*mids)
        await receiver.find(AckResult)
        newer = await one.session(bob)
        assert (await receiver.closed()).code == 4409
        same = await two.session(bob, instance=b"p" * 16, attempt=1)
        assert (await newer.closed()).code == 4409
        later = await one.session(bob, instance=b"p" * 16, attempt=2)
        assert (await same.closed()).code == 1000
        mid = await sender.deliver(bob.id)
        assert await receive(later, 1) == [mid]


async def test_a_flood_in_one_piece_is_served_in_order(lab: GatewayLab) -> None:
    async with lab.process() as gateway:
        alice, bob = await lab.devices(2)
        sender = await gateway.session(alice)
        sends = [Send(a_cmid(), (SendEnvelope(bob.id, a_mid(), 1, os.urandom(2_000)),), echo=False) for _ in range(700)]
        sender.send(*sends)
        for _ in sends:
            await sender.find(SendAck)
        receiver = await gateway.socket()
        await receiver.hello(bob.token, window_entries=1_024, window_bytes=8 * 1024 * 1024)
        assert await receive(receiver, 700) == [send.envelopes[0].mid for send in sends]


async def test_short_of_its_open_files_a_newcomer_hears_503_and_nobody_is_disturbed(lab: GatewayLab) -> None:
    # 200 are its own and 100 are for those who are refused: of the hard limit 120 are left, more than the soft one.
    async with lab.process(open_files=(100, 420)) as gateway:
        connections = [await gateway.connect() for _ in range(120)]
        assert {(await connection.upgrade()).status for connection in connections} == {101}
        for _ in range(3):
            refused = await (await gateway.connect()).upgrade()
            assert refused.status == 503
            assert int(refused.headers["retry-after"]) >= 1
        device = await lab.device()
        await connections[0].hello(device.token)
        await connections[0].find(MailboxBatch)
        assert await connections[0].deliver(device.id)
        assert await asyncio.to_thread(gateway.is_ready)


class TestDrain:
    """SIGTERM: GOAWAY with a come-back time for each, then 1012, and exit code 0 within the deadline."""

    async def test_everybody_is_told_and_then_closed_1012(self, lab: GatewayLab) -> None:
        async with lab.process(settings={"MAILBOXD_DRAIN_DEADLINE_S": "6"}) as gateway:
            devices = await lab.devices(12)
            clients = [await gateway.session(device) for device in devices]
            waiting = await gateway.socket()  # no HELLO yet
            idle = await gateway.connect()
            began = time.monotonic()
            gateway.send(signal.SIGTERM)
            away = [await client.find(GoAway) for client in clients]
            assert len({frame.reconnect_after_ms for frame in away}) > 6
            assert all(frame.reconnect_after_ms >= 500 for frame in away)
            # Between GOAWAY and the close a session is served.
            mid = await clients[0].deliver(devices[1].id)
            assert await receive(clients[1], 1) == [mid]
            # Newcomers hear when to come back.
            refused = await idle.upgrade()
            assert refused.status == 503
            assert int(refused.headers["retry-after"]) >= 1
            waiting.send(Hello(devices[0].token))
            closed = await waiting.closed()
            assert closed.code == 4503
            assert json.loads(closed.reason)["reconnect_after_ms"] > 0
            assert {(await client.closed()).code for client in clients} == {1012}
            assert await gateway.ended() == 0
            assert time.monotonic() - began < 6 + 10

    async def test_the_rate_is_kept(self, lab: GatewayLab) -> None:
        settings = {"MAILBOXD_DRAIN_DEADLINE_S": "20", "MAILBOXD_DRAIN_RATE_PER_S": "10"}
        async with lab.process(settings=settings) as gateway:
            clients = [await gateway.session(await lab.device()) for _ in range(20)]
            began = time.monotonic()
            gateway.send(signal.SIGTERM)

            async def told_after(client: RawClient) -> float:
                await client.find(GoAway)
                return time.monotonic() - began

            times = sorted(await asyncio.gather(*(told_after(client) for client in clients)))
            assert 1.0 < times[-1] < 12.0  # 20 at 10 a second
            assert await gateway.ended() == 0

    async def test_what_is_in_flight_is_answered(self, lab: GatewayLab) -> None:
        async with lab.process(settings={"MAILBOXD_DRAIN_DEADLINE_S": "6"}) as gateway:
            alice, bob = await lab.devices(2)
            sender = await gateway.session(alice)
            sends = [Send(a_cmid(), (SendEnvelope(bob.id, a_mid(), 1, b"x"),), echo=False) for _ in range(200)]
            sender.send(*sends)
            gateway.send(signal.SIGTERM)
            for _ in sends:
                await sender.find(SendAck)
            assert (await sender.closed()).code == 1012
            assert await gateway.ended() == 0
        assert await lab.postgres.fetchval("SELECT count(*) FROM envelopes") == 200

    async def test_clients_that_do_not_answer_do_not_hold_it_up(self, lab: GatewayLab) -> None:
        async with lab.process(settings={"MAILBOXD_DRAIN_DEADLINE_S": "2"}) as gateway:
            for _ in range(5):
                client = await gateway.session(await lab.device())
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            gateway.send(signal.SIGTERM)
            assert await gateway.ended(within_seconds=30) == 0


@pytest.mark.slow
async def test_a_gateway_killed_after_the_commit_delivers_once_from_the_other(lab: GatewayLab) -> None:
    async with lab.process(faults="submit.after_commit=kill") as dying, lab.process() as other:
        alice, bob = await lab.devices(2)
        receiver = await other.session(bob)
        sender = await dying.session(alice, instance=b"a" * 16, attempt=1)
        send = Send(a_cmid(), (SendEnvelope(bob.id, a_mid(), 1, b"x"),), echo=False)
        sender.send(send)
        assert (await sender.closed()).code == 1006
        again = await other.session(alice, instance=b"a" * 16, attempt=2)
        again.send(send)
        answer = await again.find(SendAck)
        assert answer.duplicate
        assert await receive(receiver, 1, within_seconds=20) == [send.envelopes[0].mid]
        receiver.send(Ping("fence"))
        await receiver.find(Pong)
        assert len(pushed(receiver)) == 1


async def test_a_gateway_that_stands_still_holds_nobody_up(lab: GatewayLab) -> None:
    """SIGSTOP: no lock is held, the other gateway takes its devices over."""
    async with lab.process() as stopped, lab.process() as other:
        alice, bob = await lab.devices(2)
        held = await stopped.session(bob)
        sender = await other.session(alice)
        stopped.send(signal.SIGSTOP)
        try:
            mid = await sender.deliver(bob.id)
            receiver = await other.session(bob)
            assert await receive(receiver, 1) == [mid]
        finally:
            stopped.send(signal.SIGCONT)
        assert (await held.closed()).code == 4409
        assert pushed(held) in ([], [mid])


async def test_a_thousand_connections_come_and_go(lab: GatewayLab) -> None:
    async with lab.process() as gateway:

        async def come_and_go() -> None:
            client = await gateway.socket()
            await client.hello((await lab.device()).token)
            await client.caught_up()
            await client.leave()

        for _ in range(20):
            await asyncio.gather(*(come_and_go() for _ in range(50)))
        assert await gateway.metric("websockets") <= 50

        async def gone() -> bool:
            return await gateway.metric("connections") == 0

        await eventually(gone, what="nothing is counted any more")


async def test_a_hang_up_brings_a_new_certificate_in_and_leaves_connections_alone(
    lab: GatewayLab, tmp_path: Path
) -> None:
    certificate, key = self_signed(tmp_path)
    settings = {"MAILBOXD_TLS_CERTIFICATE": str(certificate), "MAILBOXD_TLS_KEY": str(key)}

    def trusting() -> dict[str, Any]:
        return {"ssl": ssl.create_default_context(cafile=str(certificate)), "server_hostname": "localhost"}

    async with lab.process(settings=settings) as gateway:
        old = trusting()
        session = await gateway.connect(**old)
        assert (await session.upgrade()).status == 101
        await session.hello((await lab.device()).token)
        await session.caught_up()

        certificate.write_text("nonsense")
        gateway.send(signal.SIGHUP)
        await eventually(lambda: "the old one stays" in gateway.log.read_text(), what="the mistake is told")
        await gateway.connect(**old)

        self_signed(tmp_path)
        gateway.send(signal.SIGHUP)
        new = trusting()

        async def is_served() -> bool:
            try:
                await gateway.connect(**new)
            except ssl.SSLCertVerificationError:
                return False
            return True

        await eventually(is_served, what="the new certificate is served")
        with pytest.raises(ssl.SSLCertVerificationError):
            await gateway.connect(**old)
        session.send(Ping("still"))
        assert (await session.find(Pong)).t == "still"
        gateway.send(signal.SIGTERM)
        assert (await session.closed()).code == 1012
        assert await gateway.ended() == 0
