"""The frames that servers send, to and from bytes (WIRE, "Server to client").

Writing is the gateway's hot path, so the frames that come per message are put together from prepared pieces, and an
entry is packed once however many batches it goes into. Instants are always written in the 8-byte form, which is the
shortest one for every instant after February 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, TypeVar

from protocol.errors import ERRORS, ErrorCode, MailboxError, Outcome
from protocol.frames import (
    AckResult,
    Entry,
    Error,
    FrameType,
    GoAway,
    MailboxBatch,
    Pong,
    PushEvents,
    SendAck,
    SendResult,
    ServerFrame,
    Welcome,
)
from protocol.ids import ID_BYTES, ZERO_ID, ClientMessageId, MessageId
from protocol.limits import ACK_MAX, BATCH_ENTRIES_MAX, PAD_MAX, SEND_ENVELOPES_MAX, WireLimits
from protocol.packing import malformed, pack, unpack

Map = dict[Any, Any]
Value = TypeVar("Value")

ACKED: Final = "acked"
# A full batch of 256 entries with every field has some 4,400 objects, more than a client may send.
SERVER_FRAME_OBJECTS_MAX: Final = 8_192

_ACCEPTED_AT: Final = b"\xabaccepted_at\xcf"
_EXPIRES_AT: Final = b"\xaaexpires_at\xcf"
_INSTANTS: Final = Struct(">13sQ12sQ")
_RESULT_HEAD: Final = b"\x83\xa3mid\xc4\x10"
_RESULT: Final = Struct(">7s16s13sQ12sQ")
_ENTRY_HEADS: Final = tuple(bytes((0x80 + fields,)) + b"\xa3mid\xc4\x10" for fields in range(8))
_PV_1_BODY_16_BIT: Final = b"\xa2pv\x01\xa4body\xc5"
_UINT16: Final = Struct(">H")
_SEND_ACK_HEAD: Final = b"\x92\x42\x83\xa4cmid\xc4\x10"
_SEND_ACK_NEW: Final = b"\xa9duplicate\xc2\xa7results\x91"
_SEND_ACK_DUPLICATE: Final = b"\xa9duplicate\xc3\xa7results\x91"
_SEND_ACK_OF_ONE: Final = Struct(">10s16s20s7s16s13sQ12sQ")
_ARRAY_HEADERS: Final = tuple(pack([None] * count)[: 1 if count < 16 else 3] for count in range(BATCH_ENTRIES_MAX + 1))
_ACK_RESULTS: Final = tuple(b"\xa7results" + pack([ACKED] * count) for count in range(ACK_MAX + 1))
_CAUGHT_UP: Final = b"\xa9caught_up"
_TRUE: Final = b"\xc3"
_FALSE: Final = b"\xc2"


def encode_send_ack(cmid: ClientMessageId, duplicate: bool, results: Sequence[SendResult]) -> bytes:
    """SEND_ACK; the first thing a sender waits for, so made in one step for a SEND of one envelope."""
    duplicate_piece = _SEND_ACK_DUPLICATE if duplicate else _SEND_ACK_NEW
    if len(results) == 1:
        mid, accepted_at, expires_at = results[0]
        return _SEND_ACK_OF_ONE.pack(
            _SEND_ACK_HEAD, cmid, duplicate_piece, _RESULT_HEAD, mid, _ACCEPTED_AT, accepted_at, _EXPIRES_AT, expires_at
        )
    pieces = [_SEND_ACK_HEAD, cmid, duplicate_piece[:-1], _ARRAY_HEADERS[len(results)]]
    for mid, accepted_at, expires_at in results:
        pieces.append(_RESULT.pack(_RESULT_HEAD, mid, _ACCEPTED_AT, accepted_at, _EXPIRES_AT, expires_at))
    return b"".join(pieces)


def encode_ack_result(ref: int, count: int) -> bytes:
    """ACK_RESULT for `count` ids: every well-formed id is `acked`, now and for ever."""
    return b"\x92\x44\x82\xa3ref" + pack(ref) + _ACK_RESULTS[count]


def encode_entry(entry: Entry) -> bytes:
    """One entry of a MAILBOX_BATCH, packed once and good for any number of batches."""
    mid, pv, body, accepted_at, expires_at, pad, cmid, echo = entry
    instants = _INSTANTS.pack(_ACCEPTED_AT, accepted_at, _EXPIRES_AT, expires_at)
    if echo:
        return b"\x86\xa3mid\xc4\x10%b\xa2pv\x00\xa4echo\xc3\xa4cmid\xc4\x10%b%b" % (mid, cmid or b"", instants)
    fields, tail = 5, instants
    if pad is not None:
        fields, tail = 6, tail + b"\xa3pad" + pack(pad)
    if cmid is not None:
        fields, tail = fields + 1, tail + b"\xa4cmid\xc4\x10" + cmid
    if pv == 1 and body is not None and 256 <= len(body) < 65_536:  # nearly all
        return b"".join((_ENTRY_HEADS[fields], mid, _PV_1_BODY_16_BIT, _UINT16.pack(len(body)), body, tail))
    return b"".join((_ENTRY_HEADS[fields], mid, b"\xa2pv", pack(pv), b"\xa4body", pack(body), tail))


def encode_mailbox_batch(ref: int | None, entries: Sequence[bytes], cursor: str, more: bool, caught_up: bool) -> bytes:
    """MAILBOX_BATCH of up to 256 entries that `encode_entry` has packed."""
    return b"".join(
        (
            b"\x92\x43\x85\xa3ref",
            b"\xc0" if ref is None else pack(ref),
            b"\xa7entries",
            _ARRAY_HEADERS[len(entries)],
            *entries,
            b"\xa6cursor",
            pack(cursor),
            b"\xa4more",
            _TRUE if more else _FALSE,
            _CAUGHT_UP,
            _TRUE if caught_up else _FALSE,
        )
    )


def encode_error(error: MailboxError, request_id: str, *, ref: int | None = None, cmid: bytes | None = None) -> bytes:
    """ERROR as `error` says it, naming the request it answers."""
    return pack(
        (
            72,
            _error_map(
                error.code,
                error.message,
                error.retryable,
                request_id,
                ref,
                cmid,
                error.retry_after_ms,
                error.at,
                error.outcome,
            ),
        )
    )


def _error_map(
    code: str,
    message: str,
    retryable: bool,
    request_id: str,
    ref: int | None,
    cmid: bytes | None,
    retry_after_ms: int | None,
    at: tuple[int, ...] | None,
    outcome: str | None,
) -> Map:
    body: Map = {"code": str(code), "message": message, "retryable": retryable, "request_id": request_id}
    if ref is not None:
        body["ref"] = ref
    if cmid is not None:
        body["cmid"] = cmid
    if retry_after_ms is not None:
        body["retry_after_ms"] = retry_after_ms
    if at is not None:
        body["at"] = at
    if outcome is not None:
        body["outcome"] = str(outcome)
    return body


def encode_server_frame(frame: ServerFrame) -> bytes:
    """Any server frame as one binary message; optional fields that hold None are left out."""
    match frame:
        case SendAck(cmid, duplicate, results):
            return encode_send_ack(cmid, duplicate, results)
        case MailboxBatch(ref, entries, cursor, more, caught_up):
            return encode_mailbox_batch(ref, [encode_entry(entry) for entry in entries], cursor, more, caught_up)
        case AckResult(ref, results):
            return pack((68, {"ref": ref, "results": results}))
        case Welcome():
            return pack((65, {**frame._asdict(), "limits": frame.limits._asdict()}))
        case PushEvents(events):
            return pack((69, {"events": events}))
        case Pong(t):
            return pack((70, {"t": t}))
        case GoAway():
            return pack((71, frame._asdict()))
        case Error():
            return pack((72, _error_map(**frame._asdict())))


def decode_server_frame(data: bytes) -> ServerFrame | None:
    """The frame in one binary message; None for a type that this version does not know, which is ignored.

    Raises MailboxError BAD_FRAME for anything malformed. Unknown keys are ignored; an unknown error code counts as
    INTERNAL, with the `retryable` that came with it.
    """
    frame = unpack(data, objects_max=SERVER_FRAME_OBJECTS_MAX)
    if type(frame) is not tuple or len(frame) != 2:
        raise malformed("a frame is an array of a type and a map")
    kind, body = frame
    if type(kind) is not int or type(body) is not dict:
        raise malformed("a frame is an array of a type and a map")
    reader = _READERS.get(kind)
    return None if reader is None else reader(body)


def _field(body: Map, key: str, kind: type[Value]) -> Value:
    value = body.get(key)
    if type(value) is not kind:
        raise malformed(f"{key} is missing or has the wrong type")
    return value


def _optional(body: Map, key: str, kind: type[Value]) -> Value | None:
    value = body.get(key)
    if value is not None and type(value) is not kind:
        raise malformed(f"{key} has the wrong type")
    return value


def _id(body: Map, key: str) -> bytes:
    value = body.get(key)
    if type(value) is not bytes or len(value) != ID_BYTES or value == ZERO_ID:
        raise malformed(f"{key} is 16 bytes, not all zero")
    return value


def _array_of(body: Map, key: str, kind: type[Value], count_max: int) -> tuple[Value, ...]:
    values = body.get(key)
    if type(values) is not tuple or len(values) > count_max:
        raise malformed(f"{key} is missing, too long or has the wrong type")
    for value in values:
        if type(value) is not kind:
            raise malformed(f"{key} holds something of the wrong type")
    return values


def _read_welcome(body: Map) -> Welcome:
    limits = _field(body, "limits", dict)
    known = {name: limits[name] for name in WireLimits._fields if name in limits}
    if any(type(value) is not int for value in known.values()):
        raise malformed("limits are ints")
    try:
        wire_limits = WireLimits(**known)
    except TypeError as error:
        raise malformed("a limit is missing") from error
    return Welcome(
        session=_field(body, "session", str),
        now=_field(body, "now", int),
        heartbeat_s=_field(body, "heartbeat_s", int),
        reauth_before=_field(body, "reauth_before", int),
        limits=wire_limits,
        watermark=_field(body, "watermark", str),
        pending=_field(body, "pending", bool),
    )


def _read_send_ack(body: Map) -> SendAck:
    results = _array_of(body, "results", dict, SEND_ENVELOPES_MAX)
    return SendAck(
        ClientMessageId(_id(body, "cmid")),
        _field(body, "duplicate", bool),
        tuple(
            SendResult(
                MessageId(_id(result, "mid")), _field(result, "accepted_at", int), _field(result, "expires_at", int)
            )
            for result in results
        ),
    )


def _read_entry(fields: Map) -> Entry:
    mid = fields.get("mid")
    if type(mid) is not bytes or len(mid) != ID_BYTES or mid == ZERO_ID:
        raise malformed("mid is 16 bytes, not all zero")
    pv = fields.get("pv")
    accepted_at = fields.get("accepted_at")
    expires_at = fields.get("expires_at")
    if type(pv) is not int or type(accepted_at) is not int or type(expires_at) is not int:
        raise malformed("pv, accepted_at and expires_at are ints")
    body = fields.get("body")
    echo = fields.get("echo", False)
    cmid = fields.get("cmid")
    if type(echo) is not bool or (type(body) is not bytes and not (echo and body is None)):
        raise malformed("an entry has a body or is an echo")
    own = ClientMessageId(_id(fields, "cmid")) if cmid is not None or echo else None
    pad = fields.get("pad")
    if pad is not None and (type(pad) is not int or not 0 <= pad <= PAD_MAX):
        raise malformed("pad is 0 to 12")
    return Entry(MessageId(mid), pv, body, accepted_at, expires_at, pad, own, echo)


def _read_batch(body: Map) -> MailboxBatch:
    return MailboxBatch(
        _optional(body, "ref", int),
        tuple([_read_entry(entry) for entry in _array_of(body, "entries", dict, BATCH_ENTRIES_MAX)]),
        _field(body, "cursor", str),
        _field(body, "more", bool),
        _field(body, "caught_up", bool),
    )


def _read_ack_result(body: Map) -> AckResult:
    return AckResult(_field(body, "ref", int), _array_of(body, "results", str, ACK_MAX))


def _read_push_events(body: Map) -> PushEvents:
    events = _array_of(body, "events", dict, SERVER_FRAME_OBJECTS_MAX)
    for event in events:
        _field(event, "kind", str)
    return PushEvents(events)


def _read_pong(body: Map) -> Pong:
    return Pong(body.get("t"))


def _read_goaway(body: Map) -> GoAway:
    return GoAway(_field(body, "reconnect_after_ms", int), _field(body, "reason", str))


def _read_error(body: Map) -> Error:
    code = _field(body, "code", str)
    outcome = _optional(body, "outcome", str)
    known_outcome = outcome is None or outcome in _OUTCOMES
    at = _array_of(body, "at", int, SEND_ENVELOPES_MAX) if body.get("at") is not None else None
    return Error(
        code=_CODES.get(code, ErrorCode.INTERNAL),
        message=_field(body, "message", str),
        retryable=_field(body, "retryable", bool),
        request_id=_field(body, "request_id", str),
        ref=_optional(body, "ref", int),
        cmid=ClientMessageId(_id(body, "cmid")) if body.get("cmid") is not None else None,
        retry_after_ms=_optional(body, "retry_after_ms", int),
        at=at,
        # An outcome of a later version is as good as not knowing.
        outcome=None if outcome is None else Outcome(outcome) if known_outcome else Outcome.UNKNOWN,
    )


_CODES: Final = {str(code): code for code in ERRORS}
_OUTCOMES: Final = frozenset(str(outcome) for outcome in Outcome)

_READERS: Final[dict[int, Callable[[Map], ServerFrame]]] = {
    FrameType.WELCOME: _read_welcome,
    FrameType.SEND_ACK: _read_send_ack,
    FrameType.MAILBOX_BATCH: _read_batch,
    FrameType.ACK_RESULT: _read_ack_result,
    FrameType.PUSH_EVENTS: _read_push_events,
    FrameType.PONG: _read_pong,
    FrameType.GOAWAY: _read_goaway,
    FrameType.ERROR: _read_error,
}
