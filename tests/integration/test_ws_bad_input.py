"""Bad input over the wire: each gets the code that the contract names; malformed closes, refused goes on."""

from __future__ import annotations

import os
import struct
from typing import Any

import msgpack
import pytest

from protocol.codec import encode_client_frame
from protocol.errors import ErrorCode
from protocol.frames import (
    Ack,
    AckResult,
    Error,
    Hello,
    MailboxBatch,
    Ping,
    Pong,
    PullMailbox,
    Reauth,
    Send,
    SendAck,
    SendEnvelope,
)
from protocol.ids import MessageId
from tests.support.gateways import Device, GatewayLab, LocalGateway
from tests.support.mailboxes import a_cmid, a_mid
from tests.support.raw_client import CLOSE, CONTINUATION, PING, TEXT, RawClient, ws_frame


def packed(*value: Any) -> bytes:
    return bytes(msgpack.packb(list(value)))


ID = bytes(range(1, 17))
ZERO = bytes(16)
ENVELOPE = {"to": ID, "mid": ID, "pv": 1, "body": b"x"}

MALFORMED = {
    "nothing": b"",
    "not an array": msgpack.packb({"type": 7}),
    "an array of one": packed(7),
    "an array of three": packed(7, {"t": 1}, 1),
    "a body that is no map": packed(7, [1]),
    "a type that is text": packed("7", {"t": 1}),
    "a type that is a bool": packed(True, {"t": 1}),
    "truncated": packed(7, {"t": "some text"})[:-3],
    "trailing bytes": packed(7, {"t": 1}) + b"\x00",
    "an ext type": packed(7, {"t": msgpack.ExtType(1, b"x")}),
    "a second HELLO": packed(1, {"token": "t"}),
    "SEND without cmid": packed(2, {"envelopes": [ENVELOPE]}),
    "SEND with a short cmid": packed(2, {"cmid": ID[:15], "envelopes": [ENVELOPE]}),
    "SEND with an all-zero cmid": packed(2, {"cmid": ZERO, "envelopes": [ENVELOPE]}),
    "SEND without envelopes": packed(2, {"cmid": ID, "envelopes": []}),
    "SEND with 65 envelopes": packed(
        2, {"cmid": ID, "envelopes": [{**ENVELOPE, "mid": os.urandom(16)} for _ in range(65)]}
    ),
    "SEND with one envelope twice": packed(2, {"cmid": ID, "envelopes": [ENVELOPE, ENVELOPE]}),
    "SEND to an all-zero device": packed(2, {"cmid": ID, "envelopes": [{**ENVELOPE, "to": ZERO}]}),
    "SEND with an all-zero mid": packed(2, {"cmid": ID, "envelopes": [{**ENVELOPE, "mid": ZERO}]}),
    "SEND with a text body": packed(2, {"cmid": ID, "envelopes": [{**ENVELOPE, "body": "x"}]}),
    "SEND with a bool pv": packed(2, {"cmid": ID, "envelopes": [{**ENVELOPE, "pv": True}]}),
    "SEND with a wrong pad": packed(2, {"cmid": ID, "envelopes": [{**ENVELOPE, "pad": 0}]}),
    "SEND with a float ttl_s": packed(2, {"cmid": ID, "envelopes": [{**ENVELOPE, "ttl_s": 60.0}]}),
    "SEND with echo as an int": packed(2, {"cmid": ID, "envelopes": [ENVELOPE], "echo": 1}),
    "ACK without ref": packed(3, {"mids": [ID]}),
    "ACK of nothing": packed(3, {"ref": 1, "mids": []}),
    "ACK of 101": packed(3, {"ref": 1, "mids": [os.urandom(16) for _ in range(101)]}),
    "ACK with a bool ref": packed(3, {"ref": True, "mids": [ID]}),
    "ACK of a text id": packed(3, {"ref": 1, "mids": ["a" * 16]}),
    "PULL with limit 0": packed(4, {"ref": 1, "limit": 0}),
    "PULL with limit 257": packed(4, {"ref": 1, "limit": 257}),
    "PULL with an empty cursor": packed(4, {"ref": 1, "cursor": ""}),
    "PULL with a cursor of 513": packed(4, {"ref": 1, "cursor": "a" * 513}),
    "DEFER of a short id": packed(5, {"mids": [ID[:8]]}),
    "REAUTH without token": packed(6, {}),
    "PING without t": packed(7, {}),
    "PING of 65 bytes": packed(7, {"t": b"x" * 63}),
    "an int beyond 64 bits": b"\x92\x07\x81\xa1t" + b"\xc7",
    "deeply nested": packed(7, {"t": 1, "more": [[[[[[[[[[1]]]]]]]]]]}),
}


@pytest.fixture
async def alice(lab: GatewayLab) -> Device:
    return await lab.device()


async def is_malformed(client: RawClient, name: str = "") -> None:
    """ERROR BAD_FRAME, then 4400, and nothing else."""
    closed = await client.closed()
    assert closed.code == 4400, (name, closed)
    (error,) = client.errors()
    assert error.code is ErrorCode.BAD_FRAME, name
    assert not error.retryable
    assert error.request_id


async def serves(client: RawClient) -> None:
    """The session goes on."""
    client.send(Ping("still here"))
    assert (await client.find(Pong)).t == "still here"


async def test_every_malformed_frame_is_told_and_closes_4400(lab: GatewayLab, gateway: LocalGateway) -> None:
    for name, message in MALFORMED.items():
        client = await gateway.session(await lab.device())
        client.send_message(message)
        await is_malformed(client, name)


NO_HELLO = (
    packed(7, {"t": 1}),
    packed(2, {"cmid": ID, "envelopes": [ENVELOPE]}),
    packed(99, {}),
    packed(1, {}),
    packed(1, {"token": 1}),
    packed(1, {"token": "t", "window_entries": 0}),
    packed(1, {"token": "t", "window_bytes": -1}),
    packed(1, {"token": "t", "window_entries": True}),
    packed(1, {"token": "t", "instance": ID[:15]}),
    packed(1, {"token": "t", "client": "x" * 129}),
    packed(1, {"token": "t", "cursor": ""}),
    packed(1, {"token": "t", "cursor": "c" * 513}),
    b"\xff\xff\xff",
)


async def test_anything_but_a_good_hello_first_closes_4400(gateway: LocalGateway) -> None:
    for message in NO_HELLO:
        client = await gateway.socket()
        client.send_message(message)
        await is_malformed(client, repr(message))


async def test_a_text_message_closes_4400(gateway: LocalGateway, alice: Device) -> None:
    client = await gateway.session(alice)
    client.send_raw(ws_frame(b'{"type": 7}', TEXT))
    await is_malformed(client)
    client = await gateway.socket()
    client.send_raw(ws_frame(b"hello", TEXT))
    await is_malformed(client)


async def test_an_unknown_type_is_told_and_the_session_goes_on(gateway: LocalGateway, alice: Device) -> None:
    client = await gateway.session(alice)
    for kind in (0, 8, 64, 73, 200, -1):
        client.send_message(packed(kind, {"a": 1}))
        assert (await client.find(Error)).code is ErrorCode.UNSUPPORTED_FRAME
    await serves(client)


async def test_unknown_keys_are_ignored(gateway: LocalGateway, alice: Device) -> None:
    client = await gateway.session(alice)
    client.send_message(packed(7, {"t": 1, "later": {"version": 2}}))
    assert (await client.find(Pong)).t == 1
    client.send_message(
        packed(2, {"cmid": ID, "envelopes": [{**ENVELOPE, "to": alice.id, "new": 1}], "echo": False, "x": None})
    )
    assert (await client.find(SendAck)).cmid == ID


async def test_a_wrong_token_is_told_and_closes_4401(lab: GatewayLab, gateway: LocalGateway, alice: Device) -> None:
    good = alice.token
    head, body, signature = good.split(".")
    for token in ("", "x", good[:-4] + "AAAA", f"{head}.{body}.", f"{body}.{body}.{signature}", good + "\n"):
        client = await gateway.socket()
        client.send(Hello(token))
        assert (await client.closed()).code == 4401
        assert [error.code for error in client.errors()] == [ErrorCode.UNAUTHENTICATED]


async def test_a_token_for_a_device_that_never_was_closes_4401(lab: GatewayLab, gateway: LocalGateway) -> None:
    client = await gateway.socket()
    client.send(Hello(lab.auth.issue(a_mid()).token))  # type: ignore[arg-type]
    assert (await client.closed()).code == 4401


async def test_a_revoked_device_is_told_and_closes_4403(lab: GatewayLab, gateway: LocalGateway, alice: Device) -> None:
    await lab.postgres.execute("UPDATE mailboxes SET state = 2 WHERE device_id = $1", alice.id)
    client = await gateway.socket()
    client.send(Hello(alice.token))
    assert (await client.closed()).code == 4403
    assert [error.code for error in client.errors()] == [ErrorCode.DEVICE_REVOKED]


async def test_a_bad_hello_cursor_starts_at_the_oldest_entry(
    lab: GatewayLab, gateway: LocalGateway, alice: Device
) -> None:
    sender = await gateway.session(await lab.device())
    mid = await sender.deliver(alice.id)
    for cursor in ("x", "c" * 512, "AQAAAAE" + "A" * 69):
        client = await gateway.socket()
        assert (await client.hello(alice.token, cursor=cursor)).pending
        assert (await client.find(MailboxBatch)).entries[0].mid == mid


async def test_another_devices_cursor_starts_hello_at_the_oldest_and_refuses_a_pull(
    lab: GatewayLab, gateway: LocalGateway, alice: Device
) -> None:
    bob = await lab.device()
    sender = await gateway.session(bob)
    mid = await sender.deliver(alice.id)
    foreign = next(frame for frame in sender.seen if isinstance(frame, MailboxBatch)).cursor
    client = await gateway.socket()
    await client.hello(alice.token, cursor=foreign)
    assert (await client.find(MailboxBatch)).entries[0].mid == mid
    for cursor in (foreign, "x", "c" * 512):
        client.send(PullMailbox(9, cursor))
        error = await client.find(Error)
        assert (error.code, error.ref) == (ErrorCode.CURSOR_INVALID, 9)
    await serves(client)


REFUSED: tuple[tuple[dict[str, Any], ErrorCode], ...] = (
    ({"to": a_mid()}, ErrorCode.UNKNOWN_RECIPIENT),
    ({"pv": 2}, ErrorCode.UNSUPPORTED_PROTOCOL_VERSION),
    ({"pv": 2**63}, ErrorCode.UNSUPPORTED_PROTOCOL_VERSION),
    ({"pv": -1}, ErrorCode.UNSUPPORTED_PROTOCOL_VERSION),
    ({"ttl_s": 1}, ErrorCode.TTL_OUT_OF_RANGE),
    ({"ttl_s": -(2**63)}, ErrorCode.TTL_OUT_OF_RANGE),
    ({"body": bytes(65_537)}, ErrorCode.ENVELOPE_TOO_LARGE),
)


async def test_a_refused_send_is_told_with_its_cmid_and_the_session_goes_on(
    gateway: LocalGateway, alice: Device
) -> None:
    client = await gateway.session(alice)
    for fields, code in REFUSED:
        cmid = a_cmid()
        envelope = SendEnvelope(alice.id, a_mid(), 1, b"x")._replace(**fields)
        client.send(Send(cmid, (envelope,), echo=False))
        error = await client.find(Error)
        assert (error.code, error.cmid, error.at, error.outcome) == (code, cmid, (0,), "not_committed")
    client.send(Send(a_cmid(), (SendEnvelope(alice.id, a_mid(), 1, b"x"),), echo=False))
    assert not (await client.find(SendAck)).duplicate


async def test_a_bad_reauth_is_told_and_the_session_goes_on(
    lab: GatewayLab, gateway: LocalGateway, alice: Device
) -> None:
    client = await gateway.session(alice)
    for token in ("nonsense", (await lab.device()).token):
        client.send(Reauth(token))
        assert (await client.find(Error)).code is ErrorCode.UNAUTHENTICATED
    await serves(client)


async def test_acks_of_unknown_and_foreign_ids_answer_acked(
    lab: GatewayLab, gateway: LocalGateway, alice: Device
) -> None:
    bob = await lab.device()
    client = await gateway.session(alice)
    foreign = await client.deliver(bob.id)
    own = await client.deliver(alice.id)
    client.send(Ack(2, (foreign, own, MessageId(a_mid()), own)))
    assert (await client.find(AckResult)).results == ("acked",) * 4
    receiver = await gateway.session(bob)
    assert [e.mid for f in receiver.seen if isinstance(f, MailboxBatch) for e in f.entries] == [foreign]


class TestFraming:
    """RFC 6455 below the contract."""

    async def test_a_message_above_16_kib_before_hello_closes_1009(self, gateway: LocalGateway) -> None:
        client = await gateway.socket()
        client.send_raw(ws_frame(encode_client_frame(Hello("t" * 16_500))))
        assert (await client.closed()).code == 1009
        assert client.errors() == []

    async def test_a_message_of_16_kib_is_read_before_hello(self, gateway: LocalGateway) -> None:
        client = await gateway.socket()
        size = 16 * 1024 - len(encode_client_frame(Hello("t" * 16_000))) + 16_000
        client.send_message(encode_client_frame(Hello("t" * size)))
        assert (await client.closed()).code == 4401

    async def test_a_message_above_4_mib_closes_1009_before_it_is_read(
        self, gateway: LocalGateway, alice: Device
    ) -> None:
        client = await gateway.session(alice)
        client.send_raw(ws_frame(b"", length=4 * 1024 * 1024 + 1))  # its header alone
        assert (await client.closed()).code == 1009

    async def test_fragments_of_one_message_are_joined(self, gateway: LocalGateway, alice: Device) -> None:
        client = await gateway.session(alice)
        message = encode_client_frame(Ping("in pieces"))
        client.send_raw(ws_frame(message[:5], fin=False))
        client.send_raw(ws_frame(b"are you there", PING))
        client.send_raw(ws_frame(message[5:9], CONTINUATION, fin=False) + ws_frame(message[9:], CONTINUATION))
        answers = [await client.next() for _ in range(2)]
        assert answers[0] == (0xA, b"are you there")
        assert b"in pieces" in answers[1][1]
        await serves(client)

    async def test_fragments_above_4_mib_in_all_close_1009(self, gateway: LocalGateway, alice: Device) -> None:
        client = await gateway.session(alice)
        client.send_raw(ws_frame(bytes(3 * 1024 * 1024), fin=False))
        client.send_raw(ws_frame(bytes(2 * 1024 * 1024), CONTINUATION))
        assert (await client.closed()).code == 1009

    async def test_a_message_that_comes_byte_by_byte_is_served(self, gateway: LocalGateway, alice: Device) -> None:
        client = await gateway.session(alice)
        for byte in ws_frame(encode_client_frame(Ping("slow"))) * 2:
            client.send_raw(bytes((byte,)))
            await client.writer.drain()
        assert [(await client.find(Pong)).t for _ in range(2)] == ["slow", "slow"]

    async def test_what_breaks_the_websocket_protocol_closes_1002(self, lab: GatewayLab, gateway: LocalGateway) -> None:
        for frame in (
            ws_frame(b"x", masked=False),
            ws_frame(b"x", rsv=4),
            ws_frame(b"x", opcode=3),
            ws_frame(b"x", opcode=0xB),
            ws_frame(b"x", CONTINUATION),
            ws_frame(b"x" * 126, PING),
            ws_frame(b"x", PING, fin=False),
            ws_frame(b"\x03", CLOSE),
            ws_frame(struct.pack("!H", 1), CLOSE),
        ):
            client = await gateway.session(await lab.device())
            client.send_raw(frame)
            assert (await client.closed()).code == 1002, frame

    async def test_a_ping_is_ponged_and_a_pong_is_taken(self, gateway: LocalGateway, alice: Device) -> None:
        client = await gateway.session(alice)
        client.send_raw(ws_frame(b"unasked", 0xA) + ws_frame(b"asked", PING))
        assert await client.next() == (0xA, b"asked")
        await serves(client)

    async def test_a_close_is_answered_with_the_same_code(self, gateway: LocalGateway, alice: Device) -> None:
        client = await gateway.session(alice)
        client.send_raw(ws_frame(struct.pack("!H", 1000) + b"bye", CLOSE))
        closed = await client.closed()
        assert (closed.code, closed.reason) == (1000, "bye")
        assert await client.reader.read() == b""  # the server ends the TCP connection first

    async def test_frames_behind_a_malformed_one_are_not_served(
        self, lab: GatewayLab, gateway: LocalGateway, alice: Device
    ) -> None:
        bob = await lab.device()
        client = await gateway.session(alice)
        late = encode_client_frame(Send(a_cmid(), (SendEnvelope(bob.id, a_mid(), 1, b"x"),), echo=False))
        client.send_raw(ws_frame(b"\xff") + ws_frame(late))
        await is_malformed(client)
        receiver = await gateway.session(bob)
        assert [frame.entries for frame in receiver.seen if isinstance(frame, MailboxBatch)] == [()]
