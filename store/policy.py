"""The instance policy in the database, and the copy that every process works from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import structlog

from protocol.errors import ErrorCode, MailboxError
from runtime.clock import Clock
from runtime.supervise import Progress
from store.audit import AuditOutcome, AuditStore, AuditType
from store.policy_rules import Policy, PolicyError
from store.postgres import Postgres
from store.sql_files import load_sql

logger = structlog.get_logger(__name__)

REFRESH_SECONDS: Final = 2.0  # DESIGN, "Stated times": a change is in effect everywhere within 5 s

_SQL: Final = load_sql("policy")


class PolicyStore:
    """Reads and changes the one policy row. A policy that breaks a bound or contradicts itself is never written."""

    def __init__(self, postgres: Postgres, audit: AuditStore) -> None:
        self._postgres = postgres
        self._audit = audit

    async def load(self) -> Policy:
        """The policy as it is now.

        Raises MailboxError UNAVAILABLE when the database does not answer or holds no instance yet, and PolicyError
        when what is stored breaks the bounds of this release.
        """
        row = await self._postgres.fetchrow(_SQL["load_policy"])
        if row is None:
            raise MailboxError(ErrorCode.UNAVAILABLE, "There is no instance in this database yet: run mailboxd init.")
        return Policy.from_mapping(row["policy"], version=row["policy_version"])

    async def change(self, assignments: Iterable[str], *, request_id: str) -> Policy:
        """Apply `KEY=VALUE` texts, all or none, and return the policy that is in force after the commit.

        The version rises by one unless nothing differs. One audit event names the settings, in the same transaction.
        Raises PolicyError with every mistake; then nothing is changed.
        """
        async with self._postgres.transaction() as connection:
            row = await connection.fetchrow(_SQL["lock_policy"])
            if row is None:
                raise MailboxError(ErrorCode.UNAVAILABLE, "There is no instance here yet: run mailboxd init.")
            before = Policy.from_mapping(row["policy"], version=row["policy_version"])
            asked = before.changed(assignments)
            old, new = before.to_mapping(), asked.to_mapping()
            changed = sorted(key for key in new if new[key] != old[key])
            if not changed:
                return before
            after = Policy.from_mapping(new, version=before.version + 1)
            # Keys that this release does not know stay as they are: a newer release may have written them.
            await connection.execute(_SQL["write_policy"], {**row["policy"], **new}, after.version)
            await self._audit.record(
                connection,
                AuditType.POLICY_CHANGED,
                AuditOutcome.DONE,
                request_id=request_id,
                policy_version=after.version,
                detail={"settings": changed},
            )
        return after


class PolicyCache:
    """The policy that this process works under: a call returns it. At most a few seconds behind the database.

    A database that does not answer, or a stored policy that this release cannot hold, leaves the last one in force.
    """

    def __init__(self, store: PolicyStore, policy: Policy, clock: Clock) -> None:
        self._store = store
        self._policy = policy
        self._clock = clock

    @classmethod
    async def open(cls, store: PolicyStore, clock: Clock) -> PolicyCache:
        """With the policy as it is now; raises as `PolicyStore.load` does."""
        return cls(store, await store.load(), clock)

    def __call__(self) -> Policy:
        return self._policy

    async def refresh(self) -> bool:
        """Look once. True when another policy came into force.

        It is taken when the version differs, not only when it is greater: a restore takes the version back.
        """
        policy = await self._store.load()
        if policy.version == self._policy.version:
            return False
        logger.info("policy in force", policy_version=policy.version, before=self._policy.version)
        self._policy = policy
        return True

    async def run(self, progress: Progress) -> None:
        """Refresh for ever; ends only by cancellation."""
        failing = False
        while True:
            await self._clock.sleep(REFRESH_SECONDS)
            try:
                await self.refresh()
                failing = False
            except (MailboxError, PolicyError) as error:
                if not failing:  # once per outage, not once per look
                    logger.warning("policy not refreshed; the last one stays in force", error=str(error))
                failing = True
            progress()
