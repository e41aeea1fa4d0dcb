"""Loops that must keep turning: restarted when they fail, watched for progress, ended in order.

"Ready" and "alive" mean that each loop made progress within its own time, not that the process exists.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass
from typing import Any, Final

import structlog

from runtime.clock import Clock

logger = structlog.get_logger(__name__)

BACKOFF_FIRST_SECONDS: Final = 0.1
BACKOFF_MAX_SECONDS: Final = 10.0
STOP_SECONDS: Final = 5.0
CANCEL_AGAIN_SECONDS: Final = 1.0
CANCELS_MAX: Final = 10


class Progress:
    """What a loop calls each time round: `progress()`. Cheap enough for every turn."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.last = clock.monotonic()
        self.turns = 0

    def __call__(self) -> None:
        self.turns += 1
        self.last = self._clock.monotonic()


LoopBody = Callable[[Progress], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class LoopHealth:
    """One loop as the operations port shows it."""

    name: str
    seconds_since_progress: float
    stalled: bool
    restarts: int


class LoopFailed(Exception):
    """A loop failed too often in a row without progress: this process should end and be started anew."""


class _Loop:
    def __init__(self, name: str, body: LoopBody, progress: Progress, stalled_after: float, failures_max: int) -> None:
        self.name = name
        self.body = body
        self.progress = progress
        self.stalled_after = stalled_after
        self.failures_max = failures_max
        self.restarts = 0


class Supervisor:
    """Runs named loops until told to stop.

    A loop body runs until its process stops. If it raises or returns early it is started again after a growing pause
    with jitter; failures in a row without progress are bounded, then `run` raises LoopFailed.
    """

    def __init__(self, clock: Clock, *, on_failure: Callable[[str], None] | None = None) -> None:
        self._clock = clock
        self._on_failure = on_failure  # a metric's place: told the loop's name
        self._loops: dict[str, _Loop] = {}

    def add(self, name: str, body: LoopBody, *, stalled_after_seconds: float, failures_max: int = 20) -> None:
        """Add a loop before `run`. It counts as stalled once it made no progress for that long."""
        if name in self._loops:
            raise ValueError(f"there is a loop {name!r} already")
        self._loops[name] = _Loop(name, body, Progress(self._clock), stalled_after_seconds, failures_max)

    def health(self) -> tuple[LoopHealth, ...]:
        now = self._clock.monotonic()
        return tuple(
            LoopHealth(
                loop.name, now - loop.progress.last, now - loop.progress.last > loop.stalled_after, loop.restarts
            )
            for loop in self._loops.values()
        )

    def stalled(self) -> tuple[str, ...]:
        """The loops that made no progress within their time. Empty means alive."""
        return tuple(health.name for health in self.health() if health.stalled)

    async def run(self, stopping: asyncio.Event, *, stop_seconds: float = STOP_SECONDS) -> None:
        """Run all loops until `stopping` is set, then give them `stop_seconds` to end and cancel the rest.

        Raises LoopFailed when a loop is beyond restarting. Cancelled, it cancels the loops and waits for their end.
        """
        tasks = [asyncio.create_task(self._keep(loop, stopping), name=loop.name) for loop in self._loops.values()]
        stop_seen = asyncio.create_task(stopping.wait(), name="supervisor-stop")
        try:
            running = set(tasks)
            while running and not stopping.is_set():
                done, _ = await asyncio.wait({*running, stop_seen}, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {stop_seen}:
                    running.discard(task)
                    task.result()  # a loop beyond restarting ends everything
            if running:
                done, _ = await asyncio.wait(running, timeout=stop_seconds)
                for task in done:
                    task.result()
        finally:
            await _end({stop_seen, *tasks})

    async def _keep(self, loop: _Loop, stopping: asyncio.Event) -> None:
        failures = 0
        while not stopping.is_set():
            loop.progress()
            turns = loop.progress.turns
            try:
                await loop.body(loop.progress)
                if stopping.is_set():
                    return
                logger.error("loop ended early", loop=loop.name)
            except Exception:
                logger.exception("loop failed", loop=loop.name)
            failures = 1 if loop.progress.turns > turns else failures + 1
            loop.restarts += 1
            if self._on_failure is not None:
                self._on_failure(loop.name)
            if failures >= loop.failures_max:
                raise LoopFailed(f"the loop {loop.name} failed {failures} times in a row without progress")
            await self._pause(failures, stopping)

    async def _pause(self, failures: int, stopping: asyncio.Event) -> None:
        longest = min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(failures, 16))
        pause = asyncio.create_task(self._clock.sleep(longest * random.uniform(0.5, 1.0)))  # noqa: S311 - jitter
        stop_seen = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({pause, stop_seen}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
            stop_seen.cancel()


async def _end(tasks: Set[asyncio.Task[Any]]) -> None:
    """Cancel until they have ended: a library below a loop may swallow a cancellation that meets its result."""
    for _ in range(CANCELS_MAX):
        for task in tasks:
            task.cancel()
        ended, tasks = await asyncio.wait(tasks, timeout=CANCEL_AGAIN_SECONDS)
        for task in ended:
            if not task.cancelled():
                task.exception()  # told already, or a sequel of what was
        if not tasks:
            return
    logger.error("loops do not end", loops=[task.get_name() for task in tasks])
