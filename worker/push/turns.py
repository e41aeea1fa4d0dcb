"""When whoever is turned away from a busy target may come again: one after the other, as fast as it answers. Pure.

Without it a thousand waiting pushes would all come back every second, through database and queue, for nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

FIRST_SECONDS: Final = 0.5  # nobody comes back sooner
LONGEST_SECONDS: Final = 60.0
TARGETS_MAX: Final = 10_000
_WEIGHT: Final = 0.1  # of the newest answer in the average


@dataclass(slots=True)
class _Target:
    next_turn: float = 0.0
    answer_seconds: float = 0.2


class Turns:
    """`at_once` pushes to one target at a time. `now` is any clock that never goes back, in seconds."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._targets: OrderedDict[str, _Target] = OrderedDict()

    def wait(self, target: str, now: float) -> float:
        """Seconds until the next free turn, which is the caller's from now on."""
        state = self._of(target)
        state.next_turn = max(state.next_turn, now + FIRST_SECONDS) + state.answer_seconds / self._at_once
        state.next_turn = min(state.next_turn, now + LONGEST_SECONDS)
        return state.next_turn - now

    def answered(self, target: str, seconds: float) -> None:
        """How long the target took for one push."""
        state = self._of(target)
        state.answer_seconds += _WEIGHT * (seconds - state.answer_seconds)

    def _of(self, target: str) -> _Target:
        state = self._targets.setdefault(target, _Target())
        self._targets.move_to_end(target)
        if len(self._targets) > TARGETS_MAX:
            self._targets.popitem(last=False)
        return state
