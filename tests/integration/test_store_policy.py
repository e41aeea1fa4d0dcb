"""The policy: changed whole or not at all, versioned, audited, followed by every process within seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from runtime.supervise import Progress
from store.policy import REFRESH_SECONDS, PolicyCache
from store.policy_rules import PolicyError
from tests.support.accounts import Accounts, accounts


@pytest_asyncio.fixture
async def store(database: str) -> AsyncIterator[Accounts]:
    async with accounts(database, pool_max=8) as made:
        yield made


async def test_a_change_raises_the_version_by_one_and_leaves_one_audit_event(store: Accounts) -> None:
    before = await store.policies.load()
    after = await store.policies.change(["ttl_s_min=120", "registration=open"], request_id="r1")
    assert (after.version, after.ttl_s_min, after.registration) == (before.version + 1, 120, "open")
    assert await store.policies.load() == after
    (event,) = await store.audit.list()
    assert (event.event_type, event.outcome, event.request_id, event.policy_version) == (
        "policy.changed",
        "done",
        "r1",
        after.version,
    )
    assert event.detail == {"settings": ["registration", "ttl_s_min"]}


@pytest.mark.parametrize(
    "assignments",
    [["ttl_s_min=0"], ["ttl_s_default=120", "ttl_s_min=240"], ["nonsense=1"], ["ttl_s_min=120", "registration=maybe"]],
)
async def test_a_change_with_a_mistake_changes_nothing(store: Accounts, assignments: list[str]) -> None:
    before = await store.policies.load()
    with pytest.raises(PolicyError):
        await store.policies.change(assignments, request_id="r")
    assert await store.policies.load() == before
    assert await store.audit.list() == ()


async def test_a_change_that_changes_nothing_keeps_the_version(store: Accounts) -> None:
    before = await store.policies.load()
    assert await store.policies.change([f"ttl_s_min={before.ttl_s_min}"], request_id="r") == before
    assert await store.audit.list() == ()


async def test_changes_at_once_are_all_kept(store: Accounts) -> None:
    before = await store.policies.load()
    settings = ["ttl_s_min=99", "acked_cleanup_s=33", "challenge_ttl_s=30", "registration=invite"]
    await asyncio.gather(*[store.policies.change([setting], request_id="r") for setting in settings])
    after = await store.policies.load()
    assert after.version == before.version + 4
    assert (after.ttl_s_min, after.acked_cleanup_s, after.challenge_ttl_s, after.registration) == (99, 33, 30, "invite")


async def test_settings_of_a_newer_release_survive_a_change_by_this_one(store: Accounts) -> None:
    await store.postgres.execute("""UPDATE instances SET policy = policy || '{"of_tomorrow": 7}'::jsonb""")
    await store.policies.change(["ttl_s_min=61"], request_id="r")
    assert (await store.postgres.fetchval("SELECT policy FROM instances"))["of_tomorrow"] == 7


async def test_a_process_follows_a_change_and_a_restore_that_takes_the_version_back(store: Accounts) -> None:
    cache = await PolicyCache.open(store.policies, store.clock)
    assert not await cache.refresh()
    first = cache()
    await store.policies.change(["ttl_s_min=61"], request_id="r")
    assert await cache.refresh()
    assert cache().ttl_s_min == 61
    await store.postgres.execute(
        "UPDATE instances SET policy_version = $1, policy = policy || '{\"ttl_s_min\": 60}'::jsonb", first.version
    )
    assert await cache.refresh()
    assert (cache().version, cache().ttl_s_min) == (first.version, 60)


async def test_the_loop_keeps_the_last_policy_while_what_is_stored_is_no_policy(store: Accounts) -> None:
    cache = await PolicyCache.open(store.policies, store.clock)
    progress = Progress(store.clock)
    loop = asyncio.create_task(cache.run(progress))
    try:
        await store.postgres.execute("UPDATE instances SET policy = '{\"ttl_s_min\": 0}'::jsonb, policy_version = 9")
        await turned(store, progress)
        assert cache().ttl_s_min == 60
        await store.postgres.execute("UPDATE instances SET policy = '{\"ttl_s_min\": 70}'::jsonb, policy_version = 10")
        await turned(store, progress)
        assert cache().ttl_s_min == 70
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


async def turned(store: Accounts, progress: Progress) -> None:
    """Let the loop look once more."""
    from tests.support.waiting import eventually

    turns = progress.turns
    await eventually(lambda: store.clock.sleepers == 1)
    await store.clock.advance(REFRESH_SECONDS)
    await eventually(lambda: progress.turns > turns)
