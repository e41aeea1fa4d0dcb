"""Rates that gateways share over Redis: settled in batches, kept alone without it, nameless (ADR 0053)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest_asyncio
from redis.asyncio import Redis

from protocol.frames import SendEnvelope
from protocol.ids import DeviceId, MessageId
from runtime.clock import SystemClock
from runtime.supervise import Progress
from store.policy_rules import Policy
from store.rate_limit import RateLimiter
from store.redis_client import connect
from store.shared_rates import SharedRates
from tests.support.waiting import eventually

ALICE, BOB = DeviceId(b"a" * 16), DeviceId(b"b" * 16)
CANARY = DeviceId(b"CANARY-DEVICE-ID")
# One token a second: what a test gives out in a moment is its burst.
ALONE = Policy(submit_rate_per_device=1, submit_burst_per_device=64)
TIGHT = replace(ALONE, submit_rate_per_ip=0, submit_rate_per_pair=0)
NOWHERE = "redis://127.0.0.1:1"


class Gateway:
    """The rates of one gateway process."""

    def __init__(self, redis: Redis, policy: Policy = TIGHT) -> None:
        clock = SystemClock()
        self.policy = policy
        self.shared = SharedRates(redis, prefix="mb:{test}:", names_key=b"n" * 32, clock=clock)
        self.limiter = RateLimiter(lambda: self.policy, self.shared, clock)

    def send(self, device: DeviceId = ALICE, count: int = 1) -> bool:
        envelopes = [SendEnvelope(BOB, MessageId(b"m" * 16), 1, b"")] * count
        return self.limiter.submit(device, "192.0.2.1", envelopes).rate_refused_ms is None


@asynccontextmanager
async def running(redis_url: str, count: int, policy: Policy = TIGHT) -> AsyncIterator[list[Gateway]]:
    redis = connect(redis_url)
    gateways = [Gateway(redis, policy) for _ in range(count)]
    progress = Progress(SystemClock())
    loops = [asyncio.create_task(gateway.shared.run(progress)) for gateway in gateways]
    try:
        yield gateways
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await redis.aclose()


@pytest_asyncio.fixture
async def plain(redis_url: str) -> AsyncIterator[Redis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


async def test_what_one_gateway_spent_the_others_do_not_give_again(redis_url: str) -> None:
    async with running(redis_url, 3) as (one, *others):
        assert one.send(count=60)
        for other in others:
            other.send()  # its copy is asked for by its first use
        await eventually(lambda: not any(other.send(count=10) for other in others), what="the others know")
        await eventually(lambda: not one.send(count=10))


async def test_a_send_never_waits_for_redis(redis_url: str, plain: Redis) -> None:
    async with running(redis_url, 1) as (gateway,):
        gateway.policy = replace(TIGHT, submit_rate_per_device=100_000, submit_burst_per_device=100_000)
        before = (await plain.info("commandstats"))["cmdstat_evalsha"]["calls"] if await has_evalsha(plain) else 0
        assert all(gateway.send() for _ in range(5_000))
        await eventually(lambda: all(touched.bucket.unsettled == 0 for touched in gateway.shared._touched.values()))
        after = (await plain.info("commandstats"))["cmdstat_evalsha"]["calls"] if await has_evalsha(plain) else 0
        assert after - before < 20


async def has_evalsha(plain: Redis) -> bool:
    return "cmdstat_evalsha" in await plain.info("commandstats")


async def test_without_redis_each_gateway_keeps_the_rate_alone() -> None:
    async with running(NOWHERE, 2) as (one, other):
        assert one.send(count=64)
        assert not one.send()
        assert other.send(count=64)
        assert await one.limiter.registration("192.0.2.1") == 0
        one.policy = replace(TIGHT, registrations_per_ip_per_hour=1)
        assert [await one.limiter.registration("192.0.2.7") > 0 for _ in range(3)] == [False, True, True]


async def test_hourly_allowances_are_exact_over_gateways(redis_url: str) -> None:
    policy = replace(TIGHT, registrations_per_ip_per_hour=5)
    async with running(redis_url, 3, policy) as gateways:
        waits = await asyncio.gather(
            *[gateway.limiter.registration("192.0.2.1") for _ in range(4) for gateway in gateways]
        )
        assert sorted(wait > 0 for wait in waits) == [False] * 5 + [True] * 7
        assert all(500_000 < wait <= 720_000 for wait in waits if wait)


async def test_names_in_redis_are_hashes_and_every_key_ends_within_a_day(redis_url: str, plain: Redis) -> None:
    async with running(redis_url, 1) as (gateway,):
        gateway.policy = replace(TIGHT, submit_burst_per_device=10_000_000, submit_rate_per_ip=1)
        assert gateway.send(CANARY, 64)
        await gateway.limiter.registration("198.51.100.77")
        await gateway.limiter.prekey_claim_by(CANARY)
        await eventually(lambda: keys_are(plain, 4), what="all were told")
        for key in await plain.keys():
            assert key.startswith(b"mb:{test}:rate:")
            everything = repr((key, await plain.hgetall(key)))
            for canary in ("CANARY", CANARY.hex(), "198.51.100.77", "192.0.2.1"):
                assert canary not in everything
            assert 0 < await plain.pttl(key) <= 86_400_000


async def keys_are(plain: Redis, count: int) -> bool:
    return len(await plain.keys()) == count


async def test_redis_emptied_in_between_forgets_and_breaks_nothing(redis_url: str, plain: Redis) -> None:
    async with running(redis_url, 1) as (gateway,):
        assert gateway.send(count=64)
        await plain.flushdb()
        await plain.script_flush()
        await eventually(lambda: gateway.send(), what="the bucket is full again")


async def test_a_debt_is_never_more_than_a_burst(redis_url: str, plain: Redis) -> None:
    async with running(redis_url, 4) as gateways:
        assert all(gateway.send(count=64) for gateway in gateways)
        await eventually(lambda: told(gateways), what="all was told")
        (key,) = await plain.keys()
        assert -64 <= float(await plain.hget(key, "tokens") or b"") <= 0


def told(gateways: list[Gateway]) -> bool:
    tables = [gateway.limiter._tables["submit-device"] for gateway in gateways]
    return all(table.of(ALICE, 64, 0.0).unsettled == 0 for table in tables)
