"""Is a route really gone, or does its provider fail for everybody? Pure.

A provider in the wrong environment, or with an outage, says "gone" for every route. Pruning them all would silence
every phone for good. So a route is pruned only when it was called gone twice, some seconds apart, and what the provider
said of other routes meanwhile does not look like an outage.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

CONFIRM_SECONDS: Final = 3.0
WINDOW_SECONDS: Final = 600.0
MANY: Final = 5  # distinct routes called gone within the window …
ROUTES_MAX: Final = 50_000


class GoneJudge:
    """One for each provider, fed with every verdict on a route. `now` is any clock that never goes back, in seconds."""

    def __init__(self) -> None:
        self._gone: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # route → first and newest verdict
        self._accepted: OrderedDict[bytes, float] = OrderedDict()

    def accepted(self, route: bytes, now: float) -> None:
        self._gone.pop(route, None)
        self._accepted[route] = now
        self._accepted.move_to_end(route)
        self._forget(now)

    def gone(self, route: bytes, now: float) -> bool:
        """Note the verdict; True when the route may be pruned."""
        first, _ = self._gone.get(route, (now, now))
        self._gone[route] = (first, now)
        self._gone.move_to_end(route)
        self._forget(now)
        return now - first >= CONFIRM_SECONDS and not self.holds(now)

    def holds(self, now: float) -> bool:
        """True while so many are called gone that none is believed: at least MANY, and more than are accepted."""
        self._forget(now)
        return len(self._gone) >= MANY and len(self._gone) > len(self._accepted)

    def _forget(self, now: float) -> None:
        old = now - WINDOW_SECONDS
        while self._gone and (next(iter(self._gone.values()))[1] < old or len(self._gone) > ROUTES_MAX):
            self._gone.popitem(last=False)
        while self._accepted and (next(iter(self._accepted.values())) < old or len(self._accepted) > ROUTES_MAX):
            self._accepted.popitem(last=False)
