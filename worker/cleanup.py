"""Removes what is over, every few seconds, in batches that nobody notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from runtime.clock import Clock
from runtime.supervise import Progress
from store.policy_rules import Policy
from store.retention import RetentionStore, Swept, Table
from worker.metrics import WorkerMetrics

logger = structlog.get_logger(__name__)

ROWS_MAX: Final = 250  # some ten milliseconds: as long as an ACK of one of these mailboxes may have to wait
PAUSE_SHARE: Final = 1.0  # after a full batch: a pause as long as the batch took, so that half the time is others'
PAUSE_SECONDS_MIN: Final = 0.02
CLOCKS_APART_MAX_MS: Final = 5 * 60 * 1000


class Cleanup:
    """One loop for each table, so that a backlog in one holds up no other."""

    def __init__(
        self,
        retention: RetentionStore,
        policy: Callable[[], Policy],
        metrics: WorkerMetrics,
        clock: Clock,
        *,
        round_seconds: float,
    ) -> None:
        self._retention = retention
        self._policy = policy
        self._metrics = metrics
        self._clock = clock
        self._round_seconds = round_seconds
        self._clocks_apart = False

    async def run(self, table: Table, progress: Progress) -> None:
        """Sweep one table for ever; ends by cancellation only."""
        while True:
            await self.round(table, progress)
            progress()
            await self._clock.sleep(self._round_seconds)

    async def round(self, table: Table, progress: Progress | None = None) -> int:
        """Sweep until nothing is overdue that can be had. Returns how many rows went."""
        deleted = 0
        while not (table is Table.EXPIRED and await self.clocks_are_apart()):
            began = self._clock.monotonic()
            swept = await self._sweep(table)
            deleted += swept.deleted
            if progress is not None:
                progress()
            if not swept.more:
                break
            took = self._clock.monotonic() - began
            await self._clock.sleep(max(PAUSE_SECONDS_MIN, took * PAUSE_SHARE))
        return deleted

    async def _sweep(self, table: Table) -> Swept:
        swept = await self._retention.sweep(table, self._policy(), ROWS_MAX)
        if swept.deleted:
            self._metrics.cleaned.labels(table.value).inc(swept.deleted)
        return swept

    async def clocks_are_apart(self) -> bool:
        """Whether the database's clock and ours differ so much that one is wrong: then nothing is called expired."""
        apart_ms = await self._retention.database_ms() - self._clock.wall_ms()
        apart = abs(apart_ms) > CLOCKS_APART_MAX_MS
        self._metrics.clock_apart.set(apart_ms / 1000)
        self._metrics.expiry_stopped.set(apart)
        if apart != self._clocks_apart:
            if apart:
                logger.error(
                    "expiry is stopped: the database's clock and ours are apart", seconds=round(apart_ms / 1000)
                )
            else:
                logger.info("the clocks agree again; expiry goes on")
        self._clocks_apart = apart
        return apart

    async def run_overdue(self, progress: Progress) -> None:
        """Show how old the oldest row is that should be gone."""
        while True:
            for table, seconds in (await self._retention.oldest_overdue(self._policy())).items():
                self._metrics.overdue_age.labels(table.value).set(seconds)
            progress()
            await self._clock.sleep(max(self._round_seconds, 5.0))
