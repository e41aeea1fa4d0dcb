"""One session per device, on any gateway, fenced in PostgreSQL (WIRE, "One session per device")."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from protocol.frames import Defer, Hello, MailboxBatch, Ping, Pong
from store.wake import Wake, WakeBus, WakeKind
from tests.support.gateways import Device, GatewayLab, LocalGateway
from tests.support.raw_client import Closed, RawClient
from tests.support.waiting import eventually

ONE, OTHER = b"1" * 16, b"2" * 16


@pytest.fixture
async def second(lab: GatewayLab) -> AsyncIterator[LocalGateway]:
    """Another gateway of the same instance."""
    async with lab.gateway() as running:
        yield running


@pytest.fixture
async def alice(lab: GatewayLab) -> Device:
    return await lab.device()


async def refused(gateway: LocalGateway, device: Device, **hello: object) -> Closed:
    client = await gateway.socket()
    client.send(Hello(device.token)._replace(**hello))
    return await client.closed()


async def serves(client: RawClient) -> None:
    client.send(Ping("here"))
    assert (await client.find(Pong)).t == "here"


@pytest.mark.parametrize("where", ["the same gateway", "another gateway"])
class TestReplacing:
    @pytest.fixture
    def newer(self, where: str, gateway: LocalGateway, second: LocalGateway) -> LocalGateway:
        return gateway if where == "the same gateway" else second

    async def test_another_process_of_the_device_closes_the_older_with_4409(
        self, gateway: LocalGateway, newer: LocalGateway, alice: Device
    ) -> None:
        for old, new in ((None, None), (ONE, None), (None, ONE), (ONE, OTHER)):
            first = await gateway.session(alice, **({"instance": old, "attempt": 9} if old else {}))
            latest = await newer.session(alice, **({"instance": new, "attempt": 1} if new else {}))
            assert (await first.closed()).code == 4409
            await serves(latest)
            await latest.leave()

    async def test_a_higher_attempt_of_the_same_process_replaces_silently(
        self, gateway: LocalGateway, newer: LocalGateway, alice: Device
    ) -> None:
        first = await gateway.session(alice, instance=ONE, attempt=1)
        latest = await newer.session(alice, instance=ONE, attempt=2)
        assert (await first.closed()).code == 1000
        await serves(latest)

    async def test_a_lower_or_equal_attempt_is_late(
        self, gateway: LocalGateway, newer: LocalGateway, alice: Device
    ) -> None:
        living = await gateway.session(alice, instance=ONE, attempt=5)
        for attempt in (5, 4, 0, -1):
            assert (await refused(newer, alice, instance=ONE, attempt=attempt)).code == 4408
        await serves(living)

    async def test_more_than_ten_takeovers_a_minute_refuse_the_newcomer_with_4429(
        self, lab: GatewayLab, gateway: LocalGateway, newer: LocalGateway, alice: Device
    ) -> None:
        clients = [await (newer if n % 2 else gateway).session(alice) for n in range(11)]
        closed = await refused(newer, alice)
        assert closed.code == 4429
        assert 0 < json.loads(closed.reason)["reconnect_after_ms"] <= 60_000
        await serves(clients[-1])  # nobody was evicted
        for client in clients[:-1]:
            assert (await client.closed()).code == 4409

    async def test_a_device_that_left_and_comes_back_takes_nobodys_place(
        self, gateway: LocalGateway, newer: LocalGateway, alice: Device
    ) -> None:
        for n in range(15):
            client = await gateway.session(alice)
            await client.leave()
            if n % 5 == 0:
                await eventually(lambda: gateway.gateway.services.sessions.waiting == 0, what="its end is written")
        await newer.session(alice)

    async def test_mail_goes_to_the_newer_session_from_the_start(
        self, lab: GatewayLab, gateway: LocalGateway, newer: LocalGateway, alice: Device
    ) -> None:
        sender = await gateway.session(await lab.device())
        mid = await sender.deliver(alice.id)
        first = await gateway.session(alice)
        latest = await newer.session(alice)
        assert [e.mid for f in latest.seen if isinstance(f, MailboxBatch) for e in f.entries] == [mid]
        later = await sender.deliver(alice.id)
        assert [entry.mid for entry in (await latest.find(MailboxBatch)).entries] == [later]
        # On another gateway the older one may have got it too, before that gateway had heard: the app drops repeats.
        assert (await first.closed()).code == 4409


async def test_two_at_once_leave_exactly_one(
    lab: GatewayLab, gateway: LocalGateway, second: LocalGateway, alice: Device
) -> None:
    sockets = [await (gateway if n % 2 else second).socket() for n in range(8)]
    for client in sockets:
        client.send(Hello(alice.token))
    ends = {asyncio.create_task(client.closed()): client for client in sockets}
    await eventually(lambda: sum(end.done() for end in ends) == 7, what="all but one are closed")
    assert [end.result().code for end in ends if end.done()] == [4409] * 7
    (living,) = [end for end in ends if not end.done()]
    living.cancel()
    await asyncio.gather(living, return_exceptions=True)
    await serves(ends[living])


async def test_whoever_can_publish_cannot_log_a_device_out(
    lab: GatewayLab, gateway: LocalGateway, alice: Device
) -> None:
    """Before closing, the gateway reads PostgreSQL."""
    client = await gateway.session(alice)
    bus = WakeBus(lab.redis, lab.names)
    bus.publish([Wake(alice.id, 2**62, WakeKind.SESSION), Wake(alice.id, 0, WakeKind.REVOKED)])
    await bus.close()
    heard = gateway.gateway.services.metrics.wakes_in
    await eventually(
        lambda: all(heard.labels(kind=kind)._value.get() for kind in ("session", "revoked")), what="both are heard"
    )
    await serves(client)


async def test_without_redis_the_sweep_closes_what_was_replaced(lab: GatewayLab, alice: Device) -> None:
    """A takeover that nobody heard of is found within the sweep."""
    dead = "redis://127.0.0.1:1/0"
    async with (
        lab.gateway(redis_url=dead, sweep_without_redis_s=0.5) as gateway,
        lab.gateway(redis_url=dead, sweep_without_redis_s=0.5) as second,
    ):
        first = await gateway.session(alice)
        latest = await second.session(alice)
        assert (await first.closed()).code == 4409
        await serves(latest)


class TestLease:
    """`online_until` in the owner's row: what keeps the phone quiet while a session lives."""

    async def test_hello_and_close_write_it(self, lab: GatewayLab, gateway: LocalGateway, alice: Device) -> None:
        client = await gateway.session(alice)
        lasts_s = await lab.postgres.fetchval(
            "SELECT extract(epoch FROM online_until - mailboxd_now())::float FROM mailbox_owners WHERE device_id = $1",
            alice.id,
        )
        assert 100 < lasts_s <= 105  # 2 × 45 s + 5 s, and a bit
        await client.leave()

        async def ended() -> bool:
            return bool(
                await lab.postgres.fetchval(
                    "SELECT online_until <= mailboxd_now() AND session_alive_at IS NULL"
                    " FROM mailbox_owners WHERE device_id = $1",
                    alice.id,
                )
            )

        await eventually(ended, what="the close is written")

    async def test_a_replaced_session_does_not_end_the_lease_of_the_newer(
        self, lab: GatewayLab, gateway: LocalGateway, second: LocalGateway, alice: Device
    ) -> None:
        first = await gateway.session(alice)
        latest = await second.session(alice)
        await first.closed()
        await serves(latest)
        row = await lab.owner(alice)
        assert row["session_alive_at"] is not None
        assert row["online_until"] > await lab.postgres.fetchval("SELECT mailboxd_now()")

    async def test_a_close_with_mail_unfinished_makes_the_wake_due_and_one_without_does_not(
        self, lab: GatewayLab, gateway: LocalGateway, alice: Device
    ) -> None:
        sender = await gateway.session(await lab.device())

        async def due_in_s() -> float:
            return float(
                await lab.postgres.fetchval(
                    "SELECT extract(epoch FROM next_attempt_at - mailboxd_now())::float FROM outbox_events"
                    " WHERE aggregate_ref = $1",
                    alice.id,
                )
            )

        client = await gateway.session(alice)
        mid = await sender.deliver(alice.id)
        await client.find(MailboxBatch)
        assert await due_in_s() > 60  # it waits for the session's lease
        client.send(Defer((mid,)))
        await serves(client)
        await client.leave()
        await eventually(lambda: gateway.gateway.services.sessions.waiting == 0)

        async def closed() -> bool:
            return (await lab.owner(alice))["session_alive_at"] is None

        await eventually(closed)
        assert await due_in_s() > 60  # deferred: the app knows of it
        client = await gateway.session(alice)  # the deferred one comes again and stays un-acked
        await client.leave()

        async def due() -> bool:
            return await due_in_s() <= 0

        await eventually(due, what="the wake is due")
