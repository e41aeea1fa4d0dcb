"""Push tokens and endpoints at rest: sealed with a key from outside the database, bound to their device.

Layout: nonce (12) | ChaCha20-Poly1305 of the address as a MessagePack map. The key is derived per device from
the ring key, so random nonces never come near their limit and a row moved to another device does not open.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final, NamedTuple

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from protocol.ids import DeviceId
from protocol.packing import pack, unpack

_DERIVE: Final = b"mailboxd.push-seal.v1\x00"
_NONCE_BYTES: Final = 12


class Sealed(NamedTuple):
    key_id: int
    sealed: bytes


class SealBroken(Exception):
    """The row does not open: its key is retired, or it was changed or moved."""


class PushSeal:
    """Seals with the current key, opens with all of the ring."""

    def __init__(self, current_key_id: int, keys: Mapping[int, bytes]) -> None:
        self.current_key_id = current_key_id
        self._keys = dict(keys)

    def seal(self, device: DeviceId, provider: str, address: Mapping[str, str]) -> Sealed:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        cipher = ChaCha20Poly1305(_key(self._keys[self.current_key_id], device))
        return Sealed(
            self.current_key_id,
            nonce + cipher.encrypt(nonce, pack(dict(sorted(address.items()))), provider.encode("ascii")),
        )

    def open(self, device: DeviceId, provider: str, sealed: Sealed) -> dict[str, str]:
        """The address as it was sealed; raises SealBroken."""
        key = self._keys.get(sealed.key_id)
        if key is None:
            raise SealBroken(f"the key {sealed.key_id} is not in the ring")
        nonce, box = sealed.sealed[:_NONCE_BYTES], sealed.sealed[_NONCE_BYTES:]
        try:
            plain = ChaCha20Poly1305(_key(key, device)).decrypt(nonce, box, provider.encode("ascii"))
        except (InvalidTag, ValueError) as error:
            raise SealBroken("the seal does not fit") from error
        return dict(unpack(plain))


def _key(ring_key: bytes, device: DeviceId) -> bytes:
    return blake3(_DERIVE + device, key=ring_key).digest()
