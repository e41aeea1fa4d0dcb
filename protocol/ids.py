"""Ids: 16 random bytes, `bin` in MessagePack, unpadded base64url in text, `uuid` in PostgreSQL (DESIGN, "ids").

Inside the program an id is plain `bytes`; the NewTypes cost nothing at run time and keep the kinds apart for mypy.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode
from typing import Final, NewType

DeviceId = NewType("DeviceId", bytes)
IdentityId = NewType("IdentityId", bytes)
MessageId = NewType("MessageId", bytes)
ClientMessageId = NewType("ClientMessageId", bytes)
InstanceId = NewType("InstanceId", bytes)
WakeRouteId = NewType("WakeRouteId", bytes)

ID_BYTES: Final = 16
ID_TEXT_CHARS: Final = 22
_TO_URLSAFE: Final = bytes.maketrans(b"+/", b"-_")
ZERO_ID: Final = bytes(ID_BYTES)  # the invalid sentinel of seed 003; never valid for any kind of id


def is_id(value: object) -> bool:
    """True for exactly 16 bytes that are not all zero."""
    return type(value) is bytes and len(value) == ID_BYTES and value != ZERO_ID


def to_text(value: bytes) -> str:
    """Unpadded base64url, the only text form of ids, keys and bodies."""
    return binascii.b2a_base64(value, newline=False).translate(_TO_URLSAFE, b"=").decode("ascii")


def from_text(text: str) -> bytes:
    """The bytes of a canonical unpadded base64url text; ValueError for anything else.

    Canonical means that `to_text` gives the same text back: no padding, no foreign characters, no stray low bits.
    """
    try:
        raw = text.encode("ascii")
        value = urlsafe_b64decode(raw + b"=" * (-len(raw) % 4))
    except (UnicodeEncodeError, binascii.Error) as error:
        raise ValueError("not base64url") from error
    if to_text(value) != text:
        raise ValueError("not canonical unpadded base64url")
    return value


def id_from_text(text: str) -> bytes:
    """The 16 bytes of an id's text form; ValueError if it is not one."""
    value = from_text(text) if len(text) == ID_TEXT_CHARS else b""
    if not is_id(value):
        raise ValueError("an id is 22 characters of canonical base64url, not all zero")
    return value
