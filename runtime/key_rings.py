"""A ring of keys for one purpose, and how one key takes over from another. Values only: no disk, no clock.

A ring seals, signs or hashes with its current key and still opens, verifies or looks up with the others. A rotation
has three steps, each followed by a rolling restart, so that no process ever meets a key that it does not know:
`stage` (known to all, used by none), `rotate` (used), `retire` (gone).
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_BYTES: Final = 32
KEY_ID_MAX: Final = 255  # one byte in every cursor, record and sealed push token


class KeyringError(Exception):
    """The keyring cannot be used as it is; the message says what to do and holds no key."""


class Purpose(StrEnum):
    """What a ring is for; the name of its part in the file."""

    FINGERPRINT = "fingerprint"  # request fingerprints, key hashes, echo message ids, names in Redis
    CURSOR = "cursor"  # seals cursors
    TOKEN = "token"  # noqa: S105 - a name; signs the tokens of devices (Ed25519)
    PUSH_TOKEN = "push-token"  # noqa: S105 - a name; seals push tokens at rest
    VAPID = "vapid"  # who we are to web push services (RFC 8292); subscriptions may be bound to it
    LOG = "log"  # hashes of devices in logs and audit events

    @property
    def keys_max(self) -> int:
        """A repeated submit is looked up under every fingerprint key, so these stay two."""
        return 2 if self in (Purpose.FINGERPRINT, Purpose.LOG) else 8


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StoredKey:
    """One key of a ring. `secret` is 32 bytes: the symmetric key or the Ed25519 seed."""

    key_id: str
    secret: bytes
    created_at_ms: int
    superseded_at_ms: int | None = None  # when another key took over: the overlap counts from here

    def __repr__(self) -> str:
        return f"StoredKey(key_id={self.key_id!r})"

    @property
    def signing_key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.secret)


def p256_key(secret: bytes) -> ec.EllipticCurvePrivateKey:
    """The P-256 key that 32 secret bytes stand for."""
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    return ec.derive_private_key(int.from_bytes(secret, "big") % (order - 1) + 1, ec.SECP256R1())


@dataclass(frozen=True, slots=True)
class Ring:
    """The keys of one purpose, in the order they were made; `current` is the id of the one that is used."""

    purpose: Purpose
    current: str
    keys: tuple[StoredKey, ...]

    @classmethod
    def generate(cls, purpose: Purpose, now_ms: int) -> Ring:
        key = _new_key(purpose, (), now_ms)
        return cls(purpose, key.key_id, (key,))

    @property
    def current_key(self) -> StoredKey:
        return next(key for key in self.keys if key.key_id == self.current)

    @property
    def others(self) -> tuple[StoredKey, ...]:
        return tuple(key for key in self.keys if key.key_id != self.current)

    @property
    def staged(self) -> StoredKey | None:
        """The newest key, when it was staged and not yet taken into use."""
        newest = self.keys[-1]
        return newest if newest.key_id != self.current and newest.superseded_at_ms is None else None

    def role(self, key: StoredKey) -> str:
        """`current`, `staged` (known, not used yet) or `old` (opens and verifies only)."""
        return "current" if key.key_id == self.current else "staged" if key == self.staged else "old"

    def stage(self, now_ms: int) -> Ring:
        """Add a key that every process opens and verifies with but none uses yet."""
        if self.staged is not None:
            raise KeyringError(f"{self.purpose}: key {self.staged.key_id} is staged already; rotate to it or retire it")
        if len(self.keys) >= self.purpose.keys_max:
            raise KeyringError(f"{self.purpose}: the ring is full; retire key {self.others[0].key_id} first")
        return replace(self, keys=(*self.keys, _new_key(self.purpose, self.keys, now_ms)))

    def rotate(self, now_ms: int) -> Ring:
        """Use the staged key from now on, or a new one where none is staged; the previous opens and verifies on.

        Without staging, processes that still hold the old file do not know the new key until they restart.
        """
        ring = self if self.staged is not None else self.stage(now_ms)
        keys = tuple(replace(key, superseded_at_ms=now_ms) if key.key_id == ring.current else key for key in ring.keys)
        return replace(ring, current=ring.keys[-1].key_id, keys=keys)

    def retire(self, key_id: str) -> Ring:
        """Forget a key that is not in use: what it sealed or signed is refused from now on."""
        ids = [key.key_id for key in self.keys]
        if key_id not in ids:
            raise KeyringError(f"{self.purpose}: there is no key {key_id}; there are {', '.join(ids)}")
        if key_id == self.current:
            raise KeyringError(f"{self.purpose}: key {key_id} is the one in use; rotate first")
        return replace(self, keys=tuple(key for key in self.keys if key.key_id != key_id))


def _new_key(purpose: Purpose, keys: tuple[StoredKey, ...], now_ms: int) -> StoredKey:
    secret = secrets.token_bytes(KEY_BYTES)
    if purpose is Purpose.TOKEN:
        public = Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
        key_id = base64.urlsafe_b64encode(hashlib.sha256(public).digest()[:9]).decode()
    else:
        taken = {int(key.key_id) for key in keys}
        after_newest = max(taken, default=0) + 1
        # Ids run on past retired ones, so that a value sealed long ago names no newer key by chance.
        key_id = str(after_newest if after_newest <= KEY_ID_MAX else next(i for i in range(1, 256) if i not in taken))
    return StoredKey(key_id=key_id, secret=secret, created_at_ms=now_ms)
