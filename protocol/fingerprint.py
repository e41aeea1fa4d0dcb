"""Keyed hashes under the instance secret: what the database may know of keys, requests and actors.

DESIGN, "fingerprints and key hashes": everything here is keyed BLAKE3, so a leaked table confirms nothing to somebody
who guesses. Each kind of hash starts with a label of its own, so that no value of one kind can stand for another.
Records carry the secret's key id; while a secret rotates, look-ups run under the old and the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from blake3 import blake3

from protocol.frames import SendEnvelope
from protocol.ids import ClientMessageId, DeviceId, MessageId
from protocol.packing import pack

FINGERPRINT_VERSION: Final = 1  # stands inside the canonical form; a new form takes a new number
HASH_BYTES: Final = 16
BODY_HASH_BYTES: Final = 32

_SUBMIT: Final = b"mailboxd.fingerprint.submit\x00"
_REQUEST: Final = b"mailboxd.fingerprint.request\x00"
_ACTOR: Final = b"mailboxd.actor-scope\x00"
_KEY: Final = b"mailboxd.idempotency-key\x00"
_ECHO: Final = b"mailboxd.echo-mid\x00"


class InstanceSecret(NamedTuple):
    """The 32-byte fingerprint secret and the id that records written under it carry."""

    key_id: int
    key: bytes


def body_hash(body: bytes) -> bytes:
    """BLAKE3 of an envelope body, unkeyed, 32 bytes: what tells two envelopes with one message id apart."""
    return blake3(body).digest()


def canonical_submit(envelopes: Sequence[SendEnvelope], echo: bool) -> bytes:
    """The submit as one canonical MessagePack value, the same for both doors.

    `[version, [[to, mid, pv, BLAKE3(body), ttl_s or nil, pad or nil], …], echo]`: arrays, minimal headers, `bin` for
    bytes; of the parsed request, before policy, with echo after its default. Unknown keys are not part of it.
    """
    return pack(
        (
            FINGERPRINT_VERSION,
            [(to, mid, pv, blake3(body).digest(), ttl_s, pad) for to, mid, pv, body, ttl_s, pad in envelopes],
            echo,
        )
    )


def submit_fingerprint(key: bytes, envelopes: Sequence[SendEnvelope], echo: bool) -> bytes:
    """16 bytes that are equal exactly for the same submit; same key with another one is IDEMPOTENCY_KEY_REUSED."""
    return blake3(_SUBMIT + canonical_submit(envelopes, echo), key=key).digest(HASH_BYTES)


def request_fingerprint(key: bytes, operation: str, canonical_value: Any) -> bytes:
    """16 bytes for any other write. `canonical_value`: nested sequences of bytes, str, int, bool and None.

    Maps are refused (TypeError): their order would make two fingerprints of one request.
    """
    _refuse_maps(canonical_value)
    packed = pack((FINGERPRINT_VERSION, operation, canonical_value))
    return blake3(_REQUEST + packed, key=key).digest(HASH_BYTES)


def _refuse_maps(value: Any) -> None:
    if isinstance(value, dict):
        raise TypeError("a canonical value has no maps")
    if isinstance(value, (list, tuple)):
        for inner in value:
            _refuse_maps(inner)


def actor_scope_hash(key: bytes, actor: DeviceId | bytes) -> bytes:
    """Whose idempotency record it is: a device id (16 bytes) or, for a registration, the device public key (32)."""
    return blake3(_ACTOR + actor, key=key).digest(HASH_BYTES)


def idempotency_key_hash(key: bytes, operation: str, key_text: bytes) -> bytes:
    """An Idempotency-Key (its ASCII) or a cmid. The same text under two operations is two keys."""
    return blake3(b"%b%b\x00%b" % (_KEY, operation.encode("ascii"), key_text), key=key).digest(HASH_BYTES)


def echo_mid(key: bytes, device_id: DeviceId, cmid: ClientMessageId) -> MessageId:
    """The message id of the echo entry for `cmid`.

    Keyed, because cmids are predictable: else a stranger could store an envelope under an echo's mid first.
    """
    return MessageId(blake3(b"%b%b%b" % (_ECHO, device_id, cmid), key=key).digest(HASH_BYTES))
