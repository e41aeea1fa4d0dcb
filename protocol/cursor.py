"""Mailbox cursors: sealed, versioned, bound to one instance and device (seed 000, 7.2; DESIGN, "cursor").

Text form: unpadded base64url of `version (1) | key id (4) | nonce (12) | sealed (40)`, 76 characters. Sealed with
ChaCha20-Poly1305 is `position (8) | issued_at_ms (8) | epoch (8)`; the first five bytes are its associated data. Key
and nonce key are derived per ring key, instance and device, so another device's cursor does not open. The nonce is a
keyed hash of what is sealed: this module has no randomness, and a nonce repeats only for the same cursor.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from protocol.errors import ErrorCode, MailboxError
from protocol.ids import DeviceId, InstanceId, from_text, to_text
from protocol.limits import CURSOR_MAX_AGE_S

CURSOR_VERSION: Final = 1  # never changes its meaning; a new layout takes a new number
EPOCH_BYTES: Final = 8
POSITION_MAX: Final = 2**63 - 1

_HEADER: Final = Struct(">BI")
_PLAIN: Final = Struct(">QQ8s")
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_SEALED_FROM: Final = _HEADER.size + _NONCE_BYTES
_CURSOR_BYTES: Final = _SEALED_FROM + _PLAIN.size + _TAG_BYTES
_CURSOR_CHARS: Final = _CURSOR_BYTES * 4 // 3  # 57 bytes fill their characters: no stray bits, no second spelling
_DERIVE: Final = b"mailboxd.cursor.v1\x00"
_MAX_AGE_MS: Final = CURSOR_MAX_AGE_S * 1000

# A cipher costs 2.3 KB and half of what sealing costs: those of the devices that are being pushed to now are kept.
HOT_CIPHERS_MAX: Final = 1_024


class CursorPosition(NamedTuple):
    """What a cursor says: everything up to and including `position`, in the database history `epoch`."""

    position: int
    issued_at_ms: int
    epoch: bytes


class CursorRing:
    """The keys that cursors are sealed and opened with. Old keys open and do not seal; absent ones are retired."""

    __slots__ = ("_current", "_hot", "_keys")

    def __init__(self, current_key_id: int, keys: Mapping[int, bytes]) -> None:
        """`keys`: key id (0..2^32-1) to 32 bytes. Raises ValueError where that does not hold."""
        if current_key_id not in keys:
            raise ValueError("the current cursor key is not in the ring")
        for key_id, key in keys.items():
            if not 0 <= key_id < 2**32 or len(key) != 32:
                raise ValueError("a cursor key has a 32-bit id and 32 bytes")
        self._current = current_key_id
        self._keys = dict(keys)
        self._hot: dict[bytes, ChaCha20Poly1305] = {}

    def for_device(self, instance_id: InstanceId, device_id: DeviceId) -> DeviceCursors:
        """The cursors of one device. Cheap: nothing is derived before it is needed."""
        return DeviceCursors(self._current, self._keys, instance_id + device_id, self._hot)


class DeviceCursors:
    """Seals and opens the cursors of one device. Holds 64 bytes once used, never a cipher: sessions are many."""

    __slots__ = ("_current", "_header", "_hot", "_keys", "_nonce_key", "_owner", "_sealing")

    def __init__(
        self, current: int, keys: Mapping[int, bytes], owner: bytes, hot: dict[bytes, ChaCha20Poly1305]
    ) -> None:
        """`hot`: the ciphers of the devices of this ring that seal most, by their key."""
        self._current = current
        self._keys = keys
        self._owner = owner
        self._header = _HEADER.pack(CURSOR_VERSION, current)
        self._hot = hot
        self._sealing: bytes | None = None
        self._nonce_key = b""

    def seal(self, position: int, issued_at_ms: int, epoch: bytes) -> str:
        """A cursor behind `position` (0 for the very beginning). Same arguments, same text."""
        key = self._sealing
        if key is None:
            material = self._derive(self._keys[self._current])
            key = self._sealing = material[:32]
            self._nonce_key = material[32:]
        header = self._header
        plain = _PLAIN.pack(position, issued_at_ms, epoch)
        nonce = blake3(header + plain, key=self._nonce_key).digest(_NONCE_BYTES)
        cipher = self._hot.get(key)
        if cipher is None:
            cipher = ChaCha20Poly1305(key)
            if len(self._hot) >= HOT_CIPHERS_MAX:
                del self._hot[next(iter(self._hot))]
            self._hot[key] = cipher
        return to_text(header + nonce + cipher.encrypt(nonce, plain, header))

    def open(self, text: str, now_ms: int) -> CursorPosition:
        """What the cursor says. Whether its epoch is the current one and its position not above the head is the
        caller's to check.

        Raises MailboxError CURSOR_INVALID (tampered, another device's or instance's, unknown version, retired key) or
        CURSOR_EXPIRED (sealed more than 45 days before `now_ms`, which is database time).
        """
        if len(text) != _CURSOR_CHARS:
            raise MailboxError(ErrorCode.CURSOR_INVALID)
        try:
            data = from_text(text)
        except ValueError as error:
            raise MailboxError(ErrorCode.CURSOR_INVALID) from error
        version, key_id = _HEADER.unpack_from(data)
        key = self._keys.get(key_id)
        if version != CURSOR_VERSION or key is None:
            raise MailboxError(ErrorCode.CURSOR_INVALID)
        header, sealed = data[: _HEADER.size], data[_SEALED_FROM:]
        try:
            plain = ChaCha20Poly1305(self._derive(key)[:32]).decrypt(data[_HEADER.size : _SEALED_FROM], sealed, header)
        except InvalidTag as error:
            raise MailboxError(ErrorCode.CURSOR_INVALID) from error
        position = CursorPosition(*_PLAIN.unpack(plain))
        if now_ms - position.issued_at_ms > _MAX_AGE_MS:
            raise MailboxError(ErrorCode.CURSOR_EXPIRED)
        return position

    def _derive(self, key: bytes) -> bytes:
        return blake3(_DERIVE + self._owner, key=key).digest(64)
