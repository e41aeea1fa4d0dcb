"""The WebSocket's document takes the frames that the codec takes, and refuses those that it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgpack  # type: ignore[import-untyped]
import pytest
from jsonschema import Draft7Validator, ValidationError
from jsonschema.validators import extend

from gateway.asyncapi import document, from_client
from gateway.asyncapi_schemas import EVENTS, bodies, parts
from protocol import frames, limits
from protocol.codec import decode_client_frame, decode_server_frame, encode_client_frame, encode_server_frame
from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.frames import FrameType
from protocol.ids import ZERO_ID, ClientMessageId, DeviceId, MessageId

Body = dict[str, Any]
Where = tuple[str | int, ...]


# --- MessagePack values as the document speaks of them: bin is a string of one character a byte ---


class Bin(str):
    """A `bin`, told apart from a `str` by its class."""


def _spoken(value: Any) -> Any:
    if isinstance(value, bytes):
        return Bin(value.decode("latin-1"))
    if isinstance(value, list | tuple):
        return [_spoken(item) for item in value]
    if isinstance(value, dict):
        return {key: _spoken(item) for key, item in value.items()}
    return value


def _type(validator: Any, kind: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if kind == "string" and isinstance(instance, Bin) is not (schema.get("x-msgpack") == "bin"):
        yield ValidationError("str and bin are different things")
    yield from Draft7Validator.VALIDATORS["type"](validator, kind, instance, schema)


_WireValidator: Any = extend(  # type: ignore[no-untyped-call]
    Draft7Validator,
    {"type": _type},
    type_checker=Draft7Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int),
)
_VALIDATORS: Final = {
    kind: _WireValidator({**document(), "$ref": f"#/components/messages/{kind.name}/payload"}) for kind in FrameType
}


def _schema_takes(kind: FrameType, body: Any) -> bool:
    return bool(_VALIDATORS[kind].is_valid([int(kind), _spoken(body)]))


def _codec_takes(kind: FrameType, body: Any) -> bool:
    data = msgpack.packb([int(kind), body])
    try:
        if from_client(kind):
            decode_client_frame(data, hello_seen=kind is not FrameType.HELLO)
        else:
            assert decode_server_frame(data) is not None
    except MailboxError as error:
        return error.code is not ErrorCode.BAD_FRAME
    return True


# --- one frame of every type with every field, and one with only what must be there ---

TO, OTHER = DeviceId(b"\x01" * 16), DeviceId(b"\x02" * 16)
MID, CMID = MessageId(b"\xff" * 16), ClientMessageId(b"\x03" * 16)
LIMITS = limits.WireLimits(limits.MAX_FRAME_BYTES, 65_536, 60, 604_800, 604_800)
SENT = frames.SendEnvelope(TO, MID, 1, bytes(512), 60, 1)
STORED = frames.Entry(MID, 1, bytes(256), 1_790_000_000_000, 1_790_000_000_001, 0, CMID)
ECHO = frames.Entry(MID, 0, None, 1_790_000_000_000, 1_790_000_000_001, None, CMID, True)
EVENT_SAMPLES: tuple[Body, ...] = tuple({"kind": kind, **dict.fromkeys(fields, 1)} for kind, fields in EVENTS.items())

FULL: Final[dict[FrameType, Any]] = {
    FrameType.HELLO: frames.Hello("token", "cursor", 7, 8, b"\0" * 16, -1, "phone"),
    FrameType.SEND: frames.Send(CMID, (SENT, SENT._replace(to=OTHER)), False),
    FrameType.ACK: frames.Ack(5, (MID, MessageId(TO))),
    FrameType.PULL_MAILBOX: frames.PullMailbox(5, "cursor", 9),
    FrameType.DEFER: frames.Defer((MID,)),
    FrameType.REAUTH: frames.Reauth("token"),
    FrameType.PING: frames.Ping({"any": [1, None]}),
    FrameType.WELCOME: frames.Welcome("session", 1, 45, 2, LIMITS, "cursor", True),
    FrameType.SEND_ACK: frames.SendAck(CMID, True, (frames.SendResult(MID, 1, 2),) * 2),
    FrameType.MAILBOX_BATCH: frames.MailboxBatch(5, (STORED, ECHO), "cursor", True, False),
    FrameType.ACK_RESULT: frames.AckResult(5, ("acked",)),
    FrameType.PUSH_EVENTS: frames.PushEvents((*EVENT_SAMPLES, {"kind": "of a later version"})),
    FrameType.PONG: frames.Pong({"any": [1, None]}),
    FrameType.GOAWAY: frames.GoAway(1_000, "drain"),
    FrameType.ERROR: frames.Error(
        ErrorCode.MAILBOX_FULL, "Full.", True, "r", 5, CMID, 1_000, (0, 63), Outcome.NOT_COMMITTED
    ),
}
LEAST: Final[dict[FrameType, Any]] = {
    **FULL,
    FrameType.HELLO: frames.Hello("token"),
    FrameType.SEND: frames.Send(CMID, (frames.SendEnvelope(TO, MID, 1, b""),)),
    FrameType.PULL_MAILBOX: frames.PullMailbox(5),
    FrameType.PING: frames.Ping(),
    FrameType.MAILBOX_BATCH: frames.MailboxBatch(None, (STORED._replace(pad=None, cmid=None),), "cursor", True, False),
    FrameType.PONG: frames.Pong(),
    FrameType.ERROR: frames.Error(ErrorCode.INTERNAL, "", True, "r"),
}
CLIENT_TYPES: Final = [kind for kind in FrameType if from_client(kind)]


def _body(frame: Any) -> Body:
    """The body as it goes over the wire, mutable."""
    encode: Any = encode_client_frame if isinstance(frame, frames.ClientFrame) else encode_server_frame
    body: Body = msgpack.unpackb(encode(frame))[1]
    return body


def _full_body(kind: FrameType) -> Body:
    return _body(FULL[kind])


class Shape(NamedTuple):
    """A map of the wire: where it lies in the body of `kind`, its schema and the NamedTuple it is read into."""

    kind: FrameType
    where: Where
    schema: Body
    values: Any


def _shapes() -> list[Shape]:
    shared = parts()
    inner = [
        Shape(FrameType.SEND, ("envelopes", 0), shared["Envelope"], frames.SendEnvelope),
        Shape(FrameType.WELCOME, ("limits",), shared["Limits"], limits.WireLimits),
        Shape(FrameType.SEND_ACK, ("results", 0), shared["SendResult"], frames.SendResult),
        Shape(FrameType.MAILBOX_BATCH, ("entries", 0), shared["Entry"], frames.Entry),
        Shape(FrameType.MAILBOX_BATCH, ("entries", 1), shared["EchoEntry"], frames.Entry),
    ]
    return [Shape(kind, (), schema, type(FULL[kind])) for kind, schema in bodies().items()] + inner


SHAPES: Final = _shapes()


def _named(shape: Shape) -> str:
    return ".".join((shape.kind.name, *map(str, shape.where)))


def _changed(shape: Shape, field: str, *value: Any) -> Body:
    """The full body with one field replaced, or removed when there is no value."""
    body = _full_body(shape.kind)
    at: Any = body
    for step in shape.where:
        at = at[step]
    if value:
        at[field] = value[0]
    else:
        at.pop(field)
    return body


@pytest.mark.parametrize("kind", FrameType, ids=lambda kind: kind.name)
def test_what_the_codec_writes_fits_the_schema(kind: FrameType) -> None:
    for frame in (FULL[kind], LEAST[kind]):
        assert list(_VALIDATORS[kind].iter_errors([int(kind), _spoken(_body(frame))])) == []
        assert _codec_takes(kind, _body(frame))


@pytest.mark.parametrize("kind", FrameType, ids=lambda kind: kind.name)
def test_a_frame_is_an_array_of_its_number_and_a_map(kind: FrameType) -> None:
    body = _spoken(_full_body(kind))
    for other in ([int(kind)], [int(kind) + 1, body], [int(kind), body, body], [True, body], [int(kind), [body]], body):
        assert not _VALIDATORS[kind].is_valid(other)


def test_every_field_of_a_frame_is_in_its_schema_and_nothing_more() -> None:
    fields: dict[Any, set[str]] = {}
    for shape in SHAPES:
        fields.setdefault(shape.values, set()).update(shape.schema["properties"])
    assert fields == {values: set(values._fields) for values in fields}


@pytest.mark.parametrize("shape", SHAPES, ids=_named)
def test_the_full_sample_has_every_field_of_the_schema(shape: Shape) -> None:
    for field in shape.schema["properties"]:
        _changed(shape, field)  # a field that is not there cannot be removed


# What the server always sends and a lenient reader of it does without.
READER_DOES_WITHOUT: Final = {("MAILBOX_BATCH", "ref"), ("PONG", "t")} | {
    ("WELCOME.limits", field) for field in limits.WireLimits._field_defaults
}


@pytest.mark.parametrize("shape", SHAPES, ids=_named)
def test_a_required_field_is_missed_by_schema_and_codec_alike(shape: Shape) -> None:
    for field in shape.schema["properties"]:
        body = _changed(shape, field)
        required = field in shape.schema["required"]
        assert _schema_takes(shape.kind, body) is not required, field
        lenient = (_named(shape), field) in READER_DOES_WITHOUT
        assert _codec_takes(shape.kind, body) is (lenient or not required), field


# Every edge of every bound of the wire, from both sides, and every wrong type: any field of any client frame is given
# all of these, and schema and codec must say the same.
_ENVELOPE: Final[Body] = {"to": TO, "mid": MID, "pv": 1, "body": b""}


def _envelopes(count: int) -> list[Body]:
    return [{**_ENVELOPE, "mid": bytes([1 + index]) * 16} for index in range(count)]


ODD_VALUES: Final[list[Any]] = [
    *(None, True, False, 1.0, "", "x", b"", [], {}, [None], {"a": 1}),
    *(-(2**63), -1, 0, 1, 2**63 - 1, 2**63, 2**64 - 1),
    *(limits.PAD_MAX, limits.PAD_MAX + 1, limits.PULL_LIMIT_MAX, limits.PULL_LIMIT_MAX + 1),
    *(limits.WINDOW_ENTRIES_MAX + 1, limits.WINDOW_BYTES_MAX + 1),
    *(
        "x" * length
        for size in (16, limits.CLIENT_NAME_CHARS_MAX, limits.CURSOR_CHARS_MAX)
        for length in (size, size + 1)
    ),
    *("\U0001f600" * limits.CURSOR_CHARS_MAX, "\0"),
    *(ZERO_ID, b"\x07" * 15, b"\x07" * 16, b"\x07" * 17, bytes(15) + b"\x01", bytes(511), bytes(512), bytes(513)),
    *([MID] * limits.ACK_MAX, [MID] * (limits.ACK_MAX + 1), [MID, ZERO_ID], [MID, b"short"], [MID, "x" * 16]),
    *(_envelopes(limits.SEND_ENVELOPES_MAX), _envelopes(limits.SEND_ENVELOPES_MAX + 1), [_ENVELOPE, _ENVELOPE]),
    *([{**_ENVELOPE, "later": 1}], [{**_ENVELOPE, "pad": 0}], [{}], [_ENVELOPE, 1]),
]


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if from_client(shape.kind)], ids=_named)
def test_schema_and_codec_give_the_same_verdict_on_any_value_of_any_field(shape: Shape) -> None:
    verdicts: set[bool] = set()
    for field in (*shape.schema["properties"], "of_a_later_version"):
        for value in ODD_VALUES:
            if field == "t" and len(msgpack.packb(value)) > limits.PING_PACKED_BYTES_MAX:
                continue  # a packed size is not for a schema: the next test
            body = _changed(shape, field, value)
            taken = _codec_takes(shape.kind, body)
            assert _schema_takes(shape.kind, body) is taken, (field, str(value)[:60])
            verdicts.add(taken)
    assert True in verdicts


@pytest.mark.parametrize("pad", range(limits.PAD_MAX + 1))
def test_a_padding_class_fixes_the_size_of_the_body(pad: int) -> None:
    for size in (limits.padded_size(pad) - 1, limits.padded_size(pad), limits.padded_size(pad) + 1):
        body = {"cmid": CMID, "envelopes": [{**_ENVELOPE, "pad": pad, "body": bytes(size)}]}
        fits = size == limits.padded_size(pad)
        assert _schema_takes(FrameType.SEND, body) is fits
        assert _codec_takes(FrameType.SEND, body) is fits


def test_the_packed_size_of_t_is_the_one_that_the_codec_takes() -> None:
    largest = bodies()[FrameType.PING]["properties"]["t"]["x-packed-bytes-max"]
    assert _codec_takes(FrameType.PING, {"t": bytes(largest - 2)})  # bin has two bytes of header
    assert not _codec_takes(FrameType.PING, {"t": bytes(largest - 1)})


def test_integers_end_where_messagepack_ends() -> None:
    for past in (-(2**63) - 1, 2**64):
        assert not _schema_takes(FrameType.ACK, {"ref": past, "mids": [MID]})
        with pytest.raises(OverflowError):
            msgpack.packb(past)


@pytest.mark.parametrize(
    ("kind", "field", "good", "bad"),
    [
        (FrameType.MAILBOX_BATCH, "entries", limits.BATCH_ENTRIES_MAX, limits.BATCH_ENTRIES_MAX + 1),
        (FrameType.SEND_ACK, "results", limits.SEND_ENVELOPES_MAX, limits.SEND_ENVELOPES_MAX + 1),
        (FrameType.ACK_RESULT, "results", limits.ACK_MAX, limits.ACK_MAX + 1),
        (FrameType.ERROR, "at", limits.SEND_ENVELOPES_MAX, limits.SEND_ENVELOPES_MAX + 1),
    ],
)
def test_an_array_of_the_server_ends_where_its_reader_ends(kind: FrameType, field: str, good: int, bad: int) -> None:
    for count, fits in ((good, True), (bad, False)):
        body = _full_body(kind)
        body[field] = body[field][:1] * count
        assert _schema_takes(kind, body) is fits
        assert _codec_takes(kind, body) is fits


@pytest.mark.parametrize("kind", EVENTS)
def test_a_known_event_has_its_fields(kind: str) -> None:
    (sample,) = (event for event in EVENT_SAMPLES if event["kind"] == kind)
    assert _schema_takes(FrameType.PUSH_EVENTS, {"events": [sample]})
    assert _schema_takes(FrameType.PUSH_EVENTS, {"events": [{"kind": kind}]}) is (EVENTS[kind] == {})
