"""The load generator speaks the contract, counts what happened, and notices what a server does wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from nacl.signing import SigningKey

from loadtest.accounts import Account
from loadtest.recorder import OfferedEnvelope, Recorder
from loadtest.run import figures, judged
from loadtest.swarm import Device, Swarm, SwarmFailed, Traffic, batch_of_one, send_ack_of_one
from protocol.codec import encode_entry, encode_mailbox_batch, encode_send_ack
from protocol.frames import Entry, SendResult
from protocol.ids import ClientMessageId, DeviceId, MessageId
from tests.unit.loadtest.model_server import Planted, model_server

DEVICES = 4


def some_accounts(count: int = DEVICES) -> list[Account]:
    ids = [bytes([number + 1]) * 16 for number in range(count)]
    return [Account(DeviceId(device), SigningKey.generate(), device.hex()) for device in ids]


def a_swarm(port: int, recorder: Recorder, *, echo: bool = False, payload: int = 100) -> Swarm:
    traffic = Traffic(payload_bytes=payload, echo=echo, senders=range(DEVICES), recipients=range(DEVICES))
    return Swarm(some_accounts(), [("127.0.0.1", port)], traffic, recorder)


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("payload", [10, 1_024, 65_536])
async def test_a_closed_loop_against_an_honest_server_is_clean(echo: bool, payload: int) -> None:
    recorder = Recorder()
    async with model_server() as server:
        swarm = a_swarm(server.port, recorder, echo=echo, payload=payload)
        await swarm.connect()
        swarm.start()
        await server.until_answered(60)
        swarm.stop()
        assert await swarm.drain()
        window, verdict = swarm.window, judged(swarm, recorder, drained=True)
        swarm.close()
    assert verdict["ok"], verdict
    assert window.delivered == window.confirmed == server.sends >= 60
    assert window.acked == window.delivered + window.echoes
    assert window.echoes == (window.confirmed if echo else 0)
    assert window.delivery.count == window.delivered
    assert not any(server.mailboxes.values())
    assert figures(window, 2.0)["confirmed_per_s"] == window.confirmed / 2


@pytest.mark.parametrize(
    ("planted", "fault"),
    [
        (Planted.LOSES, "lost"),
        (Planted.PUSHES_TWICE, "duplicated"),
        (Planted.CORRUPTS, "corrupted"),
        (Planted.REFUSES_AND_STORES, "refused_but_stored"),
    ],
)
async def test_a_planted_fault_is_found(planted: Planted, fault: str) -> None:
    recorder = Recorder()
    async with model_server(planted) as server:
        swarm = a_swarm(server.port, recorder)
        await swarm.connect()
        swarm.start()
        await server.until_answered(20)
        swarm.stop()
        drained = await swarm.drain(1.0)
        verdict = judged(swarm, recorder, drained=drained)
        swarm.close()
    assert verdict["verdict"][fault] == 1
    assert not verdict["ok"]
    assert drained is (planted is not Planted.LOSES)


async def test_a_refused_send_is_counted_and_the_device_goes_on() -> None:
    recorder = Recorder()
    async with model_server(Planted.REFUSES) as server:
        swarm = a_swarm(server.port, recorder)
        await swarm.connect()
        swarm.start()
        await server.until_answered(40)
        swarm.stop()
        assert await swarm.drain()
        verdict = judged(swarm, recorder, drained=True)
        swarm.close()
    assert verdict["refusals"] == {"MAILBOX_FULL": 1}
    assert verdict["verdict"]["refused_but_stored"] == verdict["lost"] == 0
    assert not verdict["ok"]  # limits are raised for a run: a refusal is a fault


async def test_a_lost_connection_fails_the_run() -> None:
    recorder = Recorder()
    async with model_server(Planted.CUTS) as server:
        swarm = a_swarm(server.port, recorder)
        await swarm.connect()
        swarm.start()
        await server.until_answered(10)
        swarm.stop()
        await swarm.drain(0.5)
        verdict = judged(swarm, recorder, drained=True)
        swarm.close()
    assert sum(verdict["disconnects"].values()) == 1
    assert not verdict["ok"]


async def test_a_backlog_arrives_in_batches_and_is_acked_by_the_hundred() -> None:
    recorder = Recorder()
    async with model_server() as server:
        swarm = a_swarm(server.port, recorder)
        await swarm.connect([0])
        sender, waiting = swarm.devices[0], swarm.accounts[1].device
        for _ in range(4):
            swarm.send_many(sender, [waiting] * 64)
        await server.until_answered(4)
        await swarm.connect([1])
        assert await swarm.drain()
        verdict = judged(swarm, recorder, drained=True)
        swarm.close()
    assert verdict["ok"], verdict
    assert verdict["verdict"]["acked_entries"] == 256
    assert not server.mailboxes[waiting]


async def test_a_refused_upgrade_is_told_as_the_server_put_it() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        swarm = a_swarm(server.sockets[0].getsockname()[1], Recorder())
        with pytest.raises(SwarmFailed, match="503 Service Unavailable"):
            await swarm.connect()


async def test_new_tokens_are_shown_on_open_connections() -> None:
    async with model_server() as server:
        swarm = a_swarm(server.port, Recorder())
        await swarm.connect()
        accounts: Sequence[Account] = swarm.accounts
        for account in accounts:
            account.token = "ff" * 16
        swarm.reauthenticate()
        await server.until_answered(reauths=DEVICES)
        swarm.close()
    assert server.tokens_seen == ["ff" * 16] * DEVICES


class TestLayouts:
    """What the swarm reads without unpacking is exactly what the codec writes; whatever differs is unpacked."""

    def test_a_send_ack_of_one_gives_its_values(self) -> None:
        cmid, mid = ClientMessageId(b"c" * 16), MessageId(b"m" * 16)
        message = encode_send_ack(cmid, False, (SendResult(mid, 1_700_000_000_000, 1_700_000_000_001),))
        layout = send_ack_of_one()
        assert len(message) == layout.size
        assert layout.read(message) == (cmid, mid, 1_700_000_000_000, 1_700_000_000_001)
        assert layout.read(encode_send_ack(cmid, True, (SendResult(mid, 1, 2),))) is None

    def test_a_batch_of_one_gives_its_values(self) -> None:
        mid, body, cursor = MessageId(b"m" * 16), b"b" * 1_024, "c" * 76
        entry = encode_entry(Entry(mid, 1, body, 1_700_000_000_000, 1_700_000_000_001))
        layout = batch_of_one(len(body))
        message = encode_mailbox_batch(None, [entry], cursor, False, True)
        assert len(message) == layout.size
        assert layout.read(message) == (mid, body, 1_700_000_000_000, 1_700_000_000_001, cursor.encode())
        for other in (
            encode_mailbox_batch(None, [entry], cursor, True, True),
            encode_mailbox_batch(None, [entry], cursor, False, False),
            encode_mailbox_batch(None, [encode_entry(Entry(mid, 2, body, 1, 2))], cursor, False, True),
        ):
            assert layout.read(other) is None


async def test_a_first_batch_of_one_entry_makes_a_device_ready() -> None:
    swarm = a_swarm(1, Recorder())
    device = Device(swarm, 0, "host")
    device.hello_message()
    attempt = swarm.recorder.offered(b"s" * 16, 1, [OfferedEnvelope(device.id, b"m" * 16, b"b" * 100)], note=1.0)
    entry = encode_entry(Entry(MessageId(b"m" * 16), 1, b"b" * 100, 1_700_000_000_000, 1_700_000_000_001))
    device.message(encode_mailbox_batch(None, [entry], "c" * 76, False, True))
    assert device.ready.done()
    assert attempt.records[0].received
    assert swarm.window.delivered == 1
