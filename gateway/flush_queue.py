"""One write a connection and turn of the loop: what has something to say queues here until the turn's end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Flushable(Protocol):
    """A connection with queued messages."""

    def flush(self) -> None:
        """Hand everything queued to the transport. Never raises."""
        ...


class FlushQueue:
    """So what a batch of commits, a page and a new request give rise to in one turn goes out in one write."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float]) -> None:
        """`now`: monotonic seconds."""
        self._call_soon = loop.call_soon
        self.now = now
        self._dirty: list[Flushable] = []

    def add(self, connection: Flushable) -> None:
        """Flush it in this turn; once, however much it has to say."""
        if not self._dirty:
            self._call_soon(self._flush)
        self._dirty.append(connection)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()
