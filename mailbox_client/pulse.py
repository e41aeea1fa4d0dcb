"""Wakes coroutines from plain callbacks."""

from __future__ import annotations

import asyncio


class Pulse:
    """Each ring wakes everybody who waits at that moment; whoever comes later waits for the next ring.

    Check the condition, then wait, without an await in between: then no ring is missed.
    """

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)
