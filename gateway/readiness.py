"""Alive: every loop turns. Ready: a write went through a moment ago, and this process does not go away.

Redis is no part of it: without it everything works, later (DESIGN, "Stated times").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from protocol.errors import MailboxError
from runtime.clock import Clock
from runtime.supervise import Supervisor
from store.postgres import Postgres, uncancelled
from store.sql_files import load_sql

FRESH_S: Final = 1.0  # an answer is good for this long, however many ask
PROOF_S: Final = 5.0


class Readiness:
    """What the health routes ask."""

    def __init__(self, postgres: Postgres, supervisor: Supervisor, clock: Clock, draining: Callable[[], bool]) -> None:
        self._postgres = postgres
        self._supervisor = supervisor
        self._clock = clock
        self._draining = draining
        self._proof = load_sql("sessions")["prove_write"]
        self._asking: asyncio.Task[str | None] | None = None
        self._asked_at = 0.0

    def stalled(self) -> tuple[str, ...]:
        """The loops that made no progress within their time."""
        return self._supervisor.stalled()

    async def why_not_ready(self) -> str | None:
        """None when ready, else one word that says why not. Many who ask at once share one write."""
        if self._draining():
            return "draining"
        if self.stalled():
            return "stalled"
        now = self._clock.monotonic()
        if self._asking is None or (self._asking.done() and now - self._asked_at >= FRESH_S):
            self._asked_at = now
            self._asking = asyncio.create_task(self._prove(), name="readiness-proof")
        return await asyncio.shield(self._asking)

    async def _prove(self) -> str | None:
        try:
            async with self._postgres.connection() as connection:
                if not connection.may_write:
                    return "restored"  # and `mailboxd admin after-restore` has not run
                await uncancelled(connection, connection.execute(self._proof), PROOF_S)
        except (MailboxError, TimeoutError):
            return "database"
        return None
