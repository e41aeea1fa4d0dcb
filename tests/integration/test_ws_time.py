"""What the passing of time does to a connection: HELLO timeout, heartbeat, token end, slow consumers, expiry."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import asyncpg
import pytest

from protocol.codec import encode_client_frame
from protocol.errors import ErrorCode
from protocol.frames import Error, GoAway, Hello, MailboxBatch, Ping, Pong, PushEvents, Reauth
from protocol.ids import MessageId
from protocol.server_session import Phase
from tests.support.gateways import Device, GatewayLab, LocalGateway, ShiftedClock
from tests.support.raw_client import PING, PONG, RawClient, ws_frame
from tests.support.services import set_clock_offset
from tests.support.waiting import eventually


@pytest.fixture
def shifted() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
async def gateway(lab: GatewayLab, shifted: ShiftedClock) -> AsyncIterator[LocalGateway]:
    async with lab.gateway(clock=shifted, sweep_s=0.5) as running:
        yield running


@pytest.fixture
async def alice(lab: GatewayLab) -> Device:
    return await lab.device()


async def serves(client: RawClient) -> None:
    client.send(Ping("here"))
    assert (await client.find(Pong)).t == "here"


async def test_no_hello_within_ten_seconds_closes_4408(gateway: LocalGateway, shifted: ShiftedClock) -> None:
    client = await gateway.socket()
    shifted.ahead_s += 9
    client.send_raw(ws_frame(b"", PING))  # a sign of life is no HELLO
    assert await client.next() == (PONG, b"")
    shifted.ahead_s += 1.1
    assert (await client.closed()).code == 4408


async def test_a_hello_while_the_database_stands_still_is_told_unavailable_within_ten_seconds(
    lab: GatewayLab, gateway: LocalGateway, shifted: ShiftedClock, alice: Device
) -> None:
    client = await gateway.socket()
    async with lab.postgres.transaction() as standstill:
        await standstill.execute("LOCK TABLE mailbox_owners IN ACCESS EXCLUSIVE MODE")
        client.send(Hello(alice.token))
        registry = gateway.gateway.services.registry
        await eventually(
            lambda: any(session.state.phase is Phase.GREETING for session in registry.everybody()),
            what="HELLO is being judged",
        )
        shifted.ahead_s += 9
        gateway.gateway.door.tick()
        assert gateway.gateway.door.open_sockets == 1
        shifted.ahead_s += 1.1
        closed = await client.closed()
    assert closed.code == 4503
    assert "reconnect_after_ms" in closed.reason
    error = client.errors()[-1]
    assert (error.code, error.retryable) == (ErrorCode.UNAVAILABLE, True)
    again = await gateway.session(alice)  # what was judged after all holds nobody up
    await serves(again)


async def test_an_operator_may_ask_for_hello_sooner(lab: GatewayLab) -> None:
    async with lab.gateway(hello_timeout_s=1) as gateway:
        client = await gateway.socket()
        assert (await client.closed(within_seconds=8)).code == 4408


async def test_an_idle_client_is_pinged_and_a_silent_one_is_closed_4408(
    gateway: LocalGateway, shifted: ShiftedClock, alice: Device
) -> None:
    client = await gateway.session(alice)
    client.answers_pings = False
    shifted.ahead_s += 46
    await eventually(lambda: pinged(client), what="the server pings")
    shifted.ahead_s += 50
    assert (await client.closed()).code == 4408


async def pinged(client: RawClient) -> bool:
    try:
        await client.frame(within_seconds=0.1)
    except TimeoutError:
        pass
    return client.pings > 0


async def test_any_sign_of_life_keeps_a_session(gateway: LocalGateway, shifted: ShiftedClock, alice: Device) -> None:
    client = await gateway.session(alice)
    client.answers_pings = False
    for sign in (ws_frame(b"", PONG), ws_frame(b"\x82", PONG), ws_frame(encode_client_frame(Ping("here")))):
        shifted.ahead_s += 80
        client.send_raw(sign)
        await eventually(lambda: heard_lately(gateway, shifted, alice), what="it is taken as a sign of life")
        gateway.gateway.door.tick()
    await serves(client)


def heard_lately(gateway: LocalGateway, shifted: ShiftedClock, device: Device) -> bool:
    session = gateway.gateway.services.registry.of_device(device.id)
    assert session is not None
    return shifted.monotonic() - session.connection.heard_at < 10


async def test_a_token_that_ends_is_announced_and_then_closes_4401(
    gateway: LocalGateway, shifted: ShiftedClock, alice: Device
) -> None:
    client = await gateway.socket()
    welcome = await client.hello(alice.token)
    await client.caught_up()
    await live_until(client, shifted, 900 - 59)
    soon = await client.find(PushEvents)
    assert soon.events[0]["kind"] == "reauth_soon"
    assert soon.events[0]["before"] == welcome.reauth_before + 60_000
    away = await client.find(GoAway)
    assert away.reconnect_after_ms > 0
    await serves(client)  # it is served until the end
    shifted.ahead_s += 61
    closed = await client.closed()
    assert closed.code == 4401
    assert client.errors()[-1].code is ErrorCode.TOKEN_EXPIRED


async def live_until(client: RawClient, shifted: ShiftedClock, seconds: float) -> None:
    """Let that much time pass for a client that shows life all along."""
    target = shifted.ahead_s + seconds
    while shifted.ahead_s < target:
        shifted.ahead_s = min(target, shifted.ahead_s + 60)
        await serves(client)


async def test_no_frame_is_served_past_the_end_of_the_token(
    gateway: LocalGateway, shifted: ShiftedClock, alice: Device
) -> None:
    client = await gateway.session(alice)
    await live_until(client, shifted, 890)
    shifted.ahead_s += 11
    client.send(Ping("too late"))
    assert (await client.closed()).code == 4401
    assert not any(isinstance(frame, Pong) and frame.t == "too late" for frame in client.seen)


async def test_reauth_moves_the_end_and_a_bad_one_does_not(
    gateway: LocalGateway, shifted: ShiftedClock, alice: Device
) -> None:
    client = await gateway.session(alice)
    await live_until(client, shifted, 850)
    issued = gateway.gateway.services.auth.issue(alice.id)  # by the clock that has moved
    client.send(Reauth(issued.token))
    while True:
        (event, *_) = (await client.find(PushEvents)).events
        if event["kind"] == "reauthenticated":
            break
    assert event == {"kind": "reauthenticated", "reauth_before": issued.reauth_before_ms}
    await live_until(client, shifted, 120)  # past the first token's end
    client.send(Reauth(alice.token))  # issued by a clock that is behind: long expired here
    assert (await client.find(Error)).code is ErrorCode.TOKEN_EXPIRED
    await serves(client)
    await live_until(client, shifted, 700)
    shifted.ahead_s += 90
    assert (await client.closed()).code == 4401


async def test_a_client_that_takes_no_bytes_for_thirty_seconds_closes_4413(
    lab: GatewayLab, gateway: LocalGateway, shifted: ShiftedClock, alice: Device
) -> None:
    sender = await gateway.session(await lab.device())
    client = await gateway.socket()
    await client.hello(alice.token, window_entries=1_024, window_bytes=8 * 1024 * 1024)
    await client.caught_up()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    mids = [await sender.deliver(alice.id, os.urandom(65_000)) for _ in range(100)]
    session = gateway.gateway.services.registry.of_device(alice.id)
    assert session is not None
    transport = session.connection.transport
    assert transport is not None
    await eventually(lambda: transport.get_write_buffer_size() > 0, what="the client's socket is full")
    assert transport.get_write_buffer_size() < 2 * 1024 * 1024  # and no more is read for it
    # The others notice nothing.
    bob = await lab.device()
    receiver = await gateway.session(bob)
    mid = await sender.deliver(bob.id)
    assert (await receiver.find(MailboxBatch)).entries[0].mid == mid
    shifted.ahead_s += 6
    gateway.gateway.door.tick()
    shifted.ahead_s += 30
    await eventually(lambda: gateway.gateway.services.registry.of_device(alice.id) is None, what="it is closed")
    closes = gateway.gateway.services.metrics.closes.labels(code="4413")._value.get()
    assert closes == 1
    again = await gateway.session(alice, window_entries=1_024, window_bytes=8 * 1024 * 1024)
    assert [e.mid for f in again.seen if isinstance(f, MailboxBatch) for e in f.entries] == mids


async def test_expiry_frees_the_window(
    lab: GatewayLab, gateway: LocalGateway, database: str, shifted: ShiftedClock, alice: Device
) -> None:
    sender = await gateway.session(await lab.device())
    short = [await sender.deliver(alice.id, ttl_s=60) for _ in range(2)]
    lasting = [await sender.deliver(alice.id) for _ in range(2)]
    client = await gateway.socket()
    await client.hello(alice.token, window_entries=2)
    assert await pushed(client, 2) == short
    connection = await asyncpg.connect(database)
    try:
        await set_clock_offset(connection, 61)
        shifted.ahead_s += 61
        assert await pushed(client, 4) == short + lasting
    finally:
        await connection.close()


async def pushed(client: RawClient, count: int) -> list[MessageId]:
    def so_far() -> list[MessageId]:
        return [
            entry.mid
            for frame in client.seen
            if isinstance(frame, MailboxBatch) and frame.ref is None
            for entry in frame.entries
        ]

    while len(so_far()) < count:
        await client.find(MailboxBatch)
    return so_far()


async def test_a_lease_is_renewed_while_the_client_shows_life_and_runs_out_when_it_does_not(
    lab: GatewayLab, gateway: LocalGateway, shifted: ShiftedClock, alice: Device
) -> None:
    client = await gateway.session(alice)
    first = (await lab.owner(alice))["online_until"]
    shifted.ahead_s += 20
    await serves(client)

    async def renewed() -> bool:
        return bool((await lab.owner(alice))["online_until"] > first)

    await eventually(renewed, what="the sweep renews the lease")
    again = (await lab.owner(alice))["online_until"]
    sweeps = gateway.gateway.services.database_time.now_ms()
    await eventually(lambda: gateway.gateway.services.database_time.now_ms() > sweeps + 1_200, what="two more sweeps")
    assert (await lab.owner(alice))["online_until"] == again  # no sign of life since: nothing to renew


async def test_a_token_from_a_gateway_whose_clock_is_ahead_is_good(
    lab: GatewayLab, gateway: LocalGateway, shifted: ShiftedClock, alice: Device
) -> None:
    shifted.ahead_s -= 20
    client = await gateway.socket()
    await client.hello(alice.token)
