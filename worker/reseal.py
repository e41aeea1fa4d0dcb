"""After a rotation of the push-token key all routes get a seal of the new one, in small steps beside the rest."""

from __future__ import annotations

from typing import Final

import structlog

from runtime.clock import Clock
from runtime.supervise import Progress
from store.push_reseal import PushReseal
from store.retention import BEFORE_ALL
from worker.metrics import WorkerMetrics

logger = structlog.get_logger(__name__)

PAGE_MAX: Final = 200
PAGE_PAUSE_SECONDS: Final = 0.1
AGAIN_SECONDS: Final = 60.0  # a gateway that was not restarted yet still seals with the old key


class ResealLoop:
    """Walks through the routes that a superseded key sealed; a worker whose ring has none does nothing."""

    def __init__(self, reseal: PushReseal, metrics: WorkerMetrics, clock: Clock) -> None:
        self._reseal = reseal
        self._metrics = metrics
        self._clock = clock
        self._told = (0, 0)

    async def run(self, progress: Progress) -> None:
        """Walk for ever; ends by cancellation only."""
        while True:
            if self._reseal.needed:
                await self.walk(progress)
            waited = 0.0
            while waited < AGAIN_SECONDS:
                progress()
                await self._clock.sleep(5.0)
                waited += 5.0

    async def walk(self, progress: Progress | None = None) -> int:
        """All routes once; how many were sealed anew."""
        after, resealed, broken = BEFORE_ALL, 0, 0
        while True:
            page = await self._reseal.page(after, PAGE_MAX)
            self._metrics.resealed.inc(page.resealed)
            resealed, broken = resealed + page.resealed, broken + page.broken
            if progress is not None:
                progress()
            if page.last is None:
                break
            after = page.last
            await self._clock.sleep(PAGE_PAUSE_SECONDS)
        self._metrics.seals_broken.set(broken)
        if (resealed, broken) != self._told and (resealed or broken):
            logger.info("push routes sealed anew", routes=resealed, that_do_not_open=broken)
        self._told = resealed, broken
        return resealed
