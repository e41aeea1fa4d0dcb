"""What a database needs after it went back to an earlier moment, before anybody writes (DESIGN, "After a restore").

Every step may be repeated; `finish` comes last and is what lets the gateways write.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from asyncpg.pool import PoolConnectionProxy

from protocol.ids import ID_BYTES, DeviceId
from store.audit import AuditOutcome, AuditStore, AuditType
from store.outbox import OutboxStore
from store.postgres import Postgres
from store.sql_files import load_sql

PAGE: Final = 500
ROWS_MAX: Final = 10_000

_SQL: Final = load_sql("after_restore")
_BEFORE_ALL: Final = DeviceId(bytes(ID_BYTES))


class RestoreState(NamedTuple):
    """`marker`: the cluster's own word that it was restored, empty without one. `done`: the last one dealt with."""

    marker: str
    done: str


class Revocation(NamedTuple):
    device_id: DeviceId
    revoked_at_ms: int


class RestoredPostgres(Postgres):
    """Writes although the cluster still waits for `finish`: for the steps that come before it, and nobody else."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PoolConnectionProxy]:
        async with self.connection() as connection, connection.transaction():
            yield connection


class AfterRestore:
    """All calls raise MailboxError UNAVAILABLE when the database is away."""

    def __init__(self, postgres: RestoredPostgres) -> None:
        self._postgres = postgres

    async def state(self) -> RestoreState:
        row = await self._postgres.fetchrow(_SQL["read_state"])
        assert row is not None  # noqa: S101 - a connection is refused where there is no instance
        return RestoreState(*row)

    async def repeated_records(self) -> int:
        """How many idempotency keys stand in the table twice; more than none is a damaged copy."""
        return int(await self._postgres.fetchval(_SQL["count_repeated_records"]))

    async def suspect_prekeys(self) -> int:
        """Hand out no one-time key again that may have been handed out already; owners' uploads make them good."""
        total = 0
        while changed := int((await self._postgres.execute(_SQL["suspect_prekeys"], ROWS_MAX)).rpartition(" ")[2]):
            total += changed
        return total

    async def requeue(self) -> int:
        """Make every intent due that was in the queue, and open one wherever mail waits without. Returns how many."""
        total = 0
        while changed := int((await self._postgres.execute(_SQL["reopen_published"], ROWS_MAX)).rpartition(" ")[2]):
            total += changed
        outbox, after = OutboxStore(self._postgres), _BEFORE_ALL
        while devices := [DeviceId(row[0]) for row in await self._postgres.fetch(_SQL["next_devices"], after, PAGE)]:
            total += await outbox.open_wakes(devices)
            after = devices[-1]
        return total

    async def finish(self, audit: AuditStore, *, request_id: str, policy_version: int) -> None:
        """Raise the epoch, let connections write from now on, and drop those that are open."""
        async with self._postgres.transaction() as connection:
            await connection.execute(_SQL["finish"], secrets.token_bytes(ID_BYTES))
            await audit.record(
                connection,
                AuditType.AFTER_RESTORE,
                AuditOutcome.DONE,
                request_id=request_id,
                policy_version=policy_version,
            )
        await self._postgres.fetchval(_SQL["drop_connections"])


async def list_revocations(postgres: Postgres, since_ms: int, limit: int) -> tuple[Revocation, ...]:
    """Devices revoked since then, oldest first: what a log outside of the database is made of."""
    return tuple(Revocation(*row) for row in await postgres.fetch(_SQL["list_revocations"], since_ms, limit))
