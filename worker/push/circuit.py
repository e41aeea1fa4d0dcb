"""Leaves a target alone for a while when it fails again and again: no pile-up, nobody else waits behind it. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

FAILURES_TO_OPEN: Final = 5
PAUSE_FIRST_SECONDS: Final = 5.0
PAUSE_LONGEST_SECONDS: Final = 120.0
TARGETS_MAX: Final = 10_000


@dataclass(slots=True)
class _Target:
    failures: int = 0
    paused_until: float = 0.0
    probing: bool = False


class Circuit:
    """One for all targets of a provider. `now` is any clock that never goes back, in seconds."""

    def __init__(self) -> None:
        self._targets: OrderedDict[str, _Target] = OrderedDict()

    def pause_left(self, target: str, now: float) -> float:
        """Seconds for which the target is to be left alone; 0: go, and after a pause only one goes first."""
        state = self._targets.get(target)
        if state is None or state.failures < FAILURES_TO_OPEN:
            return 0.0
        if now < state.paused_until:
            return state.paused_until - now
        if state.probing:
            return PAUSE_FIRST_SECONDS
        state.probing = True
        return 0.0

    def succeeded(self, target: str) -> None:
        self._targets.pop(target, None)

    def failed(self, target: str, now: float) -> None:
        """Timeouts, broken connections, 5xx; not a refusal of one single push."""
        state = self._targets.setdefault(target, _Target())
        self._targets.move_to_end(target)
        state.failures += 1
        state.probing = False
        over = state.failures - FAILURES_TO_OPEN
        if over >= 0:
            state.paused_until = now + min(PAUSE_FIRST_SECONDS * 2.0 ** min(over, 10), PAUSE_LONGEST_SECONDS)
        if len(self._targets) > TARGETS_MAX:
            self._targets.popitem(last=False)

    def paused(self, now: float) -> int:
        """How many targets are being left alone."""
        return sum(state.failures >= FAILURES_TO_OPEN and now < state.paused_until for state in self._targets.values())
