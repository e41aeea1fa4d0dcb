"""What is over goes: lifetimes of seed 001, section 4, and the counters that must always fit the rows.

Bounded batches that skip what others hold, so that any number of workers may run them at once beside the hot path.
Deletion here is logical; backups and the medium keep copies for their own time.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

import asyncpg

from protocol.ids import DeviceId
from store.audit import AuditOutcome, AuditStore, AuditType
from store.policy_rules import Policy
from store.postgres import Postgres
from store.sql_files import load_sql

_SQL: Final = load_sql("retention")

ACK_NOTES_MAX: Final = 256
RETENTION_STEP: Final = 1_000
_DRIFTS: Final = ("entries_drift", "bytes_drift", "echoes_drift", "floor_drift")
BEFORE_ALL: Final = DeviceId(bytes(16))


class Table(StrEnum):
    """What is cleaned up; the label of its metrics."""

    EXPIRED = "expired"
    ACKED = "acked"
    IDEMPOTENCY = "idempotency"
    CHALLENGES = "challenges"
    OUTBOX = "outbox"
    AUDIT = "audit"
    REVOKED = "revoked"
    INVITES = "invites"


class Swept(NamedTuple):
    """One batch. `more`: it found as much as it may take, so another one is worth while at once."""

    deleted: int
    more: bool


class Drift(NamedTuple):
    """How many mailboxes were looked at and repaired; `last` is None at the end of all mailboxes."""

    last: DeviceId | None
    repaired: int


@dataclass(frozen=True, slots=True)
class RetentionPreview:
    """What `apply` would change now: shortened lives, and among them those that are over at once."""

    shortened_envelopes: int
    devices: int
    removed_envelopes: int
    removed_bytes: int
    removed_devices: int


class RetentionProgress(NamedTuple):
    """After one committed step: where it came to (start again from there), and what it shortened so far."""

    device: DeviceId
    position: int
    envelopes: int
    bytes: int


class RetentionStore:
    """Every call is one short transaction; MailboxError UNAVAILABLE when the database is away."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def sweep(self, table: Table, policy: Policy, rows_max: int) -> Swept:
        """Remove up to about `rows_max` rows that are over."""
        match table:
            case Table.EXPIRED:
                return await self._seen("cleanup_expired", rows_max, rows_max)
            case Table.ACKED:
                age = timedelta(seconds=policy.acked_cleanup_s)
                return await self._seen("cleanup_acked", rows_max, rows_max, ACK_NOTES_MAX, age)
            case Table.IDEMPOTENCY:
                return await self._deleted("cleanup_idempotency", rows_max, rows_max)
            case Table.CHALLENGES:
                return await self._deleted("cleanup_challenges", rows_max, rows_max)
            case Table.OUTBOX:
                age = timedelta(seconds=policy.completed_outbox_retention_s)
                return await self._deleted("cleanup_outbox", rows_max, rows_max, age)
            case Table.AUDIT:
                age = timedelta(seconds=policy.audit_retention_s)
                return await self._deleted("cleanup_audit", rows_max, rows_max, age)
            case Table.INVITES:
                # As long as the audit events that tell of them: `invites list` shows what became of them until then.
                age = timedelta(seconds=policy.audit_retention_s)
                return await self._deleted("cleanup_invites", rows_max, rows_max, age)
            case Table.REVOKED:
                deleted = int(await self._postgres.fetchval(_SQL["cleanup_revoked"], rows_max))
                return Swept(deleted, deleted >= rows_max)

    async def _seen(self, name: str, rows_max: int, *args: Any) -> Swept:
        row = await self._postgres.fetchrow(_SQL[name], *args)
        assert row is not None  # noqa: S101 - a function without FROM gives one row
        # Seen and not deleted is in others' hands: looking again at once would only burn time.
        return Swept(row["deleted"], row["deleted"] > 0 and (row["deleted"] >= rows_max or row["seen"] >= rows_max))

    async def _deleted(self, name: str, rows_max: int, *args: Any) -> Swept:
        status = await self._postgres.execute(_SQL[name], *args)
        deleted = int(status.rpartition(" ")[2])
        return Swept(deleted, deleted >= rows_max)

    async def oldest_overdue(self, policy: Policy) -> dict[Table, float]:
        """Seconds since the oldest row of each kind should have been gone."""
        row = await self._postgres.fetchrow(
            _SQL["oldest_overdue"],
            timedelta(seconds=policy.acked_cleanup_s),
            timedelta(seconds=policy.completed_outbox_retention_s),
            timedelta(seconds=policy.audit_retention_s),
        )
        assert row is not None  # noqa: S101 - aggregates give one row
        return {Table(name): float(seconds or 0) for name, seconds in row.items()}

    async def database_ms(self) -> int:
        """The database's clock, for comparison with one's own."""
        return int(await self._postgres.fetchval(_SQL["database_ms"]))

    async def repair_counters(self, after: DeviceId, page_max: int) -> Drift:
        """Compare the counters of the next `page_max` mailboxes with their rows; lock and repair only what differs.

        On the way it raises floors that lag behind: the rows were read in any case.
        """
        rows = await self._postgres.fetch(_SQL["counter_drift"], after, page_max)
        drifted = [row["device_id"] for row in rows if any(row[column] for column in _DRIFTS)]
        for device in drifted:
            await self._postgres.execute(_SQL["repair_counters"], device)
        if lagging := [row for row in rows if row["floor_lags"]]:
            floors = [row["device_id"] for row in lagging], [row["floor_may"] for row in lagging]
            await self._postgres.execute(_SQL["raise_floors"], *floors)
        return Drift(DeviceId(rows[0]["last_device"]) if rows else None, len(drifted))

    async def preview(self, longest: timedelta) -> RetentionPreview:
        """What a longest life of `longest` would change. Reads every envelope's row: minutes on a large instance."""
        row = await self._postgres.fetchrow(_SQL["retention_preview"], longest)
        assert row is not None  # noqa: S101 - an aggregate gives one row
        return RetentionPreview(*row)

    async def _shorten(self, longest: timedelta, device: DeviceId, position: int) -> asyncpg.Record | None:
        async with self._postgres.transaction() as connection:
            owners = await connection.fetch(_SQL["retention_owners"], device, position, RETENTION_STEP)
            held = [owner["device_id"] for owner in owners]
            return await connection.fetchrow(_SQL["retention_step"], longest, device, position, RETENTION_STEP, held)

    async def apply(
        self,
        longest: timedelta,
        audit: AuditStore,
        *,
        policy_version: int,
        after: tuple[DeviceId, int] = (BEFORE_ALL, 0),
    ) -> AsyncIterator[RetentionProgress]:
        """Shorten the life of every stored entry to `longest` at most, step by step; clean-up removes what is over.

        Interrupted, it can be started again from where it came to or from the beginning: what is short already stays
        as it is. Never makes a life longer. One audit event at the end, and one when it ends early.
        """
        device, position = after
        envelopes = size = 0
        outcome, request_id = AuditOutcome.REFUSED, str(uuid.uuid4())
        try:
            while row := await self._shorten(longest, device, position):
                device, position = DeviceId(row["device"]), row["position"]
                envelopes, size = envelopes + row["envelopes"], size + row["bytes"]
                yield RetentionProgress(device, position, envelopes, size)
            outcome = AuditOutcome.DONE
        finally:
            await audit.record(
                self._postgres,
                AuditType.RETENTION_APPLIED,
                outcome,
                request_id=request_id,
                policy_version=policy_version,
                detail={"longest_s": int(longest.total_seconds()), "envelopes": envelopes, "bytes": size},
            )
