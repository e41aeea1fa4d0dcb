"""How `mailboxd send` and `listen` carry a file: addresses, and sealed parts that may come in any order and twice.

An address names a device and its public key, so that no server can put another key in its place. A part is
`b"mbt1"`, transfer id (16), part number u32, number of parts u32 (0: not known yet), then data; padded and sealed to
the device (libsodium sealed box), so that the server sees neither the file's size nor its end.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from nacl.exceptions import CryptoError
from nacl.public import SealedBox
from nacl.signing import SigningKey, VerifyKey

from protocol.ids import DeviceId, from_text, id_from_text, to_text

PARTS_MAX: Final = 2**32 - 1
SEAL_BYTES: Final = 48  # what libsodium's sealed box adds
SEALED_CLASSES: Final = (8, 6, 4, 2, 0)  # padding classes in use, the largest that the instance allows: 64 KiB … 256 B

_MAGIC: Final = b"mbt1"
_HEAD: Final = struct.Struct(">4s16sII")
_ADDRESS: Final = re.compile(r"([A-Za-z0-9_-]{22})\.([A-Za-z0-9_-]{43})")
_MARK: Final = b"\x80"  # ends the data: a mark, then zeros


class Address(NamedTuple):
    """Whom to send to: the device, and the Ed25519 key that the sealing key follows from."""

    device: DeviceId
    public_key: bytes

    @classmethod
    def from_text(cls, text: str) -> Address:
        """Raises ValueError for anything but a whole address."""
        if (match := _ADDRESS.fullmatch(text)) is None:
            raise ValueError("an address is DEVICE.KEY, 22 and 43 characters, as `mailboxd listen` prints it")
        return cls(DeviceId(id_from_text(match[1])), from_text(match[2]))

    def __str__(self) -> str:
        return f"{to_text(self.device)}.{to_text(self.public_key)}"


class Part(NamedTuple):
    """A piece of one transfer. `total` is 0 in all parts but the last."""

    transfer: bytes
    number: int
    total: int
    data: bytes


def part_bytes(padding_class: int) -> int:
    """How much data one part of this padding class carries."""
    return (256 << padding_class) - SEAL_BYTES - _HEAD.size - len(_MARK)


def seal(part: Part, address: Address, padding_class: int) -> bytes:
    """The envelope body: exactly 256 << padding_class bytes. ValueError for a key that nothing can be sealed to."""
    head = _HEAD.pack(_MAGIC, part.transfer, part.number, part.total)
    plain = (head + part.data + _MARK).ljust((256 << padding_class) - SEAL_BYTES, b"\0")
    try:
        key = VerifyKey(address.public_key).to_curve25519_public_key()
    except (RuntimeError, CryptoError) as error:
        raise ValueError("the key in this address is no Ed25519 public key") from error
    return SealedBox(key).encrypt(plain)


def open_sealed(body: bytes, device_seed: bytes) -> Part | None:
    """The part in an envelope body; None when it is not for this key or not one of ours."""
    try:
        plain = SealedBox(SigningKey(device_seed).to_curve25519_private_key()).decrypt(body)
    except (CryptoError, ValueError):
        return None
    data = plain.rstrip(b"\0")
    if len(data) <= _HEAD.size or not plain.startswith(_MAGIC) or not data.endswith(_MARK):
        return None
    _, transfer, number, total = _HEAD.unpack_from(plain)
    if total and number >= total:
        return None
    return Part(transfer, number, total, data[_HEAD.size : -len(_MARK)])
