"""Whatever bytes come, only documented errors come out; what is well-formed survives the way there and back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgpack import fallback  # type: ignore[import-untyped]

from protocol import packing
from protocol.codec import decode_client_frame, decode_server_frame, encode_client_frame, encode_server_frame
from protocol.errors import ErrorCode, MailboxError, Outcome
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
from protocol.http_shapes import (
    ChallengeRequest,
    DeviceAddition,
    LastResortPrekey,
    PrekeyUpload,
    Registration,
    TokenRequest,
    ack_ids,
    challenge_request,
    device_addition,
    device_revocation,
    idempotency_key,
    mailbox_query,
    prekey_upload,
    push_route,
    registration,
    submit_body,
    token_request,
)
from protocol.http_values import BodyFormat, parse_body, render_body
from protocol.limits import WireLimits
from protocol.packing import pack, unpack
from tests.support.seeds import random_seeds

thorough = settings(max_examples=200, deadline=None, print_blob=True)

ids = st.binary(min_size=16, max_size=16).filter(any)
int64s = st.integers(-(2**63), 2**64 - 1)
instants = st.integers(0, 2**53)
texts = st.text(max_size=40)
cursors = st.text(min_size=1, max_size=512)
small = st.recursive(
    st.none() | st.booleans() | int64s | st.floats(allow_nan=False) | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=2).map(tuple) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
envelopes = st.builds(
    SendEnvelope, ids, ids, int64s, st.binary(max_size=300), st.none() | int64s, st.none()
) | st.builds(lambda to, mid, pad: SendEnvelope(to, mid, 1, bytes(256 << pad), None, pad), ids, ids, st.integers(0, 2))
client_frames: st.SearchStrategy[ClientFrame] = st.one_of(
    st.builds(
        Hello,
        texts,
        st.none() | cursors,
        st.integers(1, 1_024),
        st.integers(1, 8 * 2**20),
        st.none() | st.binary(min_size=16, max_size=16),
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.text(max_size=128),
    ),
    st.builds(
        Send,
        ids,
        st.lists(envelopes, min_size=1, max_size=5, unique_by=lambda envelope: envelope[:2]).map(tuple),
        st.booleans(),
    ),
    st.builds(Ack, int64s, st.lists(ids, min_size=1, max_size=100).map(tuple)),
    st.builds(PullMailbox, int64s, st.none() | cursors, st.integers(1, 256)),
    st.builds(Defer, st.lists(ids, min_size=1, max_size=100).map(tuple)),
    st.builds(Reauth, texts),
    st.builds(Ping, small.filter(lambda t: len(pack(t)) <= 64)),
)
entries = st.builds(
    Entry,
    ids,
    int64s,
    st.binary(max_size=300),
    instants,
    instants,
    st.none() | st.integers(0, 12),
    st.none() | ids,
    st.just(False),
) | st.builds(Entry, ids, st.just(0), st.none(), instants, instants, st.none(), ids, st.just(True))
limits = st.builds(WireLimits, *[st.integers(0, 2**40)] * 9)
events = st.dictionaries(st.text(max_size=5), int64s | texts, max_size=3).map(lambda event: {**event, "kind": "some"})
server_frames: st.SearchStrategy[ServerFrame] = st.one_of(
    st.builds(Welcome, texts, instants, st.integers(5, 300), instants, limits, cursors, st.booleans()),
    st.builds(
        SendAck,
        ids,
        st.booleans(),
        st.lists(st.builds(SendResult, ids, instants, instants), min_size=1, max_size=64).map(tuple),
    ),
    st.builds(
        MailboxBatch,
        st.none() | int64s,
        st.lists(entries, max_size=20).map(tuple),
        cursors,
        st.booleans(),
        st.booleans(),
    ),
    st.builds(AckResult, int64s, st.lists(st.just("acked"), max_size=100).map(tuple)),
    st.builds(PushEvents, st.lists(events, max_size=3).map(tuple)),
    st.builds(Pong, small),
    st.builds(GoAway, st.integers(0, 2**40), texts),
    st.builds(
        Error,
        st.sampled_from(ErrorCode),
        texts,
        st.booleans(),
        texts,
        st.none() | int64s,
        st.none() | ids,
        st.none() | st.integers(0, 2**40),
        st.none() | st.lists(st.integers(0, 63), max_size=5).map(tuple),
        st.none() | st.sampled_from(Outcome),
    ),
)
# Values in the neighbourhood of frames: the right keys with the wrong things in them.
keys = st.sampled_from(
    sorted(
        {name for frame in [*get_args(ClientFrame), *get_args(ServerFrame)] for name in frame._fields}
        | {*SendEnvelope._fields, *SendResult._fields, *Entry._fields, "kind"}
    )
)
anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | int64s | st.floats() | st.text(max_size=20) | st.binary(max_size=20) | ids,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys | st.text(max_size=5), inner, max_size=7),
    max_leaves=30,
)
near_frames = st.tuples(st.integers(0, 73) | anything, st.dictionaries(keys, anything, max_size=7) | anything)


@pytest.fixture(params=["C", "Python"], autouse=True)
def _both_unpackers(request: pytest.FixtureRequest) -> Iterator[None]:
    """msgpack falls back to pure Python where its extension is missing: same promises, same verdicts."""
    before = packing._unpackb
    if request.param == "Python":
        packing._unpackb = fallback.unpackb
    yield
    packing._unpackb = before


def code_of(call: Callable[[], object]) -> ErrorCode | None:
    """The documented error that comes out, None for none. Anything else that is raised fails the test."""
    try:
        call()
    except MailboxError as error:
        return error.code
    return None


def read(data: bytes, *, hello_seen: bool = True) -> ClientFrame | ErrorCode:
    try:
        return decode_client_frame(data, hello_seen=hello_seen)
    except MailboxError as error:
        return error.code


@thorough
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_give_a_frame_or_a_documented_error(data: bytes, hello_seen: bool) -> None:
    frame = read(data, hello_seen=hello_seen)
    assert not isinstance(frame, ErrorCode) or frame in (ErrorCode.BAD_FRAME, ErrorCode.UNSUPPORTED_FRAME)


@thorough
@given(near_frames, st.booleans())
def test_anything_near_a_frame_gives_a_frame_or_a_documented_error(value: Any, hello_seen: bool) -> None:
    frame = read(pack(value), hello_seen=hello_seen)
    assert not isinstance(frame, ErrorCode) or frame in (ErrorCode.BAD_FRAME, ErrorCode.UNSUPPORTED_FRAME)


@thorough
@given(near_frames)
def test_a_client_survives_anything_near_a_frame(value: Any) -> None:
    assert code_of(lambda: decode_server_frame(pack(value))) in (None, ErrorCode.BAD_FRAME)


@thorough
@given(client_frames)
def test_a_client_frame_comes_out_as_it_went_in(frame: ClientFrame) -> None:
    assert decode_client_frame(encode_client_frame(frame), hello_seen=not isinstance(frame, Hello)) == frame


@thorough
@given(server_frames)
def test_a_server_frame_comes_out_as_it_went_in(frame: ServerFrame) -> None:
    assert decode_server_frame(encode_server_frame(frame)) == frame


@thorough
@given(client_frames, st.data())
def test_a_frame_cut_short_or_with_a_byte_changed_gives_only_documented_errors(
    frame: ClientFrame, data: st.DataObject
) -> None:
    encoded = encode_client_frame(frame)
    at = data.draw(st.integers(0, len(encoded) - 1))
    assert read(encoded[:at], hello_seen=not isinstance(frame, Hello)) is ErrorCode.BAD_FRAME
    assert read(encoded + b"\x00", hello_seen=not isinstance(frame, Hello)) is ErrorCode.BAD_FRAME
    changed = encoded[:at] + bytes([data.draw(st.integers(0, 255))]) + encoded[at + 1 :]
    verdict = read(changed, hello_seen=not isinstance(frame, Hello))
    assert not isinstance(verdict, ErrorCode) or verdict in (ErrorCode.BAD_FRAME, ErrorCode.UNSUPPORTED_FRAME)


@thorough
@given(client_frames, st.dictionaries(st.text(max_size=5).map("x-".__add__), small, max_size=3))
def test_unknown_keys_change_nothing(frame: ClientFrame, unknown: dict[str, Any]) -> None:
    kind, body = unpack(encode_client_frame(frame))
    if isinstance(frame, Send):
        body = {**body, "envelopes": [{**envelope, **unknown} for envelope in body["envelopes"]]}
    assert read(pack((kind, {**body, **unknown})), hello_seen=not isinstance(frame, Hello)) == frame


@thorough
@given(anything)
def test_the_walk_passes_what_the_unpacker_reads_within_bounds(value: Any) -> None:
    data = pack(value)
    packing.check_bounds(data, depth_max=40)
    assert code_of(lambda: unpack(data[:-1])) is ErrorCode.BAD_FRAME
    assert code_of(lambda: unpack(data + b"\xc0")) is ErrorCode.BAD_FRAME


@pytest.mark.parametrize("seed", random_seeds(1))
def test_random_frames_by_the_ten_thousand_give_only_documented_errors(seed: int) -> None:
    source = random.Random(seed)
    allowed = {ErrorCode.BAD_FRAME, ErrorCode.UNSUPPORTED_FRAME}
    for _ in range(20_000):
        kind = source.choice(b"\x01\x02\x03\x04\x05\x06\x07\x63")
        data = b"\x92" + bytes([kind]) + b"\x81" + source.randbytes(source.randrange(60))
        verdict = read(data, hello_seen=kind != 1)
        assert not isinstance(verdict, ErrorCode) or verdict in allowed


HTTP_READERS = [
    registration,
    challenge_request,
    token_request,
    device_addition,
    device_revocation,
    prekey_upload,
    ack_ids,
    push_route,
    lambda fields: submit_body(fields, None),
    lambda fields: submit_body(fields, b"key"),
]
http_keys = st.sampled_from(
    sorted(
        {
            *(*Registration._fields, *ChallengeRequest._fields, *TokenRequest._fields, *DeviceAddition._fields),
            *(*PrekeyUpload._fields, *LastResortPrekey._fields, "client_message_id", "envelopes", "echo", "to", "body"),
            *(
                "message_id",
                "protocol_version",
                "ttl_s",
                "pad",
                "message_ids",
                "provider",
                "endpoint",
                "p256dh",
                "auth",
            ),
            *("topic", "mode", "url"),
        }
    )
)
http_values = st.recursive(
    st.none() | st.booleans() | int64s | st.floats() | st.text(max_size=30) | st.binary(max_size=70),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(http_keys, inner, max_size=6),
    max_leaves=20,
)


@thorough
@given(st.dictionaries(http_keys, http_values, max_size=8) | http_values, st.sampled_from(BodyFormat))
def test_any_http_body_gives_a_request_or_bad_request(value: Any, body_format: BodyFormat) -> None:
    data = render_body(value, body_format)
    for reader in HTTP_READERS:
        code = code_of(lambda reader=reader: reader(parse_body(data, body_format)))  # type: ignore[misc]
        assert code in (None, ErrorCode.BAD_REQUEST)


@thorough
@given(st.binary(max_size=100), st.sampled_from(BodyFormat))
def test_any_bytes_as_http_body_give_a_map_or_bad_request(data: bytes, body_format: BodyFormat) -> None:
    assert code_of(lambda: parse_body(data, body_format)) in (None, ErrorCode.BAD_REQUEST)


@thorough
@given(st.dictionaries(st.sampled_from(["cursor", "limit", "wait_s", "until", "x"]), st.text(max_size=10)), st.text())
def test_any_query_and_key_give_values_or_bad_request(query: dict[str, str], key: str) -> None:
    for reader in (lambda: mailbox_query(query), lambda: idempotency_key(key)):
        assert code_of(reader) in (None, ErrorCode.BAD_REQUEST)
