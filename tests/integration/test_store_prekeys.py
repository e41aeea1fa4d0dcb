"""Prekeys: each one-time key goes out once, whoever asks and however many ask at once (seed 001, 2.2)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable

import pytest
import pytest_asyncio

from protocol.errors import ErrorCode, MailboxError
from protocol.ids import DeviceId, IdentityId
from store.identities import Registered
from store.policy_rules import Policy
from store.prekeys import Claimed, LastResortPrekey, Prekey
from tests.support.accounts import Accounts, Keys, accounts

LAST_RESORT = LastResortPrekey(4_294_967_295, b"l" * 32, b"s" * 64)


@pytest_asyncio.fixture
async def store(database: str) -> AsyncIterator[Accounts]:
    async with accounts(database, pool_max=8) as made:
        yield made


async def refused(call: Awaitable[object]) -> ErrorCode:
    with pytest.raises(MailboxError) as caught:
        await call
    return caught.value.code


def some_keys(count: int, first: int = 0) -> list[Prekey]:
    return [Prekey(first + n, os.urandom(32)) for n in range(count)]


async def claim(
    store: Accounts, claimer: DeviceId, identity: IdentityId, *, key: bytes | None = None, one_time: bool = True
) -> Claimed:
    return await store.prekeys.claim(claimer, identity, key=key, rate_refused_ms=None, one_time_allowed=one_time)


async def a_pair(store: Accounts) -> tuple[Registered, Registered]:
    """An owner and a claimer."""
    (_, owner), (_, claimer) = await store.register(), await store.register()
    return owner, claimer


async def test_200_claimers_of_100_keys_get_each_key_once_and_100_times_the_last_resort(store: Accounts) -> None:
    owner, claimer = await a_pair(store)
    await store.prekeys.upload(owner.device_id, some_keys(100), LAST_RESORT, key=None)
    slots = asyncio.Semaphore(8)  # the pool's size; more would only wait for a connection, and that is bounded

    async def one() -> Prekey | None:
        async with slots:
            (device,) = (await claim(store, claimer.device_id, owner.identity_id)).devices
        assert device.last_resort == LAST_RESORT
        return device.one_time

    given = await asyncio.gather(*[one() for _ in range(200)])
    keys = [prekey for prekey in given if prekey is not None]
    assert len(keys) == len({prekey.key_id for prekey in keys}) == 100
    states = await store.postgres.fetch(
        "SELECT state, count(*), count(reserved_at) AS reserved, count(consumed_at) AS consumed FROM prekeys GROUP BY 1"
    )
    assert [tuple(row) for row in states] == [("consumed", 100, 100, 100)]


async def test_a_claim_repeated_with_its_key_gets_the_same_keys(store: Accounts) -> None:
    owner, claimer = await a_pair(store)
    await store.prekeys.upload(owner.device_id, some_keys(3), LAST_RESORT, key=None)
    first = await claim(store, claimer.device_id, owner.identity_id, key=b"k")
    await store.prekeys.upload(owner.device_id, [], LastResortPrekey(7, b"m" * 32, b"t" * 64), key=None)
    again = await claim(store, claimer.device_id, owner.identity_id, key=b"k")
    assert again.devices == first.devices
    assert again.identity_public_bundle == first.identity_public_bundle
    assert await store.prekeys.count(owner.device_id) == 2


async def test_a_repeat_answers_past_the_rate_and_past_the_claimers_revocation(store: Accounts) -> None:
    owner, claimer = await a_pair(store)
    await store.prekeys.upload(owner.device_id, some_keys(1), None, key=None)
    first = await claim(store, claimer.device_id, owner.identity_id, key=b"k")
    await store.identities.revoke_by_operator(claimer.device_id, request_id="r")
    again = await store.prekeys.claim(
        claimer.device_id, owner.identity_id, key=b"k", rate_refused_ms=1_000, one_time_allowed=False
    )
    assert again.devices == first.devices


async def test_claims_at_once_with_one_key_take_one_prekey(store: Accounts) -> None:
    owner, claimer = await a_pair(store)
    await store.prekeys.upload(owner.device_id, some_keys(10), None, key=None)
    claims = await asyncio.gather(*[claim(store, claimer.device_id, owner.identity_id, key=b"one") for _ in range(8)])
    assert len({claimed.devices for claimed in claims}) == 1
    assert await store.prekeys.count(owner.device_id) == 9


async def test_past_the_targets_limit_only_the_last_resort_key_is_given(store: Accounts) -> None:
    owner, claimer = await a_pair(store)
    await store.prekeys.upload(owner.device_id, some_keys(1), LAST_RESORT, key=None)
    (device,) = (await claim(store, claimer.device_id, owner.identity_id, one_time=False)).devices
    assert (device.one_time, device.last_resort) == (None, LAST_RESORT)
    assert await store.prekeys.count(owner.device_id) == 1


async def test_a_claimer_who_is_too_fast_takes_nothing(store: Accounts) -> None:
    owner, claimer = await a_pair(store)
    await store.prekeys.upload(owner.device_id, some_keys(1), None, key=None)
    asked = store.prekeys.claim(
        claimer.device_id, owner.identity_id, key=b"k", rate_refused_ms=5, one_time_allowed=True
    )
    assert await refused(asked) is ErrorCode.RATE_LIMITED
    assert await store.prekeys.count(owner.device_id) == 1
    assert (await claim(store, claimer.device_id, owner.identity_id, key=b"k")).devices[0].one_time is not None


async def test_a_claim_takes_one_key_of_each_active_device(store: Accounts) -> None:
    store.policy = Policy(registration="open", max_active_devices_per_identity=3)
    (keys, owner), (_, claimer) = await store.register(), await store.register()
    challenge = await store.challenge(owner.device_id, "device.add")
    addition = keys.addition(store.instance, owner.identity_id, owner.device_id, challenge, Keys())
    second, _ = await store.identities.add_device(addition, key=None, request_id="r")
    await store.prekeys.upload(owner.device_id, some_keys(2), None, key=None)
    claimed = await claim(store, claimer.device_id, owner.identity_id)
    assert [(device.device_id, device.one_time is None) for device in claimed.devices] == [
        (owner.device_id, False),
        (second, True),
    ]
    await store.identities.revoke_by_operator(owner.device_id, request_id="r")
    claimed = await claim(store, claimer.device_id, owner.identity_id)
    assert [device.device_id for device in claimed.devices] == [second]


async def test_an_unknown_or_disabled_identity_is_not_found(store: Accounts) -> None:
    owner, claimer = await a_pair(store)
    assert await refused(claim(store, claimer.device_id, IdentityId(os.urandom(16)))) is ErrorCode.NOT_FOUND
    await store.postgres.execute("UPDATE identities SET status = 'disabled' WHERE identity_id = $1", owner.identity_id)
    assert await refused(claim(store, claimer.device_id, owner.identity_id)) is ErrorCode.NOT_FOUND


async def test_running_low_is_told_below_20_with_the_exact_number(store: Accounts) -> None:
    owner, claimer = await a_pair(store)
    await store.prekeys.upload(owner.device_id, some_keys(21), None, key=None)
    assert await store.prekeys.low(owner.device_id) is None
    assert (await claim(store, claimer.device_id, owner.identity_id)).running_low == ()
    assert (await claim(store, claimer.device_id, owner.identity_id)).running_low == ((owner.device_id, 19),)
    assert await store.prekeys.low(owner.device_id) == 19


async def test_an_upload_is_idempotent_by_key_id_and_a_consumed_key_stays_consumed(store: Accounts) -> None:
    owner, claimer = await a_pair(store)
    uploaded = some_keys(2)
    assert await store.prekeys.upload(owner.device_id, uploaded, None, key=None) == 2
    assert await store.prekeys.upload(owner.device_id, uploaded, None, key=None) == 2
    await claim(store, claimer.device_id, owner.identity_id)
    assert await store.prekeys.upload(owner.device_id, uploaded, None, key=None) == 1


async def test_a_key_id_again_with_another_key_is_a_bad_request_and_keeps_nothing(store: Accounts) -> None:
    owner, _ = await a_pair(store)
    await store.prekeys.upload(
        owner.device_id, [Prekey(1, b"a" * 32)], LastResortPrekey(9, b"c" * 32, b"s" * 64), key=None
    )
    for wrong in ([Prekey(5, b"n" * 32), Prekey(1, b"b" * 32)], [Prekey(9, b"d" * 32)]):
        assert await refused(store.prekeys.upload(owner.device_id, wrong, None, key=None)) is ErrorCode.BAD_REQUEST
    other = LastResortPrekey(1, b"z" * 32, b"s" * 64)
    assert await refused(store.prekeys.upload(owner.device_id, [], other, key=None)) is ErrorCode.BAD_REQUEST
    assert await store.prekeys.count(owner.device_id) == 1


async def test_no_more_than_1000_keys_are_kept_even_by_uploads_at_once(store: Accounts) -> None:
    owner, _ = await a_pair(store)
    for first in range(0, 800, 200):
        await store.prekeys.upload(owner.device_id, some_keys(200, first), None, key=None)
    uploads = [store.prekeys.upload(owner.device_id, some_keys(150, first), None, key=None) for first in (800, 950)]
    outcomes = await asyncio.gather(*uploads, return_exceptions=True)
    assert [error.code for error in outcomes if isinstance(error, MailboxError)] == [ErrorCode.PREKEY_LIMIT]
    assert await store.prekeys.count(owner.device_id) == 950


async def test_a_full_device_may_still_change_its_last_resort_key(store: Accounts) -> None:
    owner, _ = await a_pair(store)
    for first in range(0, 1_000, 200):
        await store.prekeys.upload(owner.device_id, some_keys(200, first), None, key=None)
    assert await store.prekeys.upload(owner.device_id, [], LAST_RESORT, key=None) == 1_000


async def test_a_suspect_key_is_handed_out_again_only_after_its_owner_uploaded_it_anew(store: Accounts) -> None:
    owner, claimer = await a_pair(store)
    uploaded = some_keys(1)
    await store.prekeys.upload(owner.device_id, uploaded, None, key=None)
    await store.postgres.execute("UPDATE prekeys SET state = 'suspect'")
    assert (await claim(store, claimer.device_id, owner.identity_id)).devices[0].one_time is None
    assert await store.prekeys.upload(owner.device_id, uploaded, None, key=None) == 1
    assert (await claim(store, claimer.device_id, owner.identity_id)).devices[0].one_time == uploaded[0]


async def test_an_upload_repeated_with_its_key_keeps_its_first_answer(store: Accounts) -> None:
    owner, claimer = await a_pair(store)
    uploaded = some_keys(5)
    assert await store.prekeys.upload(owner.device_id, uploaded, None, key=b"k") == 5
    await claim(store, claimer.device_id, owner.identity_id)
    assert await store.prekeys.upload(owner.device_id, uploaded, None, key=b"k") == 5
    other = store.prekeys.upload(owner.device_id, uploaded[:1], None, key=b"k")
    assert await refused(other) is ErrorCode.IDEMPOTENCY_KEY_REUSED


async def test_a_revoked_device_neither_uploads_nor_claims(store: Accounts) -> None:
    owner, claimer = await a_pair(store)
    await store.identities.revoke_by_operator(claimer.device_id, request_id="r")
    upload = store.prekeys.upload(claimer.device_id, some_keys(1), None, key=None)
    assert await refused(upload) is ErrorCode.DEVICE_REVOKED
    assert await refused(claim(store, claimer.device_id, owner.identity_id)) is ErrorCode.DEVICE_REVOKED
