"""The body of a web push: one constant byte, encrypted as in RFC 8291. UnifiedPush distributors drop empty ones."""

from __future__ import annotations

import secrets
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

PLAINTEXT: Final = b"w"  # the same for every wake: nothing can be read out of it, decrypted or not
_RECORD_BYTES: Final = 4_096
_LAST_RECORD: Final = b"\x02"


def encrypt(p256dh: bytes, auth: bytes) -> bytes:
    """One aes128gcm record (RFC 8188) for the subscription. Raises ValueError when `p256dh` is no point of P-256."""
    ephemeral = ec.generate_private_key(ec.SECP256R1())
    return seal(p256dh, auth, ephemeral, secrets.token_bytes(16), PLAINTEXT)


def seal(p256dh: bytes, auth: bytes, ephemeral: ec.EllipticCurvePrivateKey, salt: bytes, plaintext: bytes) -> bytes:
    """RFC 8291, section 3.4, with every chance given: for its own test vector."""
    receiver = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), p256dh)
    sender = ephemeral.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    shared = ephemeral.exchange(ec.ECDH(), receiver)
    secret = _hkdf(auth, shared, b"WebPush: info\x00" + p256dh + sender, 32)
    key = _hkdf(salt, secret, b"Content-Encoding: aes128gcm\x00", 16)
    nonce = _hkdf(salt, secret, b"Content-Encoding: nonce\x00", 12)
    header = salt + _RECORD_BYTES.to_bytes(4, "big") + bytes([len(sender)]) + sender
    return header + AESGCM(key).encrypt(nonce, plaintext + _LAST_RECORD, None)


def _hkdf(salt: bytes, secret: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(secret)
