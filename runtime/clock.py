"""Time as processes take it: durations from the monotonic clock, instants only for logs and comparisons.

Retention and every window of the contract run on the database's clock instead (`mailboxd_now()`); nothing runs on a
client's clock. Code gets a `Clock` handed in, so that tests move time by hand.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """The two readings that a process may take, and the one way to let time pass."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC as this host believes; may jump."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after that many seconds (at once for 0 or less). Cancelling leaves nothing behind."""
        ...


class SystemClock:
    """The clocks of this host."""

    monotonic = staticmethod(time.monotonic)  # asked several times a message: without a function of ours around it

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))
