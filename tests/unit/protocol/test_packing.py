"""Hostile MessagePack is refused before it costs memory; the walk agrees with the unpacker on what is well-formed."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from msgpack import fallback  # type: ignore[import-untyped]

from protocol import packing
from protocol.codec import decode_client_frame, decode_server_frame
from protocol.errors import ErrorCode, MailboxError
from protocol.limits import MAX_FRAME_BYTES
from protocol.packing import check_bounds, pack, unpack

MIB = 1024 * 1024


def fill(head: bytes, item: bytes) -> bytes:
    """A frame of 4 MiB: `[7, {"t": [item, …]}]`."""
    prefix = b"\x92\x07\x81\xa1t"
    count = (MAX_FRAME_BYTES - len(prefix) - 5) // len(item)
    return prefix + head + count.to_bytes(4, "big") + item * count


HOSTILE = {
    "empty arrays": fill(b"\xdd", b"\x90"),
    "empty maps": fill(b"\xdd", b"\x80"),
    "arrays of nil": fill(b"\xdd", b"\x91\xc0"),
    "ints": fill(b"\xdd", b"\xcd\x7f\xff"),
    "texts": fill(b"\xdd", b"\xa2ab"),
    "a map of nils": fill(b"\xdf", b"\xc0"),
    "arrays inside arrays": b"\x92\x07\x81\xa1t" + b"\x91" * (MAX_FRAME_BYTES - 6) + b"\xc0",
    "an announced array that never comes": b"\x92\x07\x81\xa1t\xdd\xff\xff\xff\xff" + bytes(MAX_FRAME_BYTES - 10),
    "an announced map that never comes": b"\x92\x07\x81\xa1t\xdf\xff\xff\xff\xff" + bytes(MAX_FRAME_BYTES - 10),
    "a small frame that announces four billion": b"\x92\x07\x81\xa1t\xdd\xff\xff\xff\xff",
}


@pytest.mark.parametrize("decode", [decode_client_frame, decode_server_frame])
@pytest.mark.parametrize("data", list(HOSTILE.values()), ids=list(HOSTILE))
def test_a_hostile_frame_costs_no_memory_and_no_time(decode: Callable[[bytes], Any], data: bytes) -> None:
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(MailboxError) as caught:
            decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.code is ErrorCode.BAD_FRAME
    assert peak < MIB
    assert time.process_time() - started < 0.5


def test_a_frame_of_the_full_size_is_read_with_its_bodies_copied_once() -> None:
    bodies = [{"to": bytes([1]) * 16, "mid": bytes([n + 1]) * 16, "pv": 1, "body": bytes(65_000)} for n in range(64)]
    data = pack((2, {"cmid": b"c" * 16, "envelopes": bodies}))
    tracemalloc.start()
    try:
        decode_client_frame(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(data) + MIB


def test_objects_are_counted_with_their_containers_and_keys() -> None:
    data = pack([1, {"key": [2, 3]}])  # array, 1, map, key, array, 2, 3
    check_bounds(data, objects_max=7)
    with pytest.raises(MailboxError):
        check_bounds(data, objects_max=6)


def test_depth_is_counted_in_containers() -> None:
    data = pack([[{"key": []}]])
    check_bounds(data, depth_max=4)
    with pytest.raises(MailboxError):
        check_bounds(data, depth_max=3)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 65_535, 65_536])
def test_texts_bytes_arrays_and_maps_of_every_header_width_pass(size: int) -> None:
    value = ["x" * size, b"x" * size, [None] * size, {str(n): n for n in range(min(size, 70_000))}]
    data = pack(value)
    check_bounds(data, objects_max=10**6)
    assert pack(unpack(data, objects_max=10**6)) == data


@pytest.mark.parametrize(
    "number", [0, 127, 128, 255, 256, 65_536, 2**32, 2**64 - 1, -1, -32, -33, -129, -(2**31) - 1, -(2**63)]
)
def test_integers_of_every_width_pass(number: int) -> None:
    check_bounds(pack([number, float(number)]), objects_max=3)
    assert unpack(pack(number)) == number


@pytest.mark.parametrize("first", [0xC1, 0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8])
def test_ext_types_and_the_unused_header_are_refused_by_walk_and_unpacker(first: int) -> None:
    data = bytes([first]) + bytes(20)
    with pytest.raises(MailboxError):
        check_bounds(data)
    for unpackb in (packing._unpackb, fallback.unpackb):
        with pytest.raises(ValueError):
            unpackb(data, use_list=False, max_ext_len=0, ext_hook=packing._refuse_ext)


def test_the_walk_stops_inside_a_header_that_is_cut_short() -> None:
    for data in (b"", b"\xdd", b"\xdd\x00\x00\x00", b"\x91", b"\xc6\x00"):
        with pytest.raises(MailboxError):
            check_bounds(data)
