"""Rates as one gateway decides them, in memory, without Redis."""

from __future__ import annotations

from dataclasses import replace

from protocol.frames import SendEnvelope
from protocol.ids import DeviceId, IdentityId, MessageId
from store.policy_rules import Policy
from store.rate_limit import RateLimiter
from store.token_bucket import Bucket, BucketTable
from tests.support.clock import FakeClock

ALICE, BOB, CAROL = (DeviceId(name * 16) for name in (b"a", b"b", b"c"))
GENEROUS = Policy(submit_rate_per_device=0, submit_rate_per_ip=0, submit_rate_per_pair=0)


class Limits(RateLimiter):
    """A limiter whose policy and clock the test holds."""

    def __init__(self, policy: Policy, *, loopback_exempt: bool = False) -> None:
        self.policy = policy
        self.clock = FakeClock()
        super().__init__(lambda: self.policy, None, self.clock, loopback_exempt=loopback_exempt)


def envelopes(*to: DeviceId, size: int = 10) -> list[SendEnvelope]:
    return [SendEnvelope(each, MessageId(bytes([at + 1] * 16)), 1, b"x" * size) for at, each in enumerate(to)]


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(10, now=0.0)
    assert [bucket.take(5, 2, 10, 0.0) for _ in range(2)] == [0, 0]
    assert bucket.take(1, 2, 10, 0.0) == 500
    assert bucket.take(1, 2, 10, 0.5) == 0
    assert bucket.take(10, 2, 10, 100.0) == 0  # never more than its burst
    assert bucket.take(1, 2, 10, 99.0) == 500  # a clock that steps back gives nothing


def test_a_table_forgets_the_least_recently_used() -> None:
    table: BucketTable[bytes] = BucketTable(2)
    first = table.of(b"1", 5, 0.0)
    table.of(b"2", 5, 0.0)
    assert table.of(b"1", 5, 0.0) is first
    table.of(b"3", 5, 0.0)
    assert len(table) == 2
    assert table.of(b"1", 5, 0.0) is first


def test_whom_nothing_was_heard_of_for_an_hour_is_forgotten() -> None:
    limits = Limits(Policy())
    limits.submit(ALICE, "192.0.2.1", envelopes(BOB))
    limits.clock.move(1_800)
    limits.submit(ALICE, "192.0.2.2", envelopes(CAROL))
    limits.clock.move(1_801)
    limits.forget_idle()
    assert [len(limits._tables[kind]) for kind in ("submit-device", "submit-address")] == [1, 1]
    assert len(limits._pairs) == 1
    limits.clock.move(3_600)
    limits.forget_idle()
    assert sum(map(len, limits._tables.values())) + len(limits._pairs) == 0


def test_a_send_to_64_recipients_fits_into_the_smallest_burst() -> None:
    limits = Limits(replace(GENEROUS, submit_rate_per_device=1, submit_burst_per_device=64))
    recipients = [DeviceId(bytes([n + 1] * 16)) for n in range(64)]
    assert limits.submit(ALICE, "192.0.2.1", envelopes(*recipients)).rate_refused_ms is None
    assert limits.submit(ALICE, "192.0.2.1", envelopes(BOB)).rate_refused_ms == 1_000
    limits.clock.move(1.0)
    assert limits.submit(ALICE, "192.0.2.1", envelopes(BOB)).rate_refused_ms is None


def test_a_device_is_held_over_all_addresses_and_an_address_over_all_devices() -> None:
    limits = Limits(replace(GENEROUS, submit_rate_per_device=1, submit_burst_per_device=64))
    many = envelopes(*[BOB] * 64)
    assert limits.submit(ALICE, "192.0.2.1", many).rate_refused_ms is None
    assert limits.submit(ALICE, "192.0.2.2", many).rate_refused_ms is not None
    assert limits.submit(CAROL, "192.0.2.1", many).rate_refused_ms is None
    limits = Limits(replace(GENEROUS, submit_rate_per_ip=1, submit_burst_per_ip=64))
    assert limits.submit(ALICE, "192.0.2.1", many).rate_refused_ms is None
    assert limits.submit(CAROL, "192.0.2.1", many).rate_refused_ms is not None
    assert limits.submit(CAROL, "192.0.2.2", many).rate_refused_ms is None


def test_loopback_is_exempt_only_where_that_is_set() -> None:
    tight = replace(GENEROUS, submit_rate_per_ip=1, submit_burst_per_ip=64, registrations_per_ip_per_hour=1)
    many = envelopes(*[BOB] * 64)
    exempt, held = Limits(tight, loopback_exempt=True), Limits(tight)
    for address in ("127.0.0.1", "::1"):
        assert [exempt.submit(ALICE, address, many).rate_refused_ms for _ in range(3)] == [None] * 3
        assert [exempt.call_of_address(address) for _ in range(100)] == [0] * 100
        assert held.submit(ALICE, address, many).rate_refused_ms is None
        assert held.submit(ALICE, address, many).rate_refused_ms is not None
    assert exempt.submit(ALICE, "192.0.2.1", many).rate_refused_ms is None
    assert exempt.submit(ALICE, "192.0.2.1", many).rate_refused_ms is not None


def test_a_pair_is_counted_in_units_of_16_kib_and_refused_by_envelope() -> None:
    limits = Limits(replace(GENEROUS, submit_rate_per_pair=1, submit_burst_per_pair=64))
    # 60 units of Bob's 64: the first of the two that follow goes, the second does not.
    assert limits.submit(ALICE, "192.0.2.1", envelopes(BOB, size=60 * 16_384)) == (None, (), 0)
    mixed = [*envelopes(BOB, size=3 * 16_384), *envelopes(CAROL), *envelopes(BOB, size=16_385)]
    refused = limits.submit(ALICE, "192.0.2.1", mixed)
    assert (refused.pair_refused, refused.pair_retry_after_ms) == ((2,), 1_000)
    # Refused as a whole it cost nothing.
    assert limits.submit(ALICE, "192.0.2.1", mixed[:2]).pair_refused == ()
    assert limits.submit(CAROL, "192.0.2.1", envelopes(BOB, size=60 * 16_384)).pair_refused == ()


def test_an_empty_body_costs_one_unit() -> None:
    limits = Limits(replace(GENEROUS, submit_rate_per_pair=1, submit_burst_per_pair=64))
    refused = limits.submit(ALICE, "192.0.2.1", envelopes(*[BOB] * 65, size=0))
    assert refused.pair_refused == (64,)


def test_a_rate_of_0_is_no_limit() -> None:
    limits = Limits(GENEROUS)
    assert {limits.submit(ALICE, "192.0.2.1", envelopes(*[BOB] * 64)) for _ in range(200)} == {(None, (), 0)}


def test_a_policy_change_counts_from_the_next_send() -> None:
    limits = Limits(replace(GENEROUS, submit_rate_per_device=1, submit_burst_per_device=64))
    many = envelopes(*[BOB] * 64)
    assert limits.submit(ALICE, "192.0.2.1", many).rate_refused_ms is None
    limits.policy = GENEROUS
    assert limits.submit(ALICE, "192.0.2.1", many).rate_refused_ms is None


def test_other_calls_have_an_allowance_of_their_own() -> None:
    limits = Limits(replace(GENEROUS, submit_rate_per_device=1, submit_burst_per_device=64))
    assert [limits.call_of_device(ALICE) for _ in range(64)] == [0] * 64
    assert limits.call_of_device(ALICE) == 1_000
    assert limits.submit(ALICE, "192.0.2.1", envelopes(BOB)).rate_refused_ms is None


async def test_hourly_allowances_are_counted_by_whom_they_are_about() -> None:
    limits = Limits(
        replace(
            GENEROUS,
            registrations_per_ip_per_hour=2,
            prekey_claims_per_claimer_per_hour=2,
            prekey_claims_per_target_per_hour=2,
        )
    )
    assert [await limits.registration("192.0.2.1") for _ in range(3)] == [0, 0, 1_800_000]
    assert await limits.registration("192.0.2.2") == 0
    assert [await limits.prekey_claim_by(ALICE) for _ in range(3)] == [0, 0, 1_800_000]
    assert [await limits.prekey_claim_of(IdentityId(b"t" * 16)) for _ in range(3)] == [0, 0, 1_800_000]
    limits.clock.move(1_800)
    assert await limits.registration("192.0.2.1") == 0
