"""The way of a message over one gateway: HELLO, WELCOME, SEND, push, ACK, and what a session may count on."""

from __future__ import annotations

import asyncio
import os

from protocol.errors import ErrorCode
from protocol.frames import (
    Ack,
    AckResult,
    Defer,
    Error,
    Hello,
    MailboxBatch,
    Ping,
    Pong,
    PullMailbox,
    PushEvents,
    Send,
    SendAck,
    SendEnvelope,
    Welcome,
)
from protocol.ids import ClientMessageId, MessageId
from tests.support.gateways import GatewayLab, LocalGateway
from tests.support.mailboxes import a_cmid, a_mid
from tests.support.raw_client import RawClient
from tests.support.waiting import eventually


def entries_in(client: RawClient) -> list[MessageId]:
    """Every pushed entry so far, in order."""
    return [
        entry.mid
        for frame in client.seen
        if isinstance(frame, MailboxBatch) and frame.ref is None
        for entry in frame.entries
    ]


async def pushed(client: RawClient, count: int) -> list[MessageId]:
    """The first `count` pushed entries of the session."""
    while len(entries_in(client)) < count:
        await client.expect(MailboxBatch)
    return entries_in(client)


async def nothing_more(client: RawClient) -> None:
    """The server answers a PING next: nothing was pushed meanwhile."""
    client.send(Ping("fence"))
    assert await client.expect(Pong) == Pong("fence")


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
    assert entries_in(again) == []


async def test_welcome_says_what_waits_and_a_watermark_at_the_newest_entry(
    lab: GatewayLab, gateway: LocalGateway
) -> None:
    alice, bob = await lab.devices(2)
    sender = await gateway.session(alice)
    mids = [await sender.deliver(bob.id) for _ in range(3)]
    client = await gateway.socket()
    welcome = await client.hello(bob.token)
    assert welcome.pending
    assert welcome.heartbeat_s == 45
    assert welcome.limits.max_frame_bytes == 4 * 1024 * 1024
    batches = await client.caught_up()
    assert entries_in(client) == mids
    assert not batches[-1].more
    # From the watermark on there is nothing: a session that starts there is caught up at once.
    later = await gateway.socket()
    welcome = await later.hello(bob.token, cursor=welcome.watermark, instance=os.urandom(16), attempt=1)
    assert not welcome.pending
    assert (await later.caught_up())[0].entries == ()


async def test_an_empty_mailbox_says_caught_up_at_once(lab: GatewayLab, gateway: LocalGateway) -> None:
    client = await gateway.socket()
    welcome = await client.hello((await lab.device()).token)
    assert not welcome.pending
    batch = await client.expect(MailboxBatch)
    assert (batch.ref, batch.entries, batch.more, batch.caught_up) == (None, (), False, True)


async def test_sends_of_one_session_arrive_in_the_order_sent(lab: GatewayLab, gateway: LocalGateway) -> None:
    alice, bob = await lab.devices(2)
    sender, receiver = await gateway.session(alice), await gateway.session(bob)
    mids = [a_mid() for _ in range(300)]
    sender.send(*(Send(a_cmid(), (SendEnvelope(bob.id, mid, 1, b"x"),), echo=False) for mid in mids))
    answers = [await sender.expect(SendAck) for _ in mids]
    assert len({answer.cmid for answer in answers}) == len(mids)
    while len(entries_in(receiver)) < len(mids):
        batch = await receiver.expect(MailboxBatch)
        if batch.entries:
            receiver.send(Defer(tuple(entry.mid for entry in batch.entries[:100])))
            for first in range(100, len(batch.entries), 100):
                receiver.send(Defer(tuple(entry.mid for entry in batch.entries[first : first + 100])))
    assert entries_in(receiver) == mids


async def test_an_echo_comes_into_the_senders_own_mailbox(lab: GatewayLab, gateway: LocalGateway) -> None:
    alice, bob = await lab.devices(2)
    sender = await gateway.session(alice)
    cmid = a_cmid()
    sender.send(Send(cmid, (SendEnvelope(bob.id, a_mid(), 1, b"x"),)))
    await sender.expect(SendAck)
    (echo,) = (await sender.expect(MailboxBatch)).entries
    assert (echo.echo, echo.pv, echo.body, echo.cmid) == (True, 0, None, cmid)


async def test_a_repeated_send_is_a_duplicate_and_is_pushed_once(lab: GatewayLab, gateway: LocalGateway) -> None:
    alice, bob = await lab.devices(2)
    sender, receiver = await gateway.session(alice), await gateway.session(bob)
    send = Send(a_cmid(), (SendEnvelope(bob.id, a_mid(), 1, b"x"),), echo=False)
    sender.send(send)
    first = await sender.expect(SendAck)
    sender.send(send)
    second = await sender.expect(SendAck)
    assert (first.duplicate, second.duplicate) == (False, True)
    assert first.results == second.results
    assert await pushed(receiver, 1) == [send.envelopes[0].mid]
    await nothing_more(receiver)
    assert len(entries_in(receiver)) == 1


async def test_the_window_holds_back_until_acked_or_deferred(lab: GatewayLab, gateway: LocalGateway) -> None:
    alice, bob = await lab.devices(2)
    sender = await gateway.session(alice)
    mids = [await sender.deliver(bob.id) for _ in range(5)]
    receiver = await gateway.socket()
    await receiver.hello(bob.token, window_entries=2)
    assert await pushed(receiver, 2) == mids[:2]
    await nothing_more(receiver)
    receiver.send(Ack(1, (mids[0],)))
    await receiver.find(AckResult)
    assert await pushed(receiver, 3) == mids[:3]
    receiver.send(Defer((mids[1], mids[2])))
    assert await pushed(receiver, 5) == mids
    assert [frame for frame in receiver.seen if isinstance(frame, MailboxBatch)][-1].caught_up


async def test_deferred_entries_come_again_in_the_next_session(lab: GatewayLab, gateway: LocalGateway) -> None:
    alice, bob = await lab.devices(2)
    sender, receiver = await gateway.session(alice), await gateway.session(bob)
    mid = await sender.deliver(bob.id)
    await pushed(receiver, 1)
    receiver.send(Defer((mid,)))
    await receiver.leave()
    assert entries_in(await gateway.session(bob)) == [mid]


async def test_one_entry_goes_whatever_its_size(lab: GatewayLab, gateway: LocalGateway) -> None:
    alice, bob = await lab.devices(2)
    sender = await gateway.session(alice)
    mids = [await sender.deliver(bob.id, os.urandom(60_000)) for _ in range(2)]
    receiver = await gateway.socket()
    await receiver.hello(bob.token, window_bytes=1_000)
    assert await pushed(receiver, 1) == mids[:1]
    await nothing_more(receiver)
    receiver.ack(mids[0])
    await receiver.find(AckResult)
    assert await pushed(receiver, 2) == mids


async def test_a_pull_pages_outside_of_the_window(lab: GatewayLab, gateway: LocalGateway) -> None:
    alice, bob = await lab.devices(2)
    sender = await gateway.session(alice)
    mids = [await sender.deliver(bob.id) for _ in range(5)]
    receiver = await gateway.socket()
    await receiver.hello(bob.token, window_entries=1)
    await pushed(receiver, 1)
    walked: list[MessageId] = []
    cursor, more = None, True
    while more:
        receiver.send(PullMailbox(3, cursor, 2))
        page = await receiver.expect(MailboxBatch)
        assert page.ref == 3
        walked += [entry.mid for entry in page.entries]
        cursor, more = page.cursor, page.more
        assert page.caught_up is not more
    assert walked == mids


async def test_pulled_and_acked_entries_let_the_stream_pass_the_watermark(
    lab: GatewayLab, gateway: LocalGateway
) -> None:
    """adr002: caught_up always comes, also when what lies below the watermark went another way."""
    alice, bob = await lab.devices(2)
    sender = await gateway.session(alice)
    mids = [await sender.deliver(bob.id) for _ in range(3)]
    receiver = await gateway.socket()
    await receiver.hello(bob.token, window_entries=1)
    await pushed(receiver, 1)
    receiver.ack(*mids[1:])  # never pushed: the window is still full with the first
    await receiver.find(AckResult)
    batches = [frame for frame in receiver.seen if isinstance(frame, MailboxBatch)]
    while not batches[-1].caught_up:
        batches.append(await receiver.expect(MailboxBatch))
    assert batches[-1].entries == ()


async def test_a_refused_send_says_which_envelopes_and_the_rest_goes_under_the_same_cmid(
    lab: GatewayLab, gateway: LocalGateway
) -> None:
    alice, bob = await lab.devices(2)
    sender, receiver = await gateway.session(alice), await gateway.session(bob)
    cmid = a_cmid()
    stranger = SendEnvelope(a_mid(), a_mid(), 1, b"x")  # type: ignore[arg-type]
    good = SendEnvelope(bob.id, a_mid(), 1, b"x")
    sender.send(Send(cmid, (good, stranger), echo=False))
    refused = await sender.expect(Error)
    assert (refused.code, refused.cmid, refused.at) == (ErrorCode.UNKNOWN_RECIPIENT, cmid, (1,))
    assert refused.outcome == "not_committed"
    sender.send(Send(cmid, (good,), echo=False))
    assert not (await sender.expect(SendAck)).duplicate
    assert await pushed(receiver, 1) == [good.mid]


async def test_adr009_3_1_another_ciphertext_under_a_known_message_id_is_a_conflict_and_is_audited(
    lab: GatewayLab, gateway: LocalGateway
) -> None:
    alice, bob = await lab.devices(2)
    sender = await gateway.session(alice)
    mid = a_mid()
    sender.send(Send(a_cmid(), (SendEnvelope(bob.id, mid, 1, b"one"),), echo=False))
    await sender.expect(SendAck)
    sender.send(Send(a_cmid(), (SendEnvelope(bob.id, mid, 1, b"two"),), echo=False))
    refused = await sender.expect(Error)
    assert (refused.code, refused.at) == (ErrorCode.MESSAGE_ID_CONFLICT, (0,))

    async def is_audited() -> bool:
        row = await lab.postgres.fetchrow("SELECT * FROM audit_events WHERE event_type = 'message_id.conflict'")
        return row is not None and (row["request_id"], row["outcome"]) == (refused.request_id, "refused")

    await eventually(is_audited)


async def test_a_ping_is_answered_with_its_own_value(lab: GatewayLab, gateway: LocalGateway) -> None:
    client = await gateway.session(await lab.device())
    for value in (None, 7, "text", b"bytes", [1, {"a": 2}]):
        client.send(Ping(value))
        answer = await client.expect(Pong)
        assert answer.t == (tuple(value) if isinstance(value, list) else value)


async def test_more_sends_than_may_be_in_flight_wait_and_all_are_answered(
    lab: GatewayLab, gateway: LocalGateway
) -> None:
    alice, bob = await lab.devices(2)
    sender = await gateway.session(alice)
    sends = [Send(a_cmid(), (SendEnvelope(bob.id, a_mid(), 1, b"x"),), echo=False) for _ in range(1_000)]
    sender.send(*sends)
    answered: set[ClientMessageId] = set()
    for _ in sends:
        answered.add((await sender.expect(SendAck)).cmid)
    assert answered == {send.cmid for send in sends}


async def test_frames_that_come_with_hello_in_one_piece_are_served_after_it(
    lab: GatewayLab, gateway: LocalGateway
) -> None:
    alice, bob = await lab.devices(2)
    client = await gateway.socket()
    body = os.urandom(60_000)  # larger than a frame may be before HELLO
    client.send(Hello(alice.token), Send(a_cmid(), (SendEnvelope(bob.id, a_mid(), 1, body),), echo=False))
    await client.expect(Welcome)
    await client.expect(MailboxBatch)
    await client.expect(SendAck)


async def test_a_mailbox_that_fills_tells_its_owner(lab: GatewayLab, gateway: LocalGateway) -> None:
    await lab.set_policy('{"pending_entries_max": 10}')
    await eventually(lambda: gateway.gateway.services.policy().pending_entries_max == 10, what="policy in force")
    alice, bob = await lab.devices(2)
    sender, receiver = await gateway.session(alice), await gateway.session(bob)
    for _ in range(9):
        await sender.deliver(bob.id)
    await pushed(receiver, 9)
    await nothing_more(receiver)
    told = [event for frame in receiver.seen if isinstance(frame, PushEvents) for event in frame.events]
    assert {"kind": "mailbox_filling"} in told
    # It is repeated at WELCOME.
    again = await gateway.session(bob)
    told = [event for frame in again.seen if isinstance(frame, PushEvents) for event in frame.events]
    assert {"kind": "mailbox_filling"} in told


async def test_an_answer_for_a_connection_that_has_gone_is_dropped_and_its_commit_stands(
    lab: GatewayLab, gateway: LocalGateway
) -> None:
    alice, bob = await lab.devices(2)
    sender, receiver = await gateway.session(alice), await gateway.session(bob)
    mid = a_mid()
    sender.send(Send(a_cmid(), (SendEnvelope(bob.id, mid, 1, b"x"),), echo=False))
    await asyncio.sleep(0)
    sender.cut()
    assert await pushed(receiver, 1) == [mid]
