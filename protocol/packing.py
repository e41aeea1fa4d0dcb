"""MessagePack read strictly and within bounds: what is malformed or too rich is refused before it costs memory.

A 4 MiB frame of empty arrays would cost 288 MiB and 1.6 s if it were built first and judged later. So a frame above
`SMALL_FRAME_BYTES` is walked once, byte by byte, without building anything; a smaller one cannot hold more than
`MAX_OBJECTS` objects and is walked only when it carries something unknown.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import msgpack  # type: ignore[import-untyped]

from protocol.errors import ErrorCode, MailboxError
from protocol.limits import MAX_DEPTH, MAX_OBJECTS

SMALL_FRAME_BYTES: Final = 4_096  # one byte makes at most one object: MAX_OBJECTS holds by itself up to here
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1


def malformed(why: str) -> MailboxError:
    """The error for a frame that is not of this contract; `why` never quotes the frame."""
    return MailboxError(ErrorCode.BAD_FRAME, f"The frame is malformed: {why}.")


def _refuse_ext(_code: int, _data: bytes) -> NoReturn:
    raise ValueError("ext types are not part of the contract")


# Rebound by tests to msgpack's pure Python reader, which must give the same verdicts.
_unpackb: Any = msgpack.unpackb


def unpack(data: bytes, *, objects_max: int = MAX_OBJECTS) -> Any:
    """The one value in `data`: arrays as tuples, `bin` as bytes, every map key a str or bytes.

    Raises MailboxError BAD_FRAME for anything else: truncated, trailing bytes, an ext type, invalid UTF-8, other map
    keys, more than `objects_max` objects or, above SMALL_FRAME_BYTES, deeper than MAX_DEPTH.
    """
    if len(data) > SMALL_FRAME_BYTES:
        check_bounds(data, objects_max)
    try:
        return _unpackb(data, use_list=False, max_ext_len=0, ext_hook=_refuse_ext)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise malformed("not one MessagePack value of plain types") from error


_packer: Final = msgpack.Packer(autoreset=True)


def pack(value: Any) -> bytes:
    """`value` in MessagePack with minimal headers; map keys in the order given."""
    packed: bytes = _packer.pack(value)
    return packed


# How a value goes on after its first byte. Scalars: its whole length. Others: how wide its length field is.
_SCALAR, _BLOB, _ARRAY, _MAP, _ILLEGAL = range(5)


def _layouts() -> tuple[tuple[int, int], ...]:
    table: list[tuple[int, int]] = [(_ILLEGAL, 0)] * 256
    for first in range(256):
        if first <= 0x7F or first >= 0xE0 or first in (0xC0, 0xC2, 0xC3):
            table[first] = (_SCALAR, 1)
        elif 0xA0 <= first <= 0xBF:
            table[first] = (_SCALAR, 1 + (first & 0x1F))
        elif first <= 0x8F:
            table[first] = (_MAP, 0)
        elif first <= 0x9F:
            table[first] = (_ARRAY, 0)
    for first, length in ((0xCA, 5), (0xCB, 9), (0xCC, 2), (0xCD, 3), (0xCE, 5), (0xCF, 9)):
        table[first] = (_SCALAR, length)
    for first, length in ((0xD0, 2), (0xD1, 3), (0xD2, 5), (0xD3, 9)):
        table[first] = (_SCALAR, length)
    for first, width in ((0xC4, 1), (0xC5, 2), (0xC6, 4), (0xD9, 1), (0xDA, 2), (0xDB, 4)):
        table[first] = (_BLOB, width)
    table[0xDC], table[0xDD] = (_ARRAY, 2), (_ARRAY, 4)
    table[0xDE], table[0xDF] = (_MAP, 2), (_MAP, 4)
    return tuple(table)  # 0xC1, 0xC7..0xC9 and 0xD4..0xD8 stay illegal: never used, and the ext types


_LAYOUTS: Final = _layouts()


def check_bounds(data: bytes, objects_max: int = MAX_OBJECTS, depth_max: int = MAX_DEPTH) -> None:
    """Raise BAD_FRAME if `data` holds more than `objects_max` objects (map keys count), nests deeper than `depth_max`
    containers, has an ext type or is cut short. Builds nothing; stops at the first excess.
    """
    size = len(data)
    position = 0
    waiting: list[int] = []  # per open container: how many values still belong to it after the current inner one
    left = 1  # values still to come in the innermost container
    budget = objects_max
    while True:
        while left == 0:
            if not waiting:
                return  # what may follow is the unpacker's to refuse
            left = waiting.pop()
        left -= 1
        budget -= 1
        if budget < 0:
            raise malformed("too many values")
        if position >= size:
            raise malformed("cut short")
        first = data[position]
        layout, length = _LAYOUTS[first]
        if layout == _SCALAR:
            position += length
            continue
        if layout == _ILLEGAL:
            raise malformed("an ext type or an unused header byte")
        header_end = position + 1 + length
        if header_end > size:
            raise malformed("cut short")
        count = int.from_bytes(data[position + 1 : header_end], "big") if length else first & 0x0F
        position = header_end
        if layout == _BLOB:
            position += count
            continue
        if layout == _MAP:
            count *= 2
        if count > budget:
            raise malformed("too many values")
        waiting.append(left)
        if len(waiting) > depth_max:
            raise malformed("nested too deep")
        left = count
