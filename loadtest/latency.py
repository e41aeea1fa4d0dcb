"""Latencies of millions of messages in little memory: counts per 20 microseconds, of those that occurred."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

_STEP_S: Final = 20e-6
_STEPS: Final = 500_000  # up to 10 s; later ones count there, and `max` tells


class Latencies:
    """Add seconds, read milliseconds. Nothing here holds an event loop for longer than some milliseconds."""

    def __init__(self) -> None:
        self._counts: defaultdict[int, int] = defaultdict(int)
        self._per_second = 1 / _STEP_S
        self.count = 0
        self.max_s = 0.0

    def add(self, seconds: float) -> None:
        step = int(seconds * self._per_second)
        self._counts[min(_STEPS, step)] += 1
        self.count += 1
        if seconds > self.max_s:
            self.max_s = seconds

    def merge(self, other: Latencies) -> None:
        """Take in what `other` counted."""
        for step, count in other._counts.items():
            self._counts[step] += count
        self.count += other.count
        self.max_s = max(self.max_s, other.max_s)

    def percentile_ms(self, share: float) -> float | None:
        """The latency that `share` of all stayed at or below, at most 0.02 ms too high; None without any."""
        if not self.count:
            return None
        left = share * self.count
        for step in sorted(self._counts):
            left -= self._counts[step]
            if left <= 1e-9:
                return round(min((step + 1) * _STEP_S, self.max_s) * 1_000, 2)
        return round(self.max_s * 1_000, 2)

    def summary(self) -> dict[str, float | None]:
        """`{p50, p99, max}` in milliseconds."""
        return {
            "p50": self.percentile_ms(0.50),
            "p99": self.percentile_ms(0.99),
            "max": round(self.max_s * 1_000, 2) if self.count else None,
        }
