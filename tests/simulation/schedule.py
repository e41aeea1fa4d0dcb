"""Virtual time: what is due happens in order, and time jumps from one thing to the next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from tests.simulation.model_server import START_MS


class Schedule:
    """One clock for all: monotonic milliseconds from 0, and the server's time, which runs along with them."""

    def __init__(self) -> None:
        self.now = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    @property
    def server_ms(self) -> int:
        return START_MS + self.now

    def after(self, milliseconds: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + max(0, milliseconds), next(self._numbers), call))

    def every(self, milliseconds: int, call: Callable[[], None]) -> None:
        def again() -> None:
            call()
            self.after(milliseconds, again)

        self.after(milliseconds, again)

    def run_until(self, end: int) -> None:
        while self._queue and self._queue[0][0] <= end:
            self.now, _, call = heapq.heappop(self._queue)
            call()
        self.now = end
