"""Invites for `registration=invite`: single use, expiring, stored as hashes, named by a tag that admits nobody."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

from blake3 import blake3

from protocol.ids import to_text
from store.audit import AuditOutcome, AuditStore, AuditType
from store.policy_rules import Policy
from store.postgres import Postgres
from store.sql_files import load_sql

INVITE_CHARS_MAX: Final = 128
LIST_MAX: Final = 1_000

_SQL: Final = load_sql("invites")
_INVITE: Final = b"mailboxd.invite\x00"


class NewInvite(NamedTuple):
    """`invite` is told this once; only its hash is kept."""

    invite: str
    tag: str
    expires_at_ms: int


class InviteStatus(NamedTuple):
    tag: str
    created_at_ms: int
    expires_at_ms: int
    status: str  # open, used, revoked, expired


def invite_hash(invite: str) -> bytes:
    """What the table knows of an invite: 192 random bits cannot be guessed, so a plain hash tells nothing."""
    return blake3(_INVITE + invite.encode()).digest()


class InviteStore:
    """Makes, lists and revokes invites. Using one up belongs to the registration's own transaction."""

    def __init__(self, postgres: Postgres, audit: AuditStore, policy: Callable[[], Policy]) -> None:
        self._postgres = postgres
        self._audit = audit
        self._policy = policy

    async def create(self, *, lifetime_s: int, request_id: str) -> NewInvite:
        invite, tag = to_text(secrets.token_bytes(24)), secrets.token_hex(4)
        async with self._postgres.transaction() as connection:
            expires_at_ms = await connection.fetchval(_SQL["keep_invite"], invite_hash(invite), tag, lifetime_s)
            await self._audit.record(
                connection,
                AuditType.INVITE_CREATED,
                AuditOutcome.DONE,
                request_id=request_id,
                policy_version=self._policy().version,
            )
        return NewInvite(invite, tag, expires_at_ms)

    async def list(self, *, limit: int = 100) -> tuple[InviteStatus, ...]:
        """The newest `limit` (1..1,000) invites."""
        rows = await self._postgres.fetch(_SQL["list_invites"], min(max(limit, 1), LIST_MAX))
        return tuple(InviteStatus(*row) for row in rows)

    async def revoke(self, tag: str, *, request_id: str) -> bool:
        """True when the invite was open until now."""
        async with self._postgres.transaction() as connection:
            if not await connection.fetchval(_SQL["revoke_invite"], tag):
                return False
            await self._audit.record(
                connection,
                AuditType.INVITE_REVOKED,
                AuditOutcome.DONE,
                request_id=request_id,
                policy_version=self._policy().version,
            )
        return True
