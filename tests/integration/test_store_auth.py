"""Challenges: hashed, bound, short-lived, good for one success (seed 001, 2.3)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from protocol.errors import ErrorCode, MailboxError
from protocol.ids import DeviceId
from store.auth import require_active
from tests.support.accounts import Accounts, accounts
from tests.support.services import set_clock_offset


@pytest_asyncio.fixture
async def store(database: str) -> AsyncIterator[Accounts]:
    async with accounts(database, pool_max=8) as made:
        yield made


async def consumed(store: Accounts, challenge: bytes, device: DeviceId, purpose: str = "token") -> bool:
    try:
        await store.challenges.consume(store.postgres, challenge, device, purpose)
    except MailboxError as error:
        if error.code is not ErrorCode.UNAUTHENTICATED:
            raise
        return False
    return True


async def test_a_challenge_is_consumed_once_even_when_many_race(store: Accounts) -> None:
    _, registered = await store.register()
    challenge = await store.challenge(registered.device_id, "token")
    outcomes = await asyncio.gather(*[consumed(store, challenge, registered.device_id) for _ in range(16)])
    assert sorted(outcomes) == [False] * 15 + [True]


async def test_a_challenge_is_good_for_its_device_and_purpose_alone(store: Accounts) -> None:
    (_, one), (_, other) = await store.register(), await store.register()
    challenge = await store.challenge(one.device_id, "token")
    assert not await consumed(store, challenge, other.device_id)
    assert not await consumed(store, challenge, one.device_id, "device.revoke")
    assert await consumed(store, challenge, one.device_id)


async def test_a_challenge_runs_out_after_its_lifetime(store: Accounts, database: str) -> None:
    _, registered = await store.register()
    challenge = await store.challenge(registered.device_id, "token")
    late = await store.challenge(registered.device_id, "token")
    connection = await asyncpg.connect(database)
    try:
        await set_clock_offset(connection, 59)
        assert await consumed(store, challenge, registered.device_id)
        await set_clock_offset(connection, 61)
        assert not await consumed(store, late, registered.device_id)
    finally:
        await connection.close()


async def test_a_newer_challenge_evicts_no_older_one(store: Accounts) -> None:
    _, registered = await store.register()
    challenges = [await store.challenge(registered.device_id, "token") for _ in range(20)]
    assert [await consumed(store, challenge, registered.device_id) for challenge in challenges] == [True] * 20


async def test_an_unknown_device_gets_a_challenge_that_looks_the_same(store: Accounts) -> None:
    _, registered = await store.register()
    known = await store.challenges.issue(registered.device_id, "token", lifetime_s=60)
    unknown = await store.challenges.issue(DeviceId(os.urandom(16)), "token", lifetime_s=60)
    assert len(known.value) == len(unknown.value) == 32
    assert abs(known.expires_at_ms - unknown.expires_at_ms) < 60_000


async def test_the_challenge_itself_is_not_in_the_table(store: Accounts) -> None:
    _, registered = await store.register()
    challenge = await store.challenge(registered.device_id, "token")
    rows = await store.postgres.fetch("SELECT auth_challenges::text AS row FROM auth_challenges")
    assert [challenge.hex() in row["row"] for row in rows] == [False]


async def test_a_rolled_back_use_gives_the_challenge_back(store: Accounts) -> None:
    _, registered = await store.register()
    challenge = await store.challenge(registered.device_id, "token")

    async def fail() -> None:
        async with store.postgres.transaction() as connection:
            await store.challenges.consume(connection, challenge, registered.device_id, "token")
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert await consumed(store, challenge, registered.device_id)


async def test_whoever_is_revoked_or_unknown_may_not_act(store: Accounts) -> None:
    _, registered = await store.register()
    found = await require_active(store.postgres, registered.device_id)
    assert found.identity_id == registered.identity_id
    await store.identities.revoke_by_operator(registered.device_id, request_id="r")
    for device in (registered.device_id, DeviceId(os.urandom(16))):
        with pytest.raises(MailboxError) as caught:
            await require_active(store.postgres, device)
        assert caught.value.code is ErrorCode.DEVICE_REVOKED
