"""Audit events (seed 001, 2.9): a stable type, a request id, a short-lived actor hash, outcome, policy version, time.

Never an id, an address, a key or content. An event belongs to the transaction whose effect it reports, so that neither
exists without the other; a refused proof has no effect and is written alone, a bounded number per minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from runtime.clock import Clock
from runtime.logs import DeviceTags
from store.postgres import Postgres
from store.sql_files import load_sql

LIST_MAX: Final = 1_000
REFUSALS_PER_MINUTE_MAX: Final = 60  # of one process: who cannot authenticate must not be able to fill the table

_SQL: Final = load_sql("audit")


class AuditType(StrEnum):
    """A type never changes its meaning."""

    MESSAGE_ID_CONFLICT = "message_id.conflict"
    DEVICE_ADDED = "device.added"
    DEVICE_REVOKED = "device.revoked"
    IDENTITY_DISABLED = "identity.disabled"
    IDENTITY_ENABLED = "identity.enabled"
    PROOF_FAILED = "proof.failed"
    PUSH_ROUTE_GONE = "push_route.gone"
    INVITE_CREATED = "invite.created"
    INVITE_REVOKED = "invite.revoked"
    POLICY_CHANGED = "policy.changed"
    RETENTION_APPLIED = "retention.applied"
    DEAD_LETTER_REQUEUED = "dead_letter.requeued"
    DEAD_LETTER_DROPPED = "dead_letter.dropped"
    KEY_ROTATED = "key.rotated"
    AFTER_RESTORE = "restore.finished"


class AuditOutcome(StrEnum):
    DONE = "done"
    REFUSED = "refused"


class AuditEvent(NamedTuple):
    """One event as it is listed."""

    audit_id: int
    event_type: str
    request_id: str
    actor_hash: str | None
    outcome: str
    policy_version: int
    detail: dict[str, Any] | None
    created_ms: int


class Executor(Protocol):
    """Where a statement runs: a connection inside a transaction, or the pool."""

    async def execute(self, sql: str, *args: Any) -> Any: ...


class AuditStore:
    """Writes and lists audit events."""

    def __init__(self, postgres: Postgres, tags: DeviceTags, clock: Clock) -> None:
        """`tags`: an actor is stored as the same daily tag that the logs show, so that the two can be laid together."""
        self._postgres = postgres
        self._tags = tags
        self._clock = clock
        self._minute = 0
        self._refusals = 0

    async def record(
        self,
        executor: Executor,
        event_type: AuditType,
        outcome: AuditOutcome,
        *,
        request_id: str,
        policy_version: int,
        actor: bytes | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Write one event with `executor`, in the transaction of what it reports.

        `actor` is hashed here and stored in no other form. `detail`: counts and names of settings only.
        """
        await executor.execute(
            _SQL["record_audit_event"],
            event_type.value,
            request_id,
            None if actor is None else self._tags.tag(actor),
            outcome.value,
            policy_version,
            None if detail is None else dict(detail),
        )

    async def record_refusal(
        self,
        event_type: AuditType,
        *,
        request_id: str,
        policy_version: int,
        actor: bytes | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Write that something was refused, on its own; past REFUSALS_PER_MINUTE_MAX it is left out."""
        minute = int(self._clock.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._refusals = minute, 0
        if self._refusals >= REFUSALS_PER_MINUTE_MAX:
            return
        self._refusals += 1
        await self.record(
            self._postgres,
            event_type,
            AuditOutcome.REFUSED,
            request_id=request_id,
            policy_version=policy_version,
            actor=actor,
            detail=detail,
        )

    async def list(
        self, *, limit: int = 100, before: int | None = None, event_type: AuditType | None = None
    ) -> tuple[AuditEvent, ...]:
        """The newest `limit` (1..1,000) events, or those older than the event `before`."""
        rows = await self._postgres.fetch(
            _SQL["list_audit_events"], before, event_type and event_type.value, min(max(limit, 1), LIST_MAX)
        )
        return tuple(AuditEvent(*row) for row in rows)
