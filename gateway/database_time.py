"""The database's clock as this process knows it: learnt from answers, carried on by the monotonic clock."""

from __future__ import annotations

from runtime.clock import Clock


class DatabaseTime:
    """Instants in database milliseconds without a round trip: what cursors are dated with and expiry is judged by.

    Every answer that carries the database's time sets it anew, so it is behind by one answer's way at most and follows
    the database through a jump (a failover onto another host's clock).
    """

    def __init__(self, clock: Clock, now_ms: int) -> None:
        self._clock = clock
        self.learn(now_ms)

    def learn(self, now_ms: int) -> None:
        """The database said that it is `now_ms`."""
        self._ms = now_ms
        self._at = self._clock.monotonic()

    def now_ms(self) -> int:
        return self._ms + int((self._clock.monotonic() - self._at) * 1000)

    def monotonic_at(self, instant_ms: int) -> float:
        """The monotonic second at which the database will say `instant_ms`."""
        return self._at + (instant_ms - self._ms) / 1000
