"""Proof of possession: whether an Ed25519 signature is by the key that it says."""

from __future__ import annotations

from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from protocol.errors import ErrorCode, MailboxError, Outcome


def require_signature(public_key: bytes, message: bytes, signature: bytes) -> None:
    """Return when `signature` (64 bytes) is over `message` by `public_key` (32 bytes).

    Raises MailboxError UNAUTHENTICATED otherwise. libsodium also refuses keys of small order, under which anything
    would verify.
    """
    try:
        VerifyKey(public_key).verify(message, signature)
    except (BadSignatureError, ValueError) as error:
        raise MailboxError(ErrorCode.UNAUTHENTICATED, outcome=Outcome.NOT_COMMITTED) from error
