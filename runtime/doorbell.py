"""A hint that there may be work: rings coalesce, none is lost while somebody is busy, and a poll backs it up."""

from __future__ import annotations

import asyncio


class Doorbell:
    """For one waiter, which looks for itself what there is to do after every ring or poll.

    Any number of rings before a `wait` make it return at once, once. A ring during the waiter's work is kept for its
    next `wait`: what came in too late to be seen is looked at again.
    """

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Never blocks and never fails; call it on the loop's own thread."""
        self._rung.set()

    async def wait(self, *, at_most_seconds: float) -> bool:
        """Return True when rung, False when the time is up. A cancelled wait keeps the ring."""
        try:
            async with asyncio.timeout(at_most_seconds):
                await self._rung.wait()
        except TimeoutError:
            return False
        # Cleared before the waiter looks: a ring from here on belongs to the next look.
        self._rung.clear()
        return True
