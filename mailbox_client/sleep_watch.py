"""Whether this machine slept: timers stand still meanwhile, and a connection may have died without a word."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

NOTICED_MS: Final = 2_000


def away_ms() -> int:
    """Time that passed outside the monotonic clock, on a scale of its own: only its growth means something.

    Where the platform has a clock that counts sleep, that one is asked. Elsewhere it is the wall clock, which may also
    be set: whoever believes in a sleep then loses nothing by it but a ping.
    """
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    outside = time.clock_gettime_ns(boottime) if boottime is not None else time.time_ns()
    return (outside - time.monotonic_ns()) // 1_000_000


class SleepWatch:
    """Asked now and then; says once of each sleep that there was one."""

    def __init__(self, away: Callable[[], int] = away_ms) -> None:
        self._away = away
        self._before = away()

    def slept(self) -> bool:
        now = self._away()
        slept = now - self._before > NOTICED_MS
        self._before = now
        return slept
