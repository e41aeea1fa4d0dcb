"""Challenges, and what authentication asks of the database (seed 001, 2.3). Tokens are never stored."""

from __future__ import annotations

import secrets
from typing import Any, Final, NamedTuple

from blake3 import blake3

from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.ids import DeviceId, IdentityId
from protocol.limits import CHALLENGE_BYTES
from store.postgres import Postgres
from store.sql_files import load_sql

_SQL: Final = load_sql("auth")
_CHALLENGE: Final = b"mailboxd.challenge\x00"


class Challenge(NamedTuple):
    value: bytes
    expires_at_ms: int


class DeviceKey(NamedTuple):
    """What a signature of a device is judged by."""

    identity_id: IdentityId
    public_key: bytes
    active: bool  # the device is not revoked
    identity_active: bool


class ChallengeStore:
    """Challenges: kept as hashes, bound to a device and a purpose, good for one success before they run out."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def issue(self, device: DeviceId, purpose: str, *, lifetime_s: int) -> Challenge:
        """A fresh challenge; older ones of the device stay good. An unknown device gets one like any other."""
        value = secrets.token_bytes(CHALLENGE_BYTES)
        expires_at_ms = await self._postgres.fetchval(_SQL["keep_challenge"], _hash(value), device, purpose, lifetime_s)
        return Challenge(value, expires_at_ms)

    async def consume(self, connection: Any, challenge: bytes, device: DeviceId, purpose: str) -> None:
        """Use the challenge up with `connection`: in a transaction a rollback gives it back.

        Raises MailboxError UNAUTHENTICATED when it is unknown, another device's or purpose's, used or too old.
        """
        if not await connection.fetchval(_SQL["consume_challenge"], _hash(challenge), device, purpose):
            raise MailboxError(ErrorCode.UNAUTHENTICATED, outcome=Outcome.NOT_COMMITTED)


async def device_key(executor: Any, device: DeviceId) -> DeviceKey | None:
    """The key and standing of a device, None when there is no such device."""
    row = await executor.fetchrow(_SQL["find_device_key"], device)
    if row is None:
        return None
    return DeviceKey(
        row["identity_id"], row["device_public_key"], row["status"] == "active", row["identity_status"] == "active"
    )


async def require_active(executor: Any, device: DeviceId) -> DeviceKey:
    """The device, when it may act now; else MailboxError DEVICE_REVOKED, or FORBIDDEN for a disabled identity.

    Asked anew for every request, never cached: a revocation ends the device's tokens at once.
    """
    found = await device_key(executor, device)
    if found is None or not found.active:
        raise MailboxError(ErrorCode.DEVICE_REVOKED, outcome=Outcome.NOT_COMMITTED)
    if not found.identity_active:
        raise MailboxError(ErrorCode.FORBIDDEN, outcome=Outcome.NOT_COMMITTED)
    return found


def _hash(challenge: bytes) -> bytes:
    """32 random bytes cannot be guessed, so their plain hash tells nothing and needs no key that could rotate."""
    return blake3(_CHALLENGE + challenge).digest()
