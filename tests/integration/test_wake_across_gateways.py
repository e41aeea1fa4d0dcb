"""Mail reaches a session on another gateway: promptly while wakes arrive, within the sweep when they do not."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
import redis.asyncio

from protocol.frames import AckResult, MailboxBatch, Ping, Pong, PushEvents
from protocol.ids import MessageId, to_text
from tests.support.gateways import Device, GatewayLab, LocalGateway
from tests.support.raw_client import RawClient
from tests.support.waiting import eventually, in_time


@pytest.fixture
async def second(lab: GatewayLab) -> AsyncIterator[LocalGateway]:
    """Another gateway of the same instance; its sweep is too rare to be what carries mail here."""
    async with lab.gateway(sweep_s=60.0) as running:
        yield running


@pytest.fixture
async def gateway(lab: GatewayLab) -> AsyncIterator[LocalGateway]:
    async with lab.gateway(sweep_s=60.0) as running:
        yield running


def pushed(client: RawClient) -> list[MessageId]:
    return [
        entry.mid
        for frame in client.seen
        if isinstance(frame, MailboxBatch) and frame.ref is None
        for entry in frame.entries
    ]


async def receive(client: RawClient, count: int, within_seconds: float = 10.0) -> list[MessageId]:
    async with asyncio.timeout(within_seconds):
        while len(pushed(client)) < count:
            await client.find(MailboxBatch)
    return pushed(client)


async def nothing_more(client: RawClient) -> None:
    client.send(Ping("fence"))
    await client.find(Pong)


async def http_ack(gateway: LocalGateway, device: Device, *mids: MessageId) -> None:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {device.token}"}) as session,
        session.post(
            f"http://127.0.0.1:{gateway.port}/v1/mailbox/acks", json={"message_ids": [to_text(mid) for mid in mids]}
        ) as answer,
    ):
        assert answer.status == 200, await answer.text()


async def test_mail_arrives_promptly_on_another_gateway(
    lab: GatewayLab, gateway: LocalGateway, second: LocalGateway
) -> None:
    alice, bob = await lab.devices(2)
    sender, receiver = await gateway.session(alice), await second.session(bob)
    mids = []
    for n in range(20):
        mids.append(await sender.deliver(bob.id))
        assert await receive(receiver, n + 1) == mids


async def test_mail_over_http_arrives_promptly_on_both_gateways(
    lab: GatewayLab, gateway: LocalGateway, second: LocalGateway
) -> None:
    alice, bob, carol = await lab.devices(3)
    receivers = [await gateway.session(bob), await second.session(carol)]
    mids = [os.urandom(16), os.urandom(16)]
    body = {
        "envelopes": [
            {"to": to_text(to.id), "message_id": to_text(mid), "protocol_version": 1, "body": to_text(b"x")}
            for to, mid in zip((bob, carol), mids, strict=True)
        ]
    }
    headers = {"Authorization": f"Bearer {alice.token}", "Idempotency-Key": "one"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"http://127.0.0.1:{gateway.port}/v1/envelopes", json=body) as answer,
    ):
        assert answer.status == 201
    for receiver, mid in zip(receivers, mids, strict=True):
        assert await receive(receiver, 1) == [mid]


@pytest.mark.parametrize("where", ["the session's gateway", "another gateway"])
async def test_an_ack_over_http_frees_the_window_within_a_second(
    lab: GatewayLab, gateway: LocalGateway, second: LocalGateway, where: str
) -> None:
    async def freed_after() -> float:
        alice, bob = await lab.devices(2)
        sender = await gateway.session(alice)
        mids = [await sender.deliver(bob.id) for _ in range(4)]
        receiver = await gateway.socket()
        await receiver.hello(bob.token, window_entries=2)
        assert await receive(receiver, 2) == mids[:2]
        await http_ack(gateway if where == "the session's gateway" else second, bob, mids[0], mids[1])
        began = time.monotonic()
        assert await receive(receiver, 4) == mids
        return time.monotonic() - began

    await in_time(freed_after, at_most_s=1)


async def test_caught_up_comes_when_the_rest_was_acked_over_http(
    lab: GatewayLab, gateway: LocalGateway, second: LocalGateway
) -> None:
    alice, bob = await lab.devices(2)
    sender = await gateway.session(alice)
    mids = [await sender.deliver(bob.id) for _ in range(3)]
    receiver = await gateway.socket()
    await receiver.hello(bob.token, window_entries=1)
    await receive(receiver, 1)
    await http_ack(second, bob, *mids)
    batches = [frame for frame in receiver.seen if isinstance(frame, MailboxBatch)]
    while not batches[-1].caught_up:
        batches.append(await receiver.find(MailboxBatch))
    assert batches[-1].entries == ()


async def test_revocation_closes_the_session_within_a_second(
    lab: GatewayLab, gateway: LocalGateway, second: LocalGateway
) -> None:
    async def closed_after() -> float:
        device = await lab.device()
        client = await second.session(device)
        await lab.postgres.execute("UPDATE mailboxes SET state = 2 WHERE device_id = $1", device.id)
        began = time.monotonic()
        gateway.gateway.services.wake.publish_revoked([device.id])
        assert (await client.closed()).code == 4403
        return time.monotonic() - began

    await in_time(closed_after, at_most_s=1)


async def test_events_reach_the_session_on_another_gateway(
    lab: GatewayLab, gateway: LocalGateway, second: LocalGateway
) -> None:
    device = await lab.device()
    client = await second.session(device, cursor=None)
    gateway.gateway.services.delivery.tell(device.id, "push_route_gone")
    events = await client.find(PushEvents)
    assert events.events == ({"kind": "push_route_gone"},)


async def test_a_lost_wake_costs_a_sweep_and_no_message(lab: GatewayLab) -> None:
    """The second gateway's subscription hears nothing, and nothing says so."""
    async with lab.gateway() as gateway, lab.gateway(sweep_s=0.5) as second:
        alice, bob = await lab.devices(2)
        sender, receiver = await gateway.session(alice), await second.session(bob)
        channel = lab.names.device(bob.id)
        second.gateway.listener.subscriber.drop(channel)

        async def deaf() -> bool:  # Redis has to have heard of it, too
            ((_, listeners),) = await lab.redis.pubsub_numsub(channel)
            return not listeners

        await eventually(deaf, what="it is deaf")
        mid = await sender.deliver(bob.id)
        assert await receive(receiver, 1) == [mid]
        found = second.gateway.services.metrics.found_by_sweep
        assert found._value.get() >= 1
        second.gateway.listener.subscriber.want(channel)


async def test_a_cut_subscription_is_made_anew_and_everybody_is_compared(
    lab: GatewayLab, gateway: LocalGateway, second: LocalGateway
) -> None:
    alice, bob = await lab.devices(2)
    sender, receiver = await gateway.session(alice), await second.session(bob)
    for round_number in range(3):
        await lab.redis.execute_command("CLIENT", "KILL", "TYPE", "PUBSUB")
        mid = await sender.deliver(bob.id)
        assert (await receive(receiver, round_number + 1))[-1] == mid
    await eventually(lambda: second.gateway.listener.alive, what="wakes arrive again")


async def test_a_subscription_that_died_without_an_error_is_found_by_the_canary(
    lab: GatewayLab, gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.wake_listener.CANARY_DEAD_S", 1.0)
    monkeypatch.setattr("gateway.wake_listener.CANARY_S", 0.2)
    restarts = gateway.gateway.listener.subscriber.restarts
    # The connection stays, and what it has subscribed is gone: as after a failover behind a proxy.
    link, _ = gateway.gateway.listener.subscriber._links[""]
    link._leaving = dict.fromkeys(link._wanted, 1)
    await link._connection.send_command("UNSUBSCRIBE")
    await eventually(
        lambda: gateway.gateway.listener.subscriber.restarts > restarts, within_seconds=15, what="it was made anew"
    )
    await eventually(lambda: gateway.gateway.listener.alive, what="wakes arrive again")


async def test_without_redis_everything_goes_on_with_the_faster_sweep(lab: GatewayLab) -> None:
    dead = "redis://127.0.0.1:1/0"
    async with (
        lab.gateway(redis_url=dead, sweep_without_redis_s=0.5) as gateway,
        lab.gateway(redis_url=dead, sweep_without_redis_s=0.5) as second,
    ):
        alice, bob = await lab.devices(2)
        sender, receiver = await gateway.session(alice), await second.session(bob)
        own = await gateway.session(carol := await lab.device())
        mid = await sender.deliver(bob.id)
        assert await receive(receiver, 1) == [mid]
        near = await sender.deliver(carol.id)
        assert await receive(own, 1) == [near]  # in one process nothing needs Redis
        receiver.ack(mid)
        await receiver.find(AckResult)
        async with aiohttp.ClientSession() as session:
            answer = await session.get(f"http://127.0.0.1:{gateway.port}/readyz")
            assert answer.status == 200
            answer.release()


async def test_redis_that_goes_and_comes_back_is_used_again(
    lab: GatewayLab, gateway: LocalGateway, second: LocalGateway
) -> None:
    """All connections cut at once, again and again, while mail flows: nothing is missed, nothing comes twice."""
    alice, bob = await lab.devices(2)
    sender, receiver = await gateway.session(alice), await second.session(bob)
    sent = []
    for _ in range(10):
        await lab.redis.execute_command("CLIENT", "KILL", "TYPE", "PUBSUB")
        await lab.redis.execute_command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "yes")
        sent += [await sender.deliver(bob.id) for _ in range(5)]
    assert await receive(receiver, len(sent)) == sent
    await nothing_more(receiver)
    assert len(pushed(receiver)) == len(sent)


async def test_a_flushed_redis_loses_no_mail(lab: GatewayLab, gateway: LocalGateway, second: LocalGateway) -> None:
    alice, bob = await lab.devices(2)
    sender, receiver = await gateway.session(alice), await second.session(bob)
    client = redis.asyncio.Redis.from_url(lab.redis_url)
    await client.flushdb()
    await client.aclose()
    mid = await sender.deliver(bob.id)
    assert await receive(receiver, 1) == [mid]


async def test_wakes_name_no_device_and_carry_no_content(lab: GatewayLab, gateway: LocalGateway) -> None:
    alice, bob = await lab.devices(2)
    sender = await gateway.session(alice)
    subscription = lab.redis.pubsub()
    await subscription.psubscribe("*")
    heard = []
    mid = await sender.deliver(bob.id, b"canary-content")
    async with asyncio.timeout(10):
        async for message in subscription.listen():
            heard.append(message)
            if message["channel"] == lab.names.device(bob.id):
                break
    await subscription.aclose()
    shown = repr(heard).encode()
    for secret in (bob.id, mid, b"canary-content", bob.id.hex().encode(), to_text(bob.id).encode()):
        assert secret not in shown
