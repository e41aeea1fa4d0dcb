"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Final

START_MS: Final = 1_800_000_000_000
_SETTLE_TURNS: Final = 20


class FakeClock:
    """A `runtime.clock.Clock`: both readings move together, and sleepers wake in order as time passes them."""

    def __init__(self, *, wall_ms: int = START_MS, monotonic: float = 1_000.0) -> None:
        self._wall_ms = float(wall_ms)
        self._monotonic = monotonic
        self._numbers = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self._monotonic

    def wall_ms(self) -> int:
        return int(self._wall_ms)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic + seconds, next(self._numbers), woken))
        await woken

    @property
    def sleepers(self) -> int:
        """How many wait for time to pass."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    def move(self, seconds: float) -> None:
        """Let time pass at once, for code that only reads the clock; nobody wakes before the next `advance`."""
        self._monotonic += seconds
        self._wall_ms += seconds * 1000

    def jump_wall(self, seconds: float) -> None:
        """Set the host's idea of the date wrong; durations are not affected."""
        self._wall_ms += seconds * 1000

    async def advance(self, seconds: float) -> None:
        """Let time pass: each sleeper wakes at its own moment and runs until everything waits again."""
        end = self._monotonic + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, woken = heapq.heappop(self._sleepers)
            if woken.done():
                continue
            self.move(max(0.0, due - self._monotonic))
            woken.set_result(None)
            await settle()
        self.move(end - self._monotonic)
        await settle()


async def settle() -> None:
    """Give everything that can run without time or input passing its turns."""
    for _ in range(_SETTLE_TURNS):
        await asyncio.sleep(0)
