"""How fast who may do what (the policy table's rates): decided in memory, shared over gateways where Redis is there.

A refusal is a number of milliseconds to wait, 0 means go on. Deciding never waits, except where an hourly allowance is
so small that it must be exact: registrations and prekey claims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Final, NamedTuple

from protocol.frames import SendEnvelope
from protocol.ids import DeviceId, IdentityId
from runtime.clock import Clock
from store.policy_rules import Policy
from store.shared_rates import SharedRates
from store.token_bucket import BucketTable, wait_ms

DEVICES_MAX: Final = 50_000
ADDRESSES_MAX: Final = 50_000
PAIRS_MAX: Final = 100_000
PAIR_UNIT_BYTES: Final = 16 * 1024
HOUR_S: Final = 3_600
FORGET_S: Final = 3_600.0  # nobody's address is remembered for longer than this after its last request


class SubmitRates(NamedTuple):
    """What the rates say of one SEND. They are not the last word: a repeat of a committed SEND answers all the same."""

    rate_refused_ms: int | None = None  # the sender is too fast: wait so long
    pair_refused: tuple[int, ...] = ()  # envelopes whose recipient has had too much from this sender
    pair_retry_after_ms: int = 0


WITHIN: Final = SubmitRates()


class RateLimiter:
    """The rates of one gateway process."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        shared: SharedRates | None,
        clock: Clock,
        *,
        loopback_exempt: bool = False,
    ) -> None:
        """`loopback_exempt`: callers on this very machine are held to no limit per address."""
        self._policy = policy
        self._shared = shared
        self._clock = clock
        self._loopback_exempt = loopback_exempt
        self._tables: dict[str, BucketTable[bytes]] = {
            "submit-device": BucketTable(DEVICES_MAX),
            "submit-address": BucketTable(ADDRESSES_MAX),
            "call-device": BucketTable(DEVICES_MAX),
            "call-address": BucketTable(ADDRESSES_MAX),
            "register": BucketTable(ADDRESSES_MAX),
            "claimer": BucketTable(DEVICES_MAX),
            "claim-target": BucketTable(DEVICES_MAX),
        }
        self._pairs: BucketTable[bytes] = BucketTable(PAIRS_MAX)
        self._exempt: dict[str, bool] = {}
        self._exempt_since = clock.monotonic()
        if shared is not None:
            shared.each_turn.append(self.forget_idle)

    def forget_idle(self) -> None:
        """Forget whom nothing was heard of for an hour: by then every hourly allowance is full again."""
        now = self._clock.monotonic()
        for table in (*self._tables.values(), self._pairs):
            table.forget_idle(now - FORGET_S)
        if self._shared is not None:
            self._shared.forget_idle(now - FORGET_S)
        if now - self._exempt_since > FORGET_S:
            self._exempt.clear()
            self._exempt_since = now

    def submit(self, device: DeviceId, address: str, envelopes: Sequence[SendEnvelope]) -> SubmitRates:
        """Count one SEND of `device` from `address` (as `client_address` gives it)."""
        policy = self._policy()
        amount = len(envelopes)
        refused_ms = self._take_for_address(
            "submit-address", address, amount, policy.submit_rate_per_ip, policy.submit_burst_per_ip
        ) or self._take("submit-device", device, amount, policy.submit_rate_per_device, policy.submit_burst_per_device)
        if refused_ms:
            return SubmitRates(rate_refused_ms=refused_ms)
        if not policy.submit_rate_per_pair:
            return WITHIN
        return self._pair_rates(device, envelopes, policy.submit_rate_per_pair, policy.submit_burst_per_pair)

    def call_of_device(self, device: DeviceId) -> int:
        """Count one authenticated HTTP request that is no SEND: the rate of SENDs holds for these on their own."""
        policy = self._policy()
        return self._take("call-device", device, 1, policy.submit_rate_per_device, policy.submit_burst_per_device)

    def call_of_address(self, address: str) -> int:
        """Count one request that nobody vouches for."""
        policy = self._policy()
        return self._take_for_address("call-address", address, 1, policy.submit_rate_per_ip, policy.submit_burst_per_ip)

    async def registration(self, address: str) -> int:
        if self._is_exempt(address):
            return 0
        return await self._take_hourly("register", address.encode(), self._policy().registrations_per_ip_per_hour)

    async def prekey_claim_by(self, claimer: DeviceId) -> int:
        return await self._take_hourly("claimer", claimer, self._policy().prekey_claims_per_claimer_per_hour)

    async def prekey_claim_of(self, target: IdentityId) -> int:
        return await self._take_hourly("claim-target", target, self._policy().prekey_claims_per_target_per_hour)

    def _take(self, kind: str, name: bytes, amount: float, rate: float, burst: float) -> int:
        if not rate:
            return 0
        now = self._clock.monotonic()
        bucket = self._tables[kind].of(name, burst, now)
        refused_ms = bucket.take(amount, rate, burst, now)
        if not refused_ms and self._shared is not None:
            self._shared.touch(kind, name, bucket, rate, burst)
        return refused_ms

    def _take_for_address(self, kind: str, address: str, amount: float, rate: float, burst: float) -> int:
        if not rate or self._is_exempt(address):
            return 0
        return self._take(kind, address.encode(), amount, rate, burst)

    async def _take_hourly(self, kind: str, name: bytes, per_hour: int) -> int:
        if not per_hour:
            return 0
        rate, burst = per_hour / HOUR_S, float(per_hour)
        if self._shared is not None:
            refused_ms = await self._shared.take(kind, name, 1, rate, burst)
            if refused_ms is not None:
                return refused_ms
        now = self._clock.monotonic()
        return self._tables[kind].of(name, burst, now).take(1, rate, burst, now)

    def _pair_rates(
        self, device: DeviceId, envelopes: Sequence[SendEnvelope], rate: float, burst: float
    ) -> SubmitRates:
        now = self._clock.monotonic()
        spent: dict[DeviceId, int] = {}
        refused: list[int] = []
        retry_after_ms = 0
        for at, envelope in enumerate(envelopes):
            cost = max(1, -(-len(envelope.body) // PAIR_UNIT_BYTES))
            before = spent.get(envelope.to, 0)
            bucket = self._pairs.of(device + envelope.to, burst, now)
            bucket.refill(rate, burst, now)
            missing = before + cost - bucket.tokens
            if missing > 0:
                refused.append(at)
                retry_after_ms = max(retry_after_ms, wait_ms(missing, rate))
            else:
                spent[envelope.to] = before + cost
        if refused:
            return SubmitRates(pair_refused=tuple(refused), pair_retry_after_ms=retry_after_ms)
        for to, cost in spent.items():
            self._pairs.of(device + to, burst, now).tokens -= cost
        return WITHIN

    def _is_exempt(self, address: str) -> bool:
        if not self._loopback_exempt:
            return False
        known = self._exempt.get(address)
        if known is None:
            if len(self._exempt) >= ADDRESSES_MAX:
                self._exempt.clear()
            known = self._exempt[address] = _is_loopback(address)
        return known


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False  # a Unix socket, or an IPv6 network of /64: neither is this machine's loopback
