"""The fast path reads what the library reads, and leaves alone what is not its own."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from gateway.ws_frames import Parsed, header, parse
from tests.support.raw_client import CONTINUATION, PING, PONG, TEXT, ws_frame

MAX = 1_000


def library_messages(data: bytes) -> list[bytes]:
    protocol = ServerProtocol(state=OPEN, max_size=MAX)
    protocol.receive_data(data)
    return [
        bytes(event.data)
        for event in protocol.events_received()
        if isinstance(event, Frame) and event.opcode is Opcode.BINARY
    ]


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(0, 400))
def test_complete_frames_come_out_and_a_partial_one_stays(bodies: list[bytes], cut: int) -> None:
    data = b"".join(ws_frame(body) for body in bodies)
    whole = parse(data, MAX)
    assert whole == Parsed(bodies, len(data), True, 0)
    assert whole.messages == library_messages(data)
    part = parse(data[: max(0, len(data) - cut)], MAX)
    assert part.common
    assert part.messages == bodies[: len(part.messages)]
    again = parse(data[part.consumed :], MAX)
    assert part.messages + again.messages == bodies


def test_a_partial_frame_says_how_long_it_will_be_once_its_header_is_whole() -> None:
    for size in (1, 125, 126, 900):
        frame = ws_frame(bytes(size))
        assert parse(frame[:1], MAX) == Parsed([], 0, True, 0)
        assert parse(frame[:-1], MAX) == Parsed([], 0, True, len(frame))
    assert parse(ws_frame(bytes(126))[:5], MAX) == Parsed([], 0, True, 0)


def test_pongs_are_dropped_in_passing() -> None:
    data = ws_frame(b"", PONG) + ws_frame(b"x") + ws_frame(b"life", PONG)
    assert parse(data, MAX) == Parsed([b"x"], len(data), True, 0)


def test_the_uncommon_is_left_where_it_starts() -> None:
    before = ws_frame(b"first")
    for frame, waits in (
        (ws_frame(b"hi", TEXT), True),
        (ws_frame(b"hi", PING), True),
        (ws_frame(b"hi", CONTINUATION), True),
        (ws_frame(b"hi", fin=False), True),
        (ws_frame(b"hi", rsv=4), True),
        (ws_frame(b"hi", masked=False), False),
        (ws_frame(b"", length=MAX + 1), False),
        (ws_frame(bytes(126), PONG), False),
        (ws_frame(bytes(126), PING), False),
    ):
        found = parse(before + frame, MAX)
        assert found == Parsed([b"first"], len(before), False, len(frame) if waits else 0)


@given(st.binary(max_size=200), st.integers(0, 300))
def test_any_bytes_are_taken_without_an_error(data: bytes, limit: int) -> None:
    found = parse(data, limit)
    assert 0 <= found.consumed <= len(data)
    assert all(len(message) <= limit for message in found.messages)
    assert parse(bytearray(data), limit) == found


def test_headers_are_the_librarys() -> None:
    for size in (0, 1, 125, 126, 65_535, 65_536, 200_000):
        payload = os.urandom(size)
        assert header(size) + payload == Frame(Opcode.BINARY, payload).serialize(mask=False)
