"""Takes what is due from the outbox and hands it to the queue.

Set-based and without Redis for what is done or must wait; for the rest: published in one short transaction, and only
after its commit into the stream. A process that dies in between, or a queue that takes nothing, leaves rows that come
back by their deadline.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import structlog

from runtime import faultpoints
from runtime.clock import Clock
from runtime.doorbell import Doorbell
from runtime.supervise import Progress
from store.job_queue import JobQueue, QueueLost, QueueUnreachable
from store.outbox import Claimed, OutboxStore
from worker.metrics import WorkerMetrics

logger = structlog.get_logger(__name__)

CLAIM_MAX: Final = 200
PUBLISHED_FOR: Final = timedelta(seconds=60)  # then the reconciler takes it back, unless a worker has begun it
QUEUE_FULL: Final = 2_000  # messages: more is not published but left in the outbox, where it cannot be lost
ROUND_SECONDS_MIN: Final = 0.01  # rings in a burst are answered together


class Dispatcher:
    """One loop a worker. Any number of workers may run theirs: they skip each other's rows."""

    def __init__(
        self,
        outbox: OutboxStore,
        queue: JobQueue,
        bell: Doorbell,
        metrics: WorkerMetrics,
        clock: Clock,
        *,
        poll_seconds: float,
    ) -> None:
        self._outbox = outbox
        self._queue = queue
        self._bell = bell
        self._metrics = metrics
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._queue_answers = True

    async def run(self, progress: Progress) -> None:
        """Dispatch for ever, on a ring or a slow poll; ends by cancellation only."""
        while True:
            more = await self.round()
            progress()
            if more or await self._bell.wait(at_most_seconds=self._poll_seconds):
                await self._clock.sleep(ROUND_SECONDS_MIN)

    async def round(self) -> bool:
        """One claim and its publication. True when there is more that can be taken at once.

        Raises MailboxError UNAVAILABLE when the database is away; nothing is lost by it.
        """
        claimed = await self._outbox.claim(
            CLAIM_MAX, published_for=PUBLISHED_FOR, may_publish=await self._queue_has_room()
        )
        for reason, count in claimed.completed.items():
            self._metrics.intents_completed.labels(reason).inc(count)
        self._metrics.intents_put_off.inc(claimed.put_off)
        if claimed.publications:
            await faultpoints.reach("dispatcher.after_commit")
            await self._publish(claimed)
        return claimed.more and bool(claimed.publications or claimed.completed or claimed.put_off)

    async def _queue_has_room(self) -> bool:
        try:
            depth = await self._queue.depth()
        except QueueLost:
            self._queue_answered()
            return True
        except QueueUnreachable as error:
            self._queue_failed(error)
            return False
        self._queue_answered()
        self._metrics.queue_messages.set(depth.messages)
        self._metrics.queue_handed_out.set(depth.handed_out)
        return depth.messages < QUEUE_FULL

    async def _publish(self, claimed: Claimed) -> None:
        try:
            await self._queue.publish(claimed.publications)
        except QueueUnreachable as error:
            self._queue_failed(error)
            # Their deadline would bring them back; this is sooner, and the queue may have taken some: twice is allowed.
            await self._outbox.unpublish(claimed, [publication.event_id for publication in claimed.publications])
            return
        for publication in claimed.publications:
            self._metrics.published.labels(publication.task_type).inc()

    def _queue_failed(self, error: Exception) -> None:
        self._metrics.publish_failures.inc()
        if self._queue_answers:  # once per outage
            logger.warning("the queue does not answer; intents wait in the outbox", error=str(error))
        self._queue_answers = False

    def _queue_answered(self) -> None:
        if not self._queue_answers:
            logger.info("the queue answers again")
        self._queue_answers = True
