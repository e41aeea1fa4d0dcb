"""What a device asks for over its session is held to its rate, as over HTTP; mail and ACKs have limits of their own."""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.frames import Ack, AckResult, Error, MailboxBatch, Ping, Pong, PullMailbox, PushEvents, Reauth
from tests.support.gateways import GatewayLab
from tests.support.raw_client import RawClient

TIGHT = '{"submit_rate_per_device": 1, "submit_burst_per_device": 64}'


async def answers(client: RawClient, count: int, *kinds: type) -> list[object]:
    """The next so many frames of these kinds."""
    found: list[object] = []
    while len(found) < count:
        frame = await client.frame()
        if isinstance(frame, kinds):
            found.append(frame)
    return found


async def test_pulls_are_held_to_the_devices_rate_and_the_session_goes_on(lab: GatewayLab) -> None:
    await lab.set_policy(TIGHT)
    async with lab.gateway() as gateway:
        alice, bob = await lab.devices(2)
        client, other = await gateway.session(alice), await gateway.session(bob)
        client.send(*(PullMailbox(ref) for ref in range(100)))
        came = await answers(client, 100, MailboxBatch, Error)
        refused = [frame for frame in came if isinstance(frame, Error)]
        assert 30 <= len(refused) <= 36
        assert {frame.code for frame in refused} == {ErrorCode.RATE_LIMITED}
        assert {frame.ref for frame in refused} < set(range(100))
        assert all(frame.retryable and frame.retry_after_ms for frame in refused)
        # SENDs and ACKs are not what it has used up, and nobody else notices.
        mid = await client.deliver(alice.id)
        client.send(Ack(1, (mid,)))
        assert (await client.find(AckResult)).ref == 1
        other.send(PullMailbox(7))
        assert (await other.find(MailboxBatch)).ref == 7


async def test_a_reauth_beyond_the_rate_is_refused_and_the_old_deadline_stands(lab: GatewayLab) -> None:
    await lab.set_policy(TIGHT)
    async with lab.gateway() as gateway:
        device = await lab.device()
        client = await gateway.session(device)
        client.send(*(Reauth(device.token) for _ in range(70)))
        came = await answers(client, 70, PushEvents, Error)
        refused = [frame for frame in came if isinstance(frame, Error)]
        assert len(refused) >= 3
        assert {frame.code for frame in refused} == {ErrorCode.RATE_LIMITED}
        await client.deliver(device.id)


async def test_any_number_of_refused_requests_at_once_is_answered_each_once_and_in_order(lab: GatewayLab) -> None:
    """They are refused without a question to the database, so nothing but the connection paces them."""
    async with lab.gateway() as gateway:
        client = await gateway.session(await lab.device())
        client.send(*(PullMailbox(ref, cursor="no cursor") for ref in range(3_000)))
        came = await answers(client, 3_000, MailboxBatch, Error)
        assert [frame.ref for frame in came if isinstance(frame, Error)] == list(range(3_000))
        client.send(Ping("still here"))
        assert (await client.find(Pong)).t == "still here"
