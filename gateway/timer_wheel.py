"""One timer for all connections: whoever has a deadline sits in the bucket of its second.

A timer per connection would be a heap entry and a closure each; here a deadline costs a list slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

Member = TypeVar("Member")


class TimerWheel(Generic[Member]):
    """Members by the second in which they want to be looked at. A member that has gone drops out at its turn."""

    def __init__(self, now_s: float) -> None:
        self._next = int(now_s)
        self._buckets: dict[int, list[Member]] = {}

    def add(self, member: Member, at_s: float) -> None:
        """Have `member` come out of `due` within a second after `at_s`, not before; at once if that has passed."""
        slot = max(int(at_s) + 1, self._next)
        bucket = self._buckets.get(slot)
        if bucket is None:
            self._buckets[slot] = [member]
        else:
            bucket.append(member)

    def due(self, now_s: float) -> Iterator[Member]:
        """Take out everybody whose second has come. Adding while this runs is allowed."""
        while self._next <= now_s:
            members = self._buckets.pop(self._next, ())
            self._next += 1
            yield from members
