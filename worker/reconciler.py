"""Puts right what a crash, an emptied queue or a bug left behind: nothing that was promised stays forgotten."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import structlog

from runtime.clock import Clock
from runtime.doorbell import Doorbell
from runtime.supervise import Progress
from store.outbox import OutboxDepth, OutboxStore
from store.retention import BEFORE_ALL, RetentionStore
from worker.metrics import WorkerMetrics

logger = structlog.get_logger(__name__)

ROUND_SECONDS: Final = 5.0
BATCH_MAX: Final = 500
LONGEST_WAIT: Final = timedelta(minutes=35)  # a provider's Retry-After, 30 minutes at most and a tenth spread over it
PAGE_MAX: Final = 50
PAGE_PAUSE_SECONDS: Final = 0.1
PAUSE_FACTOR: Final = (
    9.0  # … and at least nine times as long as the page took: a tenth of one connection's time at most
)
WALK_PAUSE_SECONDS: Final = 60.0


class Reconciler:
    """Two loops: `run` for the outbox, `run_walk` through all mailboxes."""

    def __init__(
        self,
        outbox: OutboxStore,
        retention: RetentionStore,
        dispatcher_bell: Doorbell,
        metrics: WorkerMetrics,
        clock: Clock,
    ) -> None:
        self._outbox = outbox
        self._retention = retention
        self._dispatcher_bell = dispatcher_bell
        self._metrics = metrics
        self._clock = clock
        self._bell = Doorbell()
        self._queue_lost = False
        self._depth: OutboxDepth | None = None

    def hints(self) -> dict[str, int]:
        """What an operator should know of the outbox although this process is ready."""
        depth = self._depth
        if depth is None:
            return {}
        found = {"dead_letters": depth.dead_letter, "unknown_tasks": depth.unknown_tasks}
        return {name: count for name, count in found.items() if count}

    def rebuild(self) -> None:
        """The queue is empty although it should not be: what was published goes back to the dispatcher."""
        self._queue_lost = True
        self._bell.ring()

    async def run(self, progress: Progress) -> None:
        """Every few seconds, and at once when the queue was lost; ends by cancellation only."""
        while True:
            await self.round()
            progress()
            await self._bell.wait(at_most_seconds=ROUND_SECONDS)

    async def round(self) -> int:
        """Take back what is overdue or waits for a time of another clock, and everything published when the queue was
        lost. Returns how many.
        """
        taken = 0
        if self._queue_lost:
            self._queue_lost = False
            try:
                taken += await self._take_back_published()
            except BaseException:
                self._queue_lost = True  # once more in the next round
                raise
        while count := await self._outbox.take_back_overdue(BATCH_MAX):
            self._metrics.taken_back.labels("overdue").inc(count)
            taken += count
            if count < BATCH_MAX:
                break
        while count := await self._outbox.mend_after_clock_step(LONGEST_WAIT, BATCH_MAX):
            self._metrics.taken_back.labels("clock_went_back").inc(count)
            logger.warning("the database's clock went back: events that waited for its old time are due", events=count)
            taken += count
            if count < BATCH_MAX:
                break
        if taken:
            logger.info("events taken back", events=taken)
            self._dispatcher_bell.ring()
        await self._show_depth()
        return taken

    async def _take_back_published(self) -> int:
        before, taken = await self._outbox.now(), 0
        while count := await self._outbox.take_back_published(before, BATCH_MAX):
            self._metrics.taken_back.labels("queue_lost").inc(count)
            self._dispatcher_bell.ring()
            taken += count
        return taken

    async def _show_depth(self) -> None:
        depth = self._depth = await self._outbox.depth()
        for state in ("pending", "published", "retry_wait", "dead_letter"):
            self._metrics.outbox_depth.labels(state).set(getattr(depth, state))
        self._metrics.outbox_due.set(depth.due)
        self._metrics.outbox_due_age.set(depth.oldest_due_seconds)
        self._metrics.unknown_tasks.set(depth.unknown_tasks)

    async def run_walk(self, progress: Progress) -> None:
        """Compare counters with rows and `wake_open` with the outbox, mailbox by mailbox, for ever and slowly."""
        while True:
            await self.walk_counters(progress)
            await self.walk_wakes(progress)
            for _ in range(int(WALK_PAUSE_SECONDS)):
                await self._clock.sleep(1.0)
                progress()

    async def walk_counters(self, progress: Progress | None = None, *, pause: float = PAGE_PAUSE_SECONDS) -> int:
        """One walk through all mailboxes' counters. Returns how many were repaired: more than none is a bug."""
        after, repaired = BEFORE_ALL, 0
        while True:
            began = self._clock.monotonic()
            drift = await self._retention.repair_counters(after, PAGE_MAX)
            if drift.repaired:
                self._metrics.counter_drift.inc(drift.repaired)
                logger.error("counters differed from rows and were repaired", mailboxes=drift.repaired)
                repaired += drift.repaired
            if progress is not None:
                progress()
            if drift.last is None:
                return repaired
            after = drift.last
            await self._pause(began, pause)

    async def walk_wakes(self, progress: Progress | None = None, *, pause: float = PAGE_PAUSE_SECONDS) -> int:
        """One walk through all mailboxes' `wake_open`. Returns how many were repaired: more than none is a bug."""
        after, total = BEFORE_ALL, 0
        while True:
            began = self._clock.monotonic()
            last, repaired = await self._outbox.repair_wake_open(after, PAGE_MAX)
            if repaired:
                self._metrics.wake_drift.inc(repaired)
                logger.error("wake_open differed from the outbox and was repaired", mailboxes=repaired)
                total += repaired
            if progress is not None:
                progress()
            if last is None:
                return total
            after = last
            await self._pause(began, pause)

    async def _pause(self, began: float, pause: float) -> None:
        took = self._clock.monotonic() - began
        await self._clock.sleep(max(pause, took * PAUSE_FACTOR) if pause else 0.0)
