"""Makes the vector files: `python -m protocol.vectors.generate` rewrites them, a test compares.

Bytes stand as lower-case hex, ids and bodies inside a frame's `value` too; its `bytes` is the whole binary message. A
decoder must read `bytes` as `value`, where absent fields stand with their default or null; an encoder may order map
keys differently. `client_message_id.json` was given with the requirement and is not made here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from protocol import signed_messages
from protocol.codec import encode_client_frame, encode_server_frame
from protocol.errors import ErrorCode, Outcome
from protocol.fingerprint import canonical_submit, submit_fingerprint
from protocol.frames import (
    Ack,
    AckResult,
    ClientFrame,
    Defer,
    Entry,
    Error,
    GoAway,
    Hello,
    MailboxBatch,
    Ping,
    Pong,
    PullMailbox,
    PushEvents,
    Reauth,
    Send,
    SendAck,
    SendEnvelope,
    SendResult,
    ServerFrame,
    Welcome,
)
from protocol.ids import ClientMessageId, DeviceId, IdentityId, InstanceId, MessageId, to_text
from protocol.limits import WireLimits
from protocol.packing import pack

DIRECTORY: Final = Path(__file__).parent
_T: Final = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def _bytes(first: int, size: int = 16) -> bytes:
    return bytes((first + at) % 256 for at in range(size))


def _client_frames() -> dict[str, ClientFrame]:
    to, mid = DeviceId(_bytes(0x10)), MessageId(_bytes(0x20))
    cmid = ClientMessageId(_bytes(0x30))
    return {
        "hello with a token only": Hello("token"),
        "hello with everything": Hello("token", "cursor", 16, 65_536, _bytes(0x40), 7, "example/1.0"),
        "send one envelope": Send(cmid, (SendEnvelope(to, mid, 1, b"sealed"),)),
        "send without echo, two envelopes, ttl and pad": Send(
            cmid,
            (
                SendEnvelope(to, mid, 1, b"", 86_400),
                SendEnvelope(DeviceId(_bytes(0x50)), mid, 300, _bytes(0, 256), None, 0),
            ),
            echo=False,
        ),
        "ack": Ack(1, (mid, MessageId(_bytes(0x60)))),
        "pull from the beginning": PullMailbox(2),
        "pull after a cursor": PullMailbox(4_294_967_296, "cursor", 256),
        "defer": Defer((mid,)),
        "reauth": Reauth("token"),
        "ping with nil": Ping(None),
        "ping with a text": Ping("any"),
    }


def _server_frames() -> dict[str, ServerFrame]:
    mid = MessageId(_bytes(0x20))
    cmid = ClientMessageId(_bytes(0x30))
    limits = WireLimits(4_194_304, 65_536, 60, 604_800, 604_800)
    result = SendResult(mid, _T, _T + 604_800_000)
    entries = (
        Entry(mid, 1, b"sealed", _T, _T + 1_000),
        Entry(MessageId(_bytes(0x21)), 300, _bytes(0, 256), _T, _T + 1_000, 0, cmid),
        Entry(MessageId(_bytes(0x22)), 0, None, _T, _T + 1_000, None, cmid, True),
    )
    return {
        "welcome": Welcome("session", _T, 45, _T + 840_000, limits, "watermark", True),
        "send_ack": SendAck(cmid, False, (result,)),
        "send_ack of a repeat, two envelopes": SendAck(cmid, True, (result, result._replace(mid=cmid))),  # type: ignore[arg-type]
        "pushed batch": MailboxBatch(None, entries, "cursor", True, False),
        "pushed batch without entries, caught up": MailboxBatch(None, (), "cursor", False, True),
        "answer to a pull": MailboxBatch(9, entries[:1], "cursor", False, True),
        "ack_result": AckResult(1, ("acked", "acked")),
        "push_events": PushEvents(({"kind": "prekeys_low", "left": 3}, {"kind": "mailbox_filling"})),
        "pong": Pong("any"),
        "goaway": GoAway(1_500, "draining"),
        "error for a send": Error(
            ErrorCode.MAILBOX_FULL, "full", True, "r1", None, cmid, 60_000, (0, 3), Outcome.NOT_COMMITTED
        ),
        "error for a pull": Error(ErrorCode.CURSOR_INVALID, "invalid", False, "r2", 9),
        "error for the connection": Error(ErrorCode.BAD_FRAME, "malformed", False, "r3"),
    }


def _malformed() -> dict[str, bytes]:
    id_, other = _bytes(1), _bytes(2)
    envelope = {"to": id_, "mid": id_, "pv": 1, "body": b""}

    def send(**changes: Any) -> bytes:
        return pack((2, {"cmid": id_, "envelopes": [{**envelope, **changes}]}))

    return {
        "empty": b"",
        "a map instead of an array": pack({}),
        "an array of one": pack([7]),
        "an array of three": pack([7, {"t": 1}, 1]),
        "a bool for the type": pack([True, {}]),
        "a text for the type": pack(["7", {"t": 1}]),
        "an array for the body": pack([7, []]),
        "trailing bytes": pack([7, {"t": 1}]) + b"\x00",
        "cut short": pack([7, {"t": "text"}])[:-1],
        "an ext type": b"\x92\x07\x81\xa1t\xd4\x01\x00",
        "a timestamp": b"\x92\x07\x81\xa1t\xd6\xff\x00\x00\x00\x00",
        "an unused header byte": b"\x92\x07\x81\xa1t\xc1",
        "a text that is not UTF-8": b"\x92\x07\x81\xa1t\xa1\xff",
        "a bin key": b"\x92\x07\x82\xa1t\xc0\xc4\x01t\xc0",
        "an int key": b"\x92\x07\x82\xa1t\xc0\x01\xc0",
        "nested seven deep": b"\x92\x07\x81\xa1t\x91\x91\x91\x91\x91\xc0",
        "ping without t": pack([7, {}]),
        "ping with a long t": pack([7, {"t": "x" * 63}]),
        "a second hello": pack([1, {"token": "token"}]),
        "send without cmid": pack((2, {"envelopes": [envelope]})),
        "send with an all-zero cmid": pack((2, {"cmid": bytes(16), "envelopes": [envelope]})),
        "send with a short cmid": pack((2, {"cmid": bytes(15), "envelopes": [envelope]})),
        "send with no envelope": pack((2, {"cmid": id_, "envelopes": []})),
        "send with 65 envelopes": pack(
            (2, {"cmid": id_, "envelopes": [{**envelope, "mid": _bytes(at)} for at in range(1, 66)]})
        ),
        "send with nil for echo": pack((2, {"cmid": id_, "envelopes": [envelope], "echo": None})),
        "send with 1 for echo": pack((2, {"cmid": id_, "envelopes": [envelope], "echo": 1})),
        "send with one envelope twice": pack((2, {"cmid": id_, "envelopes": [envelope, envelope]})),
        "envelope to the all-zero id": send(to=bytes(16)),
        "envelope with a text for to": send(to="0123456789abcdef"),
        "envelope with an all-zero mid": send(mid=bytes(16)),
        "envelope with a bool for pv": send(pv=True),
        "envelope with a float for pv": send(pv=1.0),
        "envelope with a text for body": send(body=""),
        "envelope with nil for ttl_s": send(ttl_s=None),
        "envelope with pad 13": send(pad=13, body=bytes(256)),
        "envelope whose body is not of its pad": send(pad=0, body=bytes(255)),
        "ack without ref": pack((3, {"mids": [id_]})),
        "ack with no id": pack((3, {"ref": 1, "mids": []})),
        "ack with 101 ids": pack((3, {"ref": 1, "mids": [id_] * 101})),
        "ack with an all-zero id": pack((3, {"ref": 1, "mids": [id_, bytes(16)]})),
        "pull with an empty cursor": pack((4, {"ref": 1, "cursor": ""})),
        "pull with a cursor of 513": pack((4, {"ref": 1, "cursor": "c" * 513})),
        "pull with limit 0": pack((4, {"ref": 1, "limit": 0})),
        "pull with limit 257": pack((4, {"ref": 1, "limit": 257})),
        "defer with 17 bytes": pack((5, {"mids": [other + b"\x00"]})),
        "reauth without a token": pack((6, {})),
    }


def _malformed_hellos() -> dict[str, bytes]:
    def hello(**fields: Any) -> bytes:
        return pack((1, {"token": "token", **fields}))

    return {
        "ping before hello": pack([7, {"t": None}]),
        "an unknown type before hello": pack([99, {}]),
        "hello without a token": pack((1, {})),
        "hello with a bin token": pack((1, {"token": b"token"})),
        "hello with an empty cursor": hello(cursor=""),
        "hello with a cursor of 513": hello(cursor="c" * 513),
        "hello with window_entries 0": hello(window_entries=0),
        "hello with window_bytes -1": hello(window_bytes=-1),
        "hello with a bool window": hello(window_entries=True),
        "hello with a short instance": hello(instance=bytes(15)),
        "hello with a text attempt": hello(attempt="1"),
        "hello with a long client": hello(client="c" * 129),
    }


def _plain(value: Any) -> Any:
    """A frame as JSON: its fields by name, bytes as hex, None left in."""
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "_asdict"):
        return {name: _plain(inner) for name, inner in value._asdict().items()}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return value


def frames() -> dict[str, Any]:
    """Every frame of both directions, and messages that must be refused as BAD_FRAME."""

    def case(name: str, frame: ClientFrame | ServerFrame, encoded: bytes) -> dict[str, Any]:
        return {"name": name, "frame": type(frame).__name__, "value": _plain(frame), "bytes": encoded.hex()}

    return {
        "client": [case(name, frame, encode_client_frame(frame)) for name, frame in _client_frames().items()],
        "server": [case(name, frame, encode_server_frame(frame)) for name, frame in _server_frames().items()],
        "malformed_after_hello": [{"name": name, "bytes": data.hex()} for name, data in _malformed().items()],
        "malformed_before_hello": [{"name": name, "bytes": data.hex()} for name, data in _malformed_hellos().items()],
    }


def canonical() -> dict[str, Any]:
    """The canonical form that submits are fingerprinted over, and a fingerprint under a known key."""
    key = _bytes(0, 32)
    cases = []
    for name, frame in _client_frames().items():
        if isinstance(frame, Send):
            cases.append(
                {
                    "name": name,
                    "value": _plain(frame),
                    "canonical": canonical_submit(frame.envelopes, frame.echo).hex(),
                    "fingerprint": submit_fingerprint(key, frame.envelopes, frame.echo).hex(),
                }
            )
    return {
        "form": "[1, [[to, mid, pv, BLAKE3(body), ttl_s or nil, pad or nil], ...], echo]",
        "key": key.hex(),
        "cases": cases,
    }


def ids() -> dict[str, Any]:
    """The text form of ids, and texts that are none."""
    values = [_bytes(0x10), bytes(15) + b"\x01", b"\xff" * 16, b"\xfb\xef\xbe" * 5 + b"\xfb"]
    good = to_text(_bytes(0x10))
    return {
        "valid": [{"bytes": value.hex(), "text": to_text(value)} for value in values],
        "invalid": [
            {"why": "all zero", "text": to_text(bytes(16))},
            {"why": "padded", "text": good + "=="},
            {"why": "one character short", "text": good[:-1]},
            {"why": "one character long", "text": good + "A"},
            {"why": "stray low bits", "text": good[:-1] + "x"},
            {"why": "the other base64 alphabet", "text": "+" + good[1:]},
            {"why": "a space", "text": good[:-1] + " "},
            {"why": "not ASCII", "text": "é" + good[1:]},
            {"why": "empty", "text": ""},
        ],
    }


def signed() -> dict[str, Any]:
    """What Ed25519 signatures are made over."""
    instance_id, device_id = InstanceId(_bytes(0x01)), DeviceId(_bytes(0x11))
    target_id, identity_id = DeviceId(_bytes(0x21)), IdentityId(_bytes(0x31))
    bundle, public_key, challenge = _bytes(0x41, 40), _bytes(0x51, 32), _bytes(0x61, 32)
    return {
        "inputs": {
            "instance_id": instance_id.hex(),
            "device_id": device_id.hex(),
            "target_device_id": target_id.hex(),
            "identity_id": identity_id.hex(),
            "identity_public_bundle": bundle.hex(),
            "device_public_key": public_key.hex(),
            "challenge": challenge.hex(),
        },
        "messages": {
            "register": signed_messages.register_message(instance_id, bundle, public_key).hex(),
            "token": signed_messages.token_message(instance_id, device_id, challenge).hex(),
            "device proof": signed_messages.device_proof_message(instance_id, identity_id, public_key).hex(),
            "device add": signed_messages.device_add_message(instance_id, device_id, challenge, public_key).hex(),
            "device revoke": signed_messages.device_revoke_message(instance_id, device_id, challenge, target_id).hex(),
        },
    }


FILES: Final = {
    "frames.json": frames,
    "canonical_submit.json": canonical,
    "ids.json": ids,
    "signed_messages.json": signed,
}


def text_of(name: str) -> str:
    """What the file `name` must hold."""
    return json.dumps(FILES[name](), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for file_name in FILES:
        (DIRECTORY / file_name).write_text(text_of(file_name), encoding="utf-8")
