"""How long to wait before the next try: growing, bounded, jittered. Pure; the caller brings the chance."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple


class Backoff(NamedTuple):
    """Doubling from `first` to `longest`; the n-th wait lies between half of it and all of it."""

    first: timedelta
    longest: timedelta

    def wait(self, times: int, chance: float) -> timedelta:
        """Before the try after `times` failures in a row (1 or more); `chance` in [0, 1) spreads the waiters."""
        whole = min(self.first * (1 << min(max(times, 1) - 1, 30)), self.longest)
        return whole * (0.5 + chance / 2)


class RetryPolicy(NamedTuple):
    """What the worker does with failures."""

    attempts_max: int = 8  # then a dead letter
    deliveries_max: int = 8  # of one message by the queue: a worker that dies in a job writes no failure
    failure: Backoff = Backoff(timedelta(seconds=2), timedelta(minutes=10))
    trouble: Backoff = Backoff(timedelta(seconds=5), timedelta(minutes=5))  # of a provider
    misconfigured: Backoff = Backoff(timedelta(seconds=60), timedelta(minutes=20))
    retry_after_longest: timedelta = timedelta(minutes=30)  # a provider's own wish is honoured up to here
    unknown_task: timedelta = timedelta(seconds=15)

    def trouble_wait(self, times: int, asked: timedelta | None, chance: float) -> timedelta:
        """A provider's Retry-After is a least; the backoff grows beside it."""
        wait = self.trouble.wait(times, chance)
        if asked is None:
            return wait
        # Later than asked by a little, never earlier, and not all at once.
        return max(wait, min(asked, self.retry_after_longest) * (1 + chance / 10))
