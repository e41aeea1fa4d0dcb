"""The frames that clients send, to and from bytes (WIRE, "Client to server" and "Malformed against refused").

The reader is the gateway's hot path: one call of the C unpacker, then plain type checks; only a frame with unknown keys
pays for looking at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from protocol.errors import ErrorCode, MailboxError
from protocol.frames import (
    Ack,
    ClientFrame,
    Defer,
    FrameType,
    Hello,
    Ping,
    PullMailbox,
    Reauth,
    Send,
    SendEnvelope,
)
from protocol.ids import ID_BYTES, ZERO_ID, MessageId
from protocol.limits import (
    ACK_MAX,
    CLIENT_NAME_CHARS_MAX,
    CURSOR_CHARS_MAX,
    PAD_MAX,
    PING_PACKED_BYTES_MAX,
    PULL_LIMIT_DEFAULT,
    PULL_LIMIT_MAX,
    SEND_ENVELOPES_MAX,
    WINDOW_BYTES_DEFAULT,
    WINDOW_BYTES_MAX,
    WINDOW_ENTRIES_DEFAULT,
    WINDOW_ENTRIES_MAX,
)
from protocol.packing import INT64_MAX, INT64_MIN, SMALL_FRAME_BYTES, check_bounds, malformed, pack, unpack

Map = dict[Any, Any]
Value = TypeVar("Value")

_HELLO: Final = int(FrameType.HELLO)
_new: Final = tuple.__new__  # as the class's own constructor, without the Python function around it
# `[7, {"t": …}]` takes five bytes around t, so a frame up to this size needs no second look at t's size.
_PING_SURELY_SMALL_BYTES: Final = PING_PACKED_BYTES_MAX + 5


def decode_client_frame(data: bytes, *, hello_seen: bool = True) -> ClientFrame:
    """The frame in one binary message; windows come out capped.

    Raises MailboxError BAD_FRAME (tell, then close 4400), also for any frame before HELLO and for a second HELLO, or
    UNSUPPORTED_FRAME (tell, go on). The caller bounds `len(data)`: 16 KiB before HELLO, `max_frame_bytes` after.
    `pv` and `ttl_s` come out as any 64-bit integer, signed or unsigned: refusing them is the instance's policy.
    """
    frame = unpack(data)
    if type(frame) is not tuple or len(frame) != 2:
        raise malformed("a frame is an array of a type and a map")
    kind, body = frame
    if type(kind) is not int or type(body) is not dict:
        raise malformed("a frame is an array of a type and a map")
    if (kind != _HELLO) is not hello_seen:
        raise malformed("HELLO comes once, before every other frame")
    reader = _READERS.get(kind)
    if reader is None:
        raise MailboxError(ErrorCode.UNSUPPORTED_FRAME)
    value: ClientFrame
    value, only_known = reader(body)
    if not only_known and len(data) <= SMALL_FRAME_BYTES:
        check_bounds(data)  # larger frames were walked before they were unpacked
    if type(value) is Ping and len(data) > _PING_SURELY_SMALL_BYTES and len(pack(value.t)) > PING_PACKED_BYTES_MAX:
        raise malformed("t is too long")
    return value


def _unknown_keys(body: Map, known: frozenset[str]) -> bool:
    """Called when `body` has more keys than were taken from it. False: what is left over may be ignored."""
    for key in body:
        if type(key) is not str:
            raise malformed("map keys are strings")
        if key in known and body[key] is None:
            raise malformed(f"{key} is absent or a value, never nil")
    return False


def _optional(body: Map, key: str, kind: type[Value]) -> Value | None:
    """The value under `key`, None when absent. A nil is found by the key count, in `_unknown_keys`."""
    value = body.get(key)
    if value is not None and type(value) is not kind:
        raise malformed(f"{key} has the wrong type")
    return value


def _required(body: Map, key: str, kind: type[Value]) -> Value:
    value = body.get(key)
    if type(value) is not kind:
        raise malformed(f"{key} is missing or has the wrong type")
    return value


def _cursor(body: Map) -> str | None:
    cursor = _optional(body, "cursor", str)
    if cursor is not None and not 1 <= len(cursor) <= CURSOR_CHARS_MAX:
        raise malformed("a cursor has 1 to 512 characters")
    return cursor


def _window(body: Map, key: str, default: int, cap: int) -> int:
    window = _optional(body, key, int)
    if window is None:
        return default
    if window < 1:
        raise malformed(f"{key} is at least 1")
    return min(window, cap)


def _read_hello(body: Map) -> tuple[Hello, bool]:
    instance = _optional(body, "instance", bytes)
    if instance is not None and len(instance) != ID_BYTES:
        raise malformed("instance is 16 bytes")
    attempt = _optional(body, "attempt", int)
    if attempt is not None and not INT64_MIN <= attempt <= INT64_MAX:
        raise malformed("attempt is out of range")
    client = _optional(body, "client", str)
    if client is not None and len(client) > CLIENT_NAME_CHARS_MAX:
        raise malformed("client is too long")
    hello = Hello(
        token=_required(body, "token", str),
        cursor=_cursor(body),
        window_entries=_window(body, "window_entries", WINDOW_ENTRIES_DEFAULT, WINDOW_ENTRIES_MAX),
        window_bytes=_window(body, "window_bytes", WINDOW_BYTES_DEFAULT, WINDOW_BYTES_MAX),
        instance=instance,
        attempt=attempt,
        client=client,
    )
    given = sum(body.get(key) is not None for key in _HELLO_KEYS)
    return hello, len(body) == given or _unknown_keys(body, _HELLO_KEYS)


def _read_send(body: Map) -> tuple[Send, bool]:
    cmid = body.get("cmid")
    if type(cmid) is not bytes or len(cmid) != ID_BYTES or cmid == ZERO_ID:
        raise malformed("cmid is 16 bytes, not all zero")
    maps = body.get("envelopes")
    if type(maps) is not tuple or not 0 < len(maps) <= SEND_ENVELOPES_MAX:
        raise malformed("envelopes is an array of 1 to 64 maps")
    echo = body.get("echo")
    taken = 3
    if echo is None:
        echo, taken = True, 2
    elif type(echo) is not bool:
        raise malformed("echo is a bool")
    only_known = len(body) == taken or _unknown_keys(body, _SEND_KEYS)
    envelopes: list[SendEnvelope] = []
    for envelope in maps:
        if type(envelope) is not dict:
            raise malformed("an envelope is a map")
        to = envelope.get("to")
        mid = envelope.get("mid")
        if type(to) is not bytes or len(to) != ID_BYTES or to == ZERO_ID:
            raise malformed("to is 16 bytes, not all zero")
        if type(mid) is not bytes or len(mid) != ID_BYTES or mid == ZERO_ID:
            raise malformed("mid is 16 bytes, not all zero")
        pv = envelope.get("pv")
        sealed = envelope.get("body")
        if type(pv) is not int or type(sealed) is not bytes:
            raise malformed("pv is an int and body is bytes")
        taken = 4
        ttl_s = envelope.get("ttl_s")
        if ttl_s is not None:
            if type(ttl_s) is not int:
                raise malformed("ttl_s is an int")
            taken = 5
        pad = envelope.get("pad")
        if pad is not None:
            if type(pad) is not int or not 0 <= pad <= PAD_MAX or len(sealed) != 256 << pad:
                raise malformed("pad is 0 to 12 and gives the body's size")
            taken += 1
        if len(envelope) != taken:
            only_known = _unknown_keys(envelope, _ENVELOPE_KEYS)
        envelopes.append(_new(SendEnvelope, (to, mid, pv, sealed, ttl_s, pad)))
    if len(envelopes) > 1 and len({envelope[:2] for envelope in envelopes}) != len(envelopes):
        raise malformed("an envelope is there twice")
    return _new(Send, (cmid, tuple(envelopes), echo)), only_known


def _mids(body: Map) -> tuple[MessageId, ...]:
    mids = body.get("mids")
    if type(mids) is not tuple or not 0 < len(mids) <= ACK_MAX:
        raise malformed("mids is an array of 1 to 100 ids")
    for mid in mids:
        if type(mid) is not bytes or len(mid) != ID_BYTES or mid == ZERO_ID:
            raise malformed("an id is 16 bytes, not all zero")
    return mids


def _read_ack(body: Map) -> tuple[Ack, bool]:
    ref = body.get("ref")
    if type(ref) is not int:
        raise malformed("ref is an int")
    return _new(Ack, (ref, _mids(body))), len(body) == 2 or _unknown_keys(body, _ACK_KEYS)


def _read_pull(body: Map) -> tuple[PullMailbox, bool]:
    cursor = _cursor(body)
    limit = _optional(body, "limit", int)
    if limit is not None and not 1 <= limit <= PULL_LIMIT_MAX:
        raise malformed("limit is 1 to 256")
    pull = PullMailbox(_required(body, "ref", int), cursor, PULL_LIMIT_DEFAULT if limit is None else limit)
    taken = 1 + (cursor is not None) + (limit is not None)
    return pull, len(body) == taken or _unknown_keys(body, _PULL_KEYS)


def _read_defer(body: Map) -> tuple[Defer, bool]:
    return Defer(_mids(body)), len(body) == 1 or _unknown_keys(body, _DEFER_KEYS)


def _read_reauth(body: Map) -> tuple[Reauth, bool]:
    return Reauth(_required(body, "token", str)), len(body) == 1 or _unknown_keys(body, _REAUTH_KEYS)


def _read_ping(body: Map) -> tuple[Ping, bool]:
    if "t" not in body:
        raise malformed("t is missing")
    t = body["t"]
    nested = type(t) is tuple or type(t) is dict  # has a depth to look at
    return Ping(t), (len(body) == 1 or _unknown_keys(body, _NO_KEYS)) and not nested


_HELLO_KEYS: Final = frozenset({"token", "cursor", "window_entries", "window_bytes", "instance", "attempt", "client"})
_SEND_KEYS: Final = frozenset({"cmid", "envelopes", "echo"})
_ENVELOPE_KEYS: Final = frozenset({"to", "mid", "pv", "body", "ttl_s", "pad"})
_ACK_KEYS: Final = frozenset({"ref", "mids"})
_PULL_KEYS: Final = frozenset({"ref", "cursor", "limit"})
_DEFER_KEYS: Final = frozenset({"mids"})
_REAUTH_KEYS: Final = frozenset({"token"})
_NO_KEYS: Final[frozenset[str]] = frozenset()  # PING's t may be nil

# Each reader gives the frame and whether the map held nothing but known keys.
_READERS: Final[dict[int, Callable[[Map], tuple[Any, bool]]]] = {
    FrameType.HELLO: _read_hello,
    FrameType.SEND: _read_send,
    FrameType.ACK: _read_ack,
    FrameType.PULL_MAILBOX: _read_pull,
    FrameType.DEFER: _read_defer,
    FrameType.REAUTH: _read_reauth,
    FrameType.PING: _read_ping,
}


def encode_client_frame(frame: ClientFrame) -> bytes:
    """The frame as one binary message. Optional fields that hold None, or SEND's default echo, are left out."""
    if isinstance(frame, Send):
        body: Map = {"cmid": frame.cmid, "envelopes": [_envelope_map(envelope) for envelope in frame.envelopes]}
        if not frame.echo:
            body["echo"] = False
        return pack((2, body))
    if isinstance(frame, Ack):
        return pack((3, {"ref": frame.ref, "mids": frame.mids}))
    if isinstance(frame, Ping):
        return pack((7, {"t": frame.t}))
    kind = _TYPES[type(frame)]
    return pack((kind, _given(zip(frame._fields, frame, strict=True))))


def _envelope_map(envelope: SendEnvelope) -> Map:
    given: Map = {"to": envelope.to, "mid": envelope.mid, "pv": envelope.pv, "body": envelope.body}
    if envelope.ttl_s is not None:
        given["ttl_s"] = envelope.ttl_s
    if envelope.pad is not None:
        given["pad"] = envelope.pad
    return given


def _given(fields: Iterable[tuple[str, Any]]) -> Map:
    return {name: value for name, value in fields if value is not None}


_TYPES: Final[dict[type, int]] = {
    Hello: int(FrameType.HELLO),
    PullMailbox: int(FrameType.PULL_MAILBOX),
    Defer: int(FrameType.DEFER),
    Reauth: int(FrameType.REAUTH),
}
