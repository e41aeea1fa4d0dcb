"""Bodies of HTTP requests and answers: one set of maps, as JSON (bytes in base64url) or MessagePack (`bin`).

Whatever is wrong with a request is BAD_REQUEST, and the message names the field and what it should be, never its value.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, Final, NoReturn

from protocol.errors import ErrorCode, MailboxError
from protocol.ids import ID_BYTES, ZERO_ID, from_text, to_text
from protocol.limits import MAX_OBJECTS
from protocol.packing import INT64_MIN, UINT64_MAX, check_bounds, pack, unpack

Map = dict[str, Any]


class BodyFormat(Enum):
    """The two forms of a body; the value is its media type."""

    JSON = "application/json"
    MSGPACK = "application/msgpack"


def bad_request(why: str) -> MailboxError:
    """The error for a request that is not of this contract; `why` never quotes the request."""
    return MailboxError(ErrorCode.BAD_REQUEST, f"The request is malformed: {why}.")


def parse_body(data: bytes, body_format: BodyFormat) -> Fields:
    """The map in a request body. The caller bounds `len(data)`.

    Raises MailboxError BAD_REQUEST for anything but one map with string keys, for more than MAX_OBJECTS values and, in
    MessagePack, for deep nesting and ext types: before it costs memory.
    """
    value = _parse_json(data) if body_format is BodyFormat.JSON else _parse_msgpack(data)
    return Fields(_map(value, "the body"), body_format)


def render_body(value: Any, body_format: BodyFormat) -> bytes:
    """An answer's map as bytes; `bytes` values become base64url text in JSON."""
    if body_format is BodyFormat.MSGPACK:
        return pack(value)
    return json.dumps(value, default=_bytes_as_text, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def _bytes_as_text(value: object) -> str:
    if isinstance(value, bytes):
        return to_text(value)
    raise TypeError(f"an answer cannot hold {type(value).__name__}")


def _parse_msgpack(data: bytes) -> Any:
    try:
        check_bounds(data)
        return unpack(data)
    except MailboxError as error:
        raise bad_request("not one MessagePack map of plain types, or too many values") from error


def _parse_json(data: bytes) -> Any:
    # Every value but the first follows one of these; inside strings they only make the bound stricter. Counting first
    # keeps a body of millions of empty arrays from being built.
    if data.count(b",") + data.count(b":") + data.count(b"[") + data.count(b"{") > MAX_OBJECTS:
        raise bad_request("too many values")
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise bad_request("not one JSON object in UTF-8") from error


def _unique(pairs: list[tuple[str, Any]]) -> Map:
    # Readers differ in which of two values they take (RFC 8259, section 4): whoever looked at it before might have seen
    # another request.
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _refuse_constant(_name: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")


def _map(value: Any, name: str) -> Map:
    if type(value) is not dict or not all(type(key) is str for key in value):
        raise bad_request(f"{name} is a map with string keys")
    return value


_ABSENT: Final = object()


class Fields:
    """The fields of one map, read with kind and bounds. Unknown ones are ignored; null never stands for absence."""

    __slots__ = ("_format", "_map", "_prefix")

    def __init__(self, fields: Map, body_format: BodyFormat, prefix: str = "") -> None:
        self._map = fields
        self._format = body_format
        self._prefix = prefix

    def __contains__(self, name: str) -> bool:
        return name in self._map

    def _wrong(self, name: str, expected: str) -> MailboxError:
        return bad_request(f"{self._prefix}{name} is {expected}")

    def _get(self, name: str, expected: str) -> Any:
        value = self._map.get(name, _ABSENT)
        if value is _ABSENT:
            raise bad_request(f"{self._prefix}{name} is missing: {expected}")
        return value

    def integer(self, name: str, low: int = INT64_MIN, high: int = UINT64_MAX) -> int:
        """An int within bounds, both included; a bool or a float is none."""
        expected = "an integer" if low == INT64_MIN else f"an integer from {low} to {high}"
        value = self._get(name, expected)
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(name, expected)
        return value

    def boolean(self, name: str) -> bool:
        value = self._get(name, "true or false")
        if type(value) is not bool:
            raise self._wrong(name, "true or false")
        return value

    def text(self, name: str, low: int, high: int) -> str:
        """A text of `low` to `high` characters, without NUL and well-formed in UTF-8."""
        expected = f"a text of {low} to {high} characters"
        value = self._get(name, expected)
        if type(value) is not str or not low <= len(value) <= high or "\x00" in value:
            raise self._wrong(name, expected)
        try:
            value.encode("utf-8")  # JSON can spell half a surrogate pair
        except UnicodeEncodeError as error:
            raise self._wrong(name, expected) from error
        return value

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        expected = "one of " + ", ".join(allowed)
        value = self._get(name, expected)
        if type(value) is not str or value not in allowed:
            raise self._wrong(name, expected)
        return value

    def binary(self, name: str, low: int, high: int | None = None) -> bytes:
        """`low` to `high` bytes (exactly `low` without `high`)."""
        return self._binary(self._get(name, "missing bytes"), name, low, low if high is None else high)

    def _binary(self, value: Any, name: str, low: int, high: int) -> bytes:
        size = f"{low}" if low == high else f"{low} to {high}" if high < UINT64_MAX else "any number of"
        if self._format is BodyFormat.MSGPACK:
            if type(value) is not bytes or not low <= len(value) <= high:
                raise self._wrong(name, f"bin of {size} bytes")
            return value
        try:
            data = from_text(value) if type(value) is str else None
        except ValueError as error:
            raise self._wrong(name, "canonical unpadded base64url") from error
        if data is None or not low <= len(data) <= high:
            raise self._wrong(name, f"unpadded base64url of {size} bytes")
        return data

    def id(self, name: str) -> bytes:
        """16 bytes, not all zero."""
        return self._id(self._get(name, "an id of 16 bytes"), name)

    def _id(self, value: Any, name: str) -> bytes:
        data = self._binary(value, name, ID_BYTES, ID_BYTES)
        if data == ZERO_ID:
            raise self._wrong(name, "16 bytes, not all zero")
        return data

    def _array(self, name: str, low: int, high: int, what: str) -> list[Any]:
        expected = f"an array of {low} to {high} {what}"
        value = self._get(name, expected)
        if (type(value) is not list and type(value) is not tuple) or not low <= len(value) <= high:
            raise self._wrong(name, expected)
        return list(value)

    def ids(self, name: str, low: int, high: int) -> list[bytes]:
        return [self._id(value, f"{name}[{at}]") for at, value in enumerate(self._array(name, low, high, "ids"))]

    def maps(self, name: str, low: int, high: int) -> list[Fields]:
        """An array of maps; their fields are named with their index in error messages."""
        return [self._fields(value, f"{name}[{at}]") for at, value in enumerate(self._array(name, low, high, "maps"))]

    def map(self, name: str) -> Fields:
        return self._fields(self._get(name, "a map"), name)

    def _fields(self, value: Any, name: str) -> Fields:
        return Fields(_map(value, self._prefix + name), self._format, f"{self._prefix}{name}.")
