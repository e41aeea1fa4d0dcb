"""Runs jobs from the queue: claim, begin, execute, record in PostgreSQL, and only then tell the queue.

A worker that dies anywhere leaves a message that another takes over after its lease, and an outbox row that comes back
by its deadline. Both lead to the same handler, which is idempotent by (event_id, generation).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, Protocol

import structlog

from protocol.errors import ErrorCode, MailboxError
from runtime import faultpoints
from runtime.clock import Clock
from runtime.doorbell import Doorbell
from runtime.supervise import Progress
from store.job_queue import Delivery, JobQueue, QueueLost, QueueUnreachable
from store.outbox import Job, OutboxStore
from worker.metrics import WorkerMetrics
from worker.retry_policy import RetryPolicy

logger = structlog.get_logger(__name__)

JOB_SECONDS_MAX: Final = 30.0  # one execution; what hangs longer has failed
LEASE: Final = timedelta(seconds=45)  # above JOB_SECONDS_MAX: nobody takes over what is still at work
RECLAIM_SECONDS: Final = 5.0
UNREACHABLE_PAUSE_SECONDS: Final = 1.0


class Handler(Protocol):
    """One task of one version."""

    async def __call__(self, job: Job) -> str:
        """Do it, record the outcome in the outbox, and say in a word what it was. Raising uses up an attempt.

        May run twice for one (event_id, generation), also at the same time, after a crash or a lost lease.
        """
        ...


class JobLoop:
    """Up to `concurrency` jobs at once, one consumer of the queue."""

    def __init__(
        self,
        queue: JobQueue,
        outbox: OutboxStore,
        handlers: Mapping[tuple[str, int], Handler],
        metrics: WorkerMetrics,
        clock: Clock,
        *,
        concurrency: int,
        on_queue_lost: Callable[[], None],
        retry: RetryPolicy | None = None,
        chance: Callable[[], float] = random.random,
        lease: timedelta = LEASE,
    ) -> None:
        """`on_queue_lost` asks for a rebuild from the outbox. `chance` gives the jitter."""
        self._queue = queue
        self._outbox = outbox
        self._handlers = handlers
        self._metrics = metrics
        self._clock = clock
        self._concurrency = concurrency
        self._on_queue_lost = on_queue_lost
        self._retry = retry or RetryPolicy()
        self._chance = chance
        self._lease = lease
        self._running: set[asyncio.Task[None]] = set()
        self._slot_free = Doorbell()
        self._stopping = False
        self._next_reclaim = 0.0

    async def run(self, progress: Progress) -> None:
        """Receive and execute until `stop`; returns at the end of the receive in flight, with jobs still in hand."""
        while not self._stopping:
            progress()
            free = self._concurrency - len(self._running)
            if free == 0:
                await self._slot_free.wait(at_most_seconds=1.0)
                continue
            try:
                deliveries = await self._receive(free)
            except QueueLost:
                logger.warning("the queue was gone; rebuilding it from the outbox")
                self._metrics.queue_lost.inc()
                self._on_queue_lost()
                continue
            except QueueUnreachable:
                await self._clock.sleep(UNREACHABLE_PAUSE_SECONDS)
                continue
            for delivery in deliveries:
                self._start(delivery)

    def stop(self) -> None:
        """Take no new jobs."""
        self._stopping = True
        self._slot_free.ring()

    async def drain(self, seconds: float) -> int:
        """Give the jobs in hand that long to end, cancel the rest, and return how many those were.

        What is cancelled leaves its message and its row; another worker takes it over.
        """
        if not self._running:
            return 0
        _, late = await asyncio.wait(self._running, timeout=seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return len(late)

    async def _receive(self, free: int) -> list[Delivery]:
        """Those whose lease ran out come first, now and then; new ones go on beside them."""
        now = self._clock.monotonic()
        if now >= self._next_reclaim:
            lease_ms = int(self._lease.total_seconds() * 1000)
            overdue = await self._queue.reclaim(free, lease_ms=lease_ms)
            if len(overdue) < free:
                self._next_reclaim = now + RECLAIM_SECONDS
            if overdue:
                return overdue
        return await self._queue.receive(free)

    def _start(self, delivery: Delivery) -> None:
        task = asyncio.create_task(self._execute(delivery), name=f"job-{delivery.task_type}")
        self._running.add(task)
        self._metrics.jobs_in_hand.set(len(self._running))
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._metrics.jobs_in_hand.set(len(self._running))
        self._slot_free.ring()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("job loop fault", exc_info=error)

    async def _execute(self, delivery: Delivery) -> None:
        try:
            outcome = await self._do(delivery)
        except MailboxError as error:  # PostgreSQL does not answer: nothing is known to be done
            outcome = "unavailable"
            logger.warning("job left to its lease", event_ref=_ref(delivery.event_id), error=str(error))
        else:
            await faultpoints.reach("job.before_settle")
            try:
                await self._queue.settle([delivery.message_id])
            except QueueUnreachable:
                pass  # delivered again some day, it finds its row settled
        known = (delivery.task_type, delivery.task_version) in self._handlers
        self._metrics.jobs.labels(delivery.task_type if known else "unknown", outcome).inc()

    async def _do(self, delivery: Delivery) -> str:
        """Execute one delivery; on return PostgreSQL knows what became of it."""
        handler = self._handlers.get((delivery.task_type, delivery.task_version))
        if handler is None:
            reason = f"unknown task version {delivery.task_version}"
            await self._outbox.quarantine(delivery.event_id, wait=self._retry.unknown_task, reason=reason)
            logger.warning("unknown task waits for its worker", event_ref=_ref(delivery.event_id), reason=reason)
            return "unknown"
        if delivery.deliveries > self._retry.deliveries_max:
            return await self._bury(delivery, "delivered too often without an end")
        job = await self._outbox.begin(delivery.event_id, lease=self._lease)
        if job is None:
            return "stale"
        self._metrics.job_attempts.labels(job.task_type, "first" if job.attempts == 1 else "again").inc()
        if job.attempts > self._retry.attempts_max:
            return await self._bury(delivery, "begun too often without an end")
        await faultpoints.reach("job.before_handler")
        try:
            async with asyncio.timeout(JOB_SECONDS_MAX):
                return await handler(job)
        except Exception as error:
            if isinstance(error, MailboxError) and error.code is ErrorCode.UNAVAILABLE:
                raise  # not the job's fault: it is done again when the database answers
            return await self._failed(delivery, job, error)

    async def _failed(self, delivery: Delivery, job: Job, error: Exception) -> str:
        logger.error(
            "job failed", event_ref=_ref(job.event_id), task=job.task_type, attempt=job.attempts, exc_info=error
        )
        reason = f"failed: {type(error).__name__}"
        if job.attempts >= self._retry.attempts_max:
            return await self._bury(delivery, reason)
        await self._outbox.failed(job, wait=self._retry.failure.wait(job.attempts, self._chance()), reason=reason)
        return "failed"

    async def _bury(self, delivery: Delivery, reason: str) -> str:
        if await self._outbox.bury(delivery.event_id, reason=reason):
            self._metrics.dead_letters.labels(delivery.task_type).inc()
            logger.error("dead letter", event_ref=_ref(delivery.event_id), task=delivery.task_type, reason=reason)
        return "dead_letter"


def _ref(event_id: bytes) -> str:
    """Enough of an event's id to find it, too short to be taken for a secret by the log's nets."""
    return event_id.hex()[:12]
