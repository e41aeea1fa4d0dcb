"""Buckets that all gateways share, in Redis (ADR 0053): settled in batches, at most a second late, never per request.

Each gateway spends from its own copy of a bucket and reports what it spent; the answer is what all of them have left.
So a request never waits for Redis, the common rate holds in the long run whatever the number of gateways, and what they
can overdraw together within one settlement is paid back before anybody gets more. Without Redis each copy stands alone.

A name in Redis is a keyed hash under a key that changes every day, and lives until its bucket would be full again, a
day at most: it says neither which device or address it is, nor can two days be laid together (seed 001, section 4).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, Final, NamedTuple

import structlog
from blake3 import blake3
from redis.asyncio import Redis

from runtime.clock import Clock
from runtime.doorbell import Doorbell
from runtime.supervise import Progress
from store.redis_client import REDIS_TROUBLE, whole
from store.token_bucket import Bucket, wait_ms

logger = structlog.get_logger(__name__)

SETTLE_SECONDS: Final = 1.0  # what was spent is told within this time
SETTLE_GAP_SECONDS: Final = 0.02  # and not more often than this, however much is spent
SETTLE_SHARE: Final = 0.125  # of a burst spent: tell at once
KEYS_PER_CALL: Final = 200
TOUCHED_MAX: Final = 20_000  # buckets waiting to be told; what comes on top is told after its next use
WAITING_MAX: Final = 1_000
CALL_SECONDS: Final = 1.0
AWAY_SECONDS: Final = 1.0  # after a failure Redis is left alone for this long

_DAY_MS: Final = 86_400_000
_NAME: Final = b"mailboxd.rate\x00"


class _Touched(NamedTuple):
    bucket: Bucket
    rate: float
    burst: float


class _Asked(NamedTuple):
    name: str
    amount: float
    rate: float
    burst: float
    answer: asyncio.Future[int | None]


class SharedRates:
    """Keeps this process's buckets in line with the shared ones."""

    def __init__(self, redis: Redis, *, prefix: str, names_key: bytes, clock: Clock) -> None:
        """`prefix` holds the instance's hash tag, so that one call can name many keys; `names_key` is 32 bytes."""
        script = resources.files("store").joinpath("lua/take_tokens.lua").read_text(encoding="utf-8")
        self._script = redis.register_script(script)
        self._prefix = prefix
        self._names_key = names_key
        self._clock = clock
        self._doorbell = Doorbell()
        self._touched: dict[tuple[str, bytes], _Touched] = {}
        self._waiting: deque[_Asked] = deque()
        self._away_until = 0.0
        self._was_away = False
        self.each_turn: list[Callable[[], None]] = []  # what has to be done every second or so, beside this

    def touch(self, kind: str, name: bytes, bucket: Bucket, rate: float, burst: float) -> None:
        """Remember that `bucket` has something to tell. No await, no I/O."""
        if len(self._touched) < TOUCHED_MAX:
            self._touched[kind, name] = _Touched(bucket, rate, burst)
        if bucket.unsettled >= burst * SETTLE_SHARE:
            self._doorbell.ring()

    def forget_idle(self, before: float) -> None:
        """While Redis is away: no longer remember what was last used before that moment, and whose it was."""
        if self._was_away:
            self._touched = {key: each for key, each in self._touched.items() if each.bucket.at >= before}

    async def take(self, kind: str, name: bytes, amount: float, rate: float, burst: float) -> int | None:
        """Take from the shared bucket itself: 0 when taken, else the milliseconds to wait; None without Redis."""
        if self._clock.monotonic() < self._away_until or len(self._waiting) >= WAITING_MAX:
            return None
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Asked(self._key(kind, name), amount, rate, burst, answer))
        self._doorbell.ring()
        try:
            async with asyncio.timeout(2 * CALL_SECONDS):
                return await answer
        except TimeoutError:
            return None  # nobody settles: this process is starting or stopping

    async def run(self, progress: Progress) -> None:
        """Settle for ever; ends only by cancellation."""
        settled_at = 0.0
        while True:
            await self._doorbell.wait(at_most_seconds=SETTLE_SECONDS)
            progress()
            for act in self.each_turn:
                act()
            await self._answer_waiting()
            now = self._clock.monotonic()
            if now < self._away_until:
                continue
            if now - settled_at < SETTLE_GAP_SECONDS:
                await self._clock.sleep(SETTLE_GAP_SECONDS)
            await self._settle()
            settled_at = self._clock.monotonic()

    async def _answer_waiting(self) -> None:
        while self._waiting:
            asked = [self._waiting.popleft() for _ in range(min(len(self._waiting), KEYS_PER_CALL))]
            answers = await self._call(
                [each.name for each in asked], [(each.rate, each.burst, each.amount, 1) for each in asked]
            )
            for at, each in enumerate(asked):
                if each.answer.done():
                    continue
                if answers is None:
                    each.answer.set_result(None)
                elif int(answers[2 * at]):
                    each.answer.set_result(0)
                else:
                    each.answer.set_result(wait_ms(each.amount - float(answers[2 * at + 1]), each.rate))

    async def _settle(self) -> None:
        touched, self._touched = self._touched, {}
        spending = [(key, each) for key, each in touched.items() if each.bucket.unsettled]
        for first in range(0, len(spending), KEYS_PER_CALL):
            part = spending[first : first + KEYS_PER_CALL]
            spent = [each.bucket.unsettled for _, each in part]
            answers = await self._call(
                [self._key(*key) for key, _ in part],
                [(each.rate, each.burst, amount, 0) for (_, each), amount in zip(part, spent, strict=True)],
            )
            now = self._clock.monotonic()
            for at, ((key, each), amount) in enumerate(zip(part, spent, strict=True)):
                if answers is None:
                    each.bucket.unsettled = min(each.bucket.unsettled, each.burst)  # a debt is never more than a burst
                    self._touched.setdefault(key, each)
                    continue
                each.bucket.unsettled -= amount
                each.bucket.tokens = float(answers[2 * at + 1]) - each.bucket.unsettled
                each.bucket.at = now

    async def _call(self, keys: Sequence[str], arguments: Sequence[tuple[float, ...]]) -> list[Any] | None:
        """The script's answer; None when Redis is away, which is remembered for a while."""
        flat = [value for four in arguments for value in four]
        try:
            async with asyncio.timeout(CALL_SECONDS):
                answers: list[Any] = await whole(self._script(keys=keys, args=flat))
        except REDIS_TROUBLE as error:
            self._away_until = self._clock.monotonic() + AWAY_SECONDS
            if not self._was_away:
                logger.warning("rates are kept by each gateway alone until Redis answers", error=type(error).__name__)
            self._was_away = True
            return None
        if self._was_away:
            logger.info("rates are shared again")
        self._was_away = False
        return answers

    def _key(self, kind: str, name: bytes) -> str:
        day = (self._clock.wall_ms() // _DAY_MS).to_bytes(8, "big")
        hashed = blake3(_NAME + day + kind.encode("ascii") + b"\x00" + name, key=self._names_key).hexdigest(12)
        return f"{self._prefix}rate:{hashed}"
