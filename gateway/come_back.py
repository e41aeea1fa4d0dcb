"""When refused or leaving clients come back: a slot each, so that a restarted node is not stormed (WIRE, closing)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

FIRST_MS: Final = 500
JITTER: Final = 0.5
LONGEST_S: Final = 300.0


class ComeBack:
    """Hands out come-back times at a rate that the gateways can take. Each client gets its own."""

    def __init__(self, now: Callable[[], float], per_second: Callable[[], int]) -> None:
        """`now`: monotonic seconds; `per_second`: handshakes that are welcome, 0 for no limit."""
        self._now = now
        self._per_second = per_second
        self._next = 0.0

    def after_ms(self) -> int:
        """Milliseconds after which this client may try again."""
        now = self._now()
        rate = self._per_second() or 1_000
        self._next = min(max(self._next, now) + 1 / rate, now + LONGEST_S)
        wait_ms = FIRST_MS + (self._next - now) * 1000
        return int(wait_ms * (1 + JITTER * random.random()))  # noqa: S311 - spreads clients, guards nothing
