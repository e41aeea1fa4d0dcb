"""Whole arrays at once between Python and PostgreSQL's binary form.

asyncpg asks of every element whether it is itself an array and calls a codec for each; with a dozen columns a message
that was a fifth of a gateway's work for the database (ADR 0071). Here one array is one `bytes.join`. What it accepts
and gives is what asyncpg accepts and gives: any sized iterable with None for NULL in, a list out.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Collection
from itertools import chain
from struct import Struct, error
from typing import Any, Final

_EMPTY: Final = Struct(">iiI")  # dimensions, has NULLs, element type
_HEAD: Final = Struct(">iiIii")  # …, elements, lower bound
_LENGTH: Final = Struct(">i")
_NULL: Final = _LENGTH.pack(-1)
_FIRST: Final = _HEAD.size
_UUID_BYTES: Final = 16
_INT4_LENGTH: Final = array("i", (4,)).tobytes()

Encoder = Callable[[Collection[Any]], bytes]
Decoder = Callable[[bytes], list[Any]]


def _bool(value: bool) -> bytes:
    if value is not True and value is not False:  # struct would take anything, and None for false
        raise TypeError("a boolean was expected")
    return b"\x01" if value else b"\x00"


def _bytes(value: bytes) -> bytes:
    return bytes(memoryview(value))  # bytes(5) would be five zeros


def _uuid(value: bytes) -> bytes:
    if len(value) != _UUID_BYTES:
        raise ValueError("an id has 16 bytes")
    return bytes(value)


def _encoder(element_oid: int, one: Callable[[Any], bytes], many: Callable[[Collection[Any]], bytes]) -> Encoder:
    """`one` packs an element; `many` a whole array without NULLs, lengths included, or raises TypeError."""
    empty = _EMPTY.pack(0, 0, element_oid)

    def encode(values: Collection[Any]) -> bytes:
        if not values:
            return empty
        try:
            packed, nulls = many(values), 0
        except (TypeError, OverflowError, error):  # a NULL among them, or a value that `one` names
            packed, nulls = b"".join([_NULL if value is None else _with_length(one(value)) for value in values]), 1
        return _HEAD.pack(1, nulls, element_oid, len(values), 1) + packed

    return encode


def _with_length(packed: bytes) -> bytes:
    return _LENGTH.pack(len(packed)) + packed


def _fixed(pack: Callable[[Any], bytes], size: int) -> Callable[[Collection[Any]], bytes]:
    length = _LENGTH.pack(size)

    def many(values: Collection[Any]) -> bytes:
        return length + length.join(map(pack, values))

    return many


def _many_int4(values: Collection[int]) -> bytes:
    """As `_fixed` does it, at a third of its cost: lengths and values are of one size, so one array holds both."""
    both = array("i", _INT4_LENGTH * (2 * len(values)))
    both[1::2] = array("i", values)
    if sys.byteorder == "little":
        both.byteswap()
    return both.tobytes()


def _many_uuids(values: Collection[bytes]) -> bytes:
    if set(map(len, values)) != {_UUID_BYTES}:  # a wrong length would shift all that follow
        raise ValueError("an id has 16 bytes")
    length = _LENGTH.pack(_UUID_BYTES)
    return length + length.join(values)


def _many_bytes(values: Collection[bytes]) -> bytes:
    return b"".join(chain.from_iterable(zip(map(_LENGTH.pack, map(len, values)), values, strict=True)))


def _decoder(value_of: Callable[[bytes], Any], every: Struct | None) -> Decoder:
    """`every` unpacks one element behind its length where all have the same size."""

    def decode(data: bytes) -> list[Any]:
        dimensions, nulls, _ = _EMPTY.unpack_from(data)
        if dimensions == 0:
            return []
        if dimensions != 1:
            raise ValueError("an array of one dimension was expected")
        if every is not None and not nulls:
            return [value for (value,) in every.iter_unpack(data[_FIRST:])]
        values: list[Any] = []
        at = _FIRST
        while at < len(data):
            (size,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            if size < 0:
                values.append(None)
            else:
                values.append(value_of(data[at : at + size]))
                at += size
        return values

    return decode


def _number(letter: str) -> tuple[Callable[[Any], bytes], int, Callable[[bytes], Any], Struct]:
    packing = Struct(f">{letter}")
    return packing.pack, packing.size, lambda data: packing.unpack(data)[0], Struct(f">4x{letter}")


def _codecs() -> dict[tuple[int, str], tuple[Encoder, Decoder]]:
    codecs: dict[tuple[int, str], tuple[Encoder, Decoder]] = {
        (1001, "_bytea"): (_encoder(17, _bytes, _many_bytes), _decoder(bytes, None)),
        (2951, "_uuid"): (_encoder(2950, _uuid, _many_uuids), _decoder(bytes, Struct(">4x16s"))),
    }
    for oid, name, element_oid, letter in (
        (1000, "_bool", 16, "?"),
        (1005, "_int2", 21, "h"),
        (1007, "_int4", 23, "i"),
        (1016, "_int8", 20, "q"),
    ):
        pack, size, value_of, every = _number(letter)
        if letter == "?":
            pack = _bool
        many = _many_int4 if letter == "i" else _fixed(pack, size)
        codecs[oid, name] = _encoder(element_oid, pack, many), _decoder(value_of, every)
    return codecs


CODECS: Final = _codecs()  # by the array type's oid, which is the same in every PostgreSQL, and its name


def install(connection: Any) -> None:
    """Use them on this connection.

    asyncpg's own `set_type_codec` refuses array types, so this calls what it calls. A release without that call would
    be slower and otherwise the same; a test says which one is installed.
    """
    add = getattr(connection._protocol.get_settings(), "add_python_codec", None)
    if add is None:
        return
    for (oid, name), (encode, decode) in CODECS.items():
        add(oid, name, "pg_catalog", [], "scalar", encode, decode, "binary")
