"""Token buckets in this process's memory: a bounded table of them, the least recently used forgotten first. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)


class Bucket:
    """Up to `burst` tokens, filling at `rate` a second. Both come with each call, since policy may change."""

    __slots__ = ("at", "tokens", "unsettled")

    def __init__(self, burst: float, now: float) -> None:
        self.tokens = float(burst)
        self.at = now
        self.unsettled = 0.0  # taken here and not yet told to the bucket that all gateways share

    def refill(self, rate: float, burst: float, now: float) -> None:
        self.tokens = min(burst, self.tokens + max(0.0, now - self.at) * rate)
        self.at = now

    def take(self, amount: float, rate: float, burst: float, now: float) -> int:
        """0 when the tokens were there and are taken; else the milliseconds after which they will be."""
        self.refill(rate, burst, now)
        if self.tokens >= amount:
            self.tokens -= amount
            self.unsettled += amount
            return 0
        return wait_ms(amount - self.tokens, rate)


def wait_ms(missing: float, rate: float) -> int:
    """How long it takes to fill in what is missing; at least 1."""
    return max(1, math.ceil(missing / rate * 1000))


class BucketTable(Generic[Name]):
    """Buckets by name, at most `names_max`; a forgotten one starts full again."""

    def __init__(self, names_max: int) -> None:
        self._names_max = names_max
        self._buckets: OrderedDict[Name, Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def of(self, name: Name, burst: float, now: float) -> Bucket:
        bucket = self._buckets.get(name)
        if bucket is not None:
            self._buckets.move_to_end(name)
            return bucket
        if len(self._buckets) >= self._names_max:
            self._buckets.popitem(last=False)
        bucket = self._buckets[name] = Bucket(burst, now)
        return bucket

    def forget_idle(self, before: float) -> None:
        """Drop every bucket that was last used before that moment."""
        while self._buckets:
            name, bucket = next(iter(self._buckets.items()))
            if bucket.at >= before:
                return
            del self._buckets[name]
