"""Push routes: sealed at rest, told about without their address, new ones make waiting mail due (seed 001, 2.7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from protocol.errors import ErrorCode, MailboxError
from store.push_routes import PushAddress
from store.push_seal import SealBroken
from tests.support.accounts import Accounts, accounts
from tests.support.waiting import eventually

WEBPUSH = PushAddress("webpush", {"endpoint": "https://push.example/canary-endpoint", "p256dh": "p", "auth": "a"})


@pytest_asyncio.fixture
async def store(database: str) -> AsyncIterator[Accounts]:
    async with accounts(database) as made:
        yield made


async def test_the_worker_gets_the_address_back_and_the_table_does_not_show_it(store: Accounts) -> None:
    _, registered = await store.register()
    state = await store.push_routes.put(registered.device_id, WEBPUSH, key=None)
    route = await store.push_routes.route(registered.device_id)
    assert route is not None
    assert (route.address, route.wake_route_id, route.version) == (WEBPUSH, state.wake_route_id, 1)
    row = await store.postgres.fetchrow("SELECT sealed_address, push_routes::text AS shown FROM push_routes")
    assert row is not None
    assert b"canary" not in row["sealed_address"]
    assert "canary" not in row["shown"]
    assert b"canary".hex() not in row["shown"]


async def test_a_row_moved_to_another_device_or_provider_does_not_open(store: Accounts) -> None:
    (_, one), (_, other) = await store.register(), await store.register()
    await store.push_routes.put(one.device_id, PushAddress("fcm", {"token": "t"}), key=None)
    await store.postgres.execute("UPDATE push_routes SET device_id = $1", other.device_id)
    with pytest.raises(SealBroken):
        await store.push_routes.route(other.device_id)
    await store.postgres.execute("UPDATE push_routes SET device_id = $1, provider = 'apns'", one.device_id)
    with pytest.raises(SealBroken):
        await store.push_routes.route(one.device_id)


async def test_the_same_address_again_keeps_the_route_and_another_one_makes_a_new_one(store: Accounts) -> None:
    _, registered = await store.register()
    first = await store.push_routes.put(registered.device_id, WEBPUSH, key=None)
    assert await store.push_routes.put(registered.device_id, WEBPUSH, key=None) == first
    second = await store.push_routes.put(registered.device_id, PushAddress("fcm", {"token": "t"}), key=None)
    assert second.wake_route_id != first.wake_route_id
    route = await store.push_routes.route(registered.device_id)
    assert route is not None
    assert (route.version, route.address.provider) == (2, "fcm")


async def test_putting_a_gone_route_again_makes_it_active(store: Accounts) -> None:
    _, registered = await store.register()
    await store.push_routes.put(registered.device_id, WEBPUSH, key=None)
    await store.postgres.execute("UPDATE push_routes SET status = 'gone', gone_told_at = mailboxd_now()")
    assert (await store.push_routes.put(registered.device_id, WEBPUSH, key=None)).status == "active"
    assert await store.postgres.fetchval("SELECT gone_told_at FROM push_routes") is None


async def test_an_old_key_still_opens_and_the_next_put_seals_with_the_new_one(database: str) -> None:
    async with accounts(database) as before:
        _, registered = await before.register()
        await before.push_routes.put(registered.device_id, WEBPUSH, key=None)
        rotated = Accounts(before.postgres, before.instance, push_keys={1: b"p" * 32, 2: b"q" * 32})
        route = await rotated.push_routes.route(registered.device_id)
        assert route is not None
        assert route.address == WEBPUSH
        await rotated.push_routes.put(registered.device_id, WEBPUSH, key=None)
        assert await before.postgres.fetchval("SELECT seal_key_id FROM push_routes") == 2
        retired = Accounts(before.postgres, before.instance, push_keys={3: b"r" * 32})
        with pytest.raises(SealBroken):
            await retired.push_routes.route(registered.device_id)
        assert (await retired.push_routes.put(registered.device_id, WEBPUSH, key=None)).status == "active"


async def test_a_new_route_makes_the_open_intent_due(store: Accounts) -> None:
    _, registered = await store.register()
    await store.postgres.execute(
        "INSERT INTO outbox_events (event_id, aggregate_ref, task_type, state, next_attempt_at, created_at, updated_at)"
        " VALUES (gen_random_uuid(), $1, 'wake_device', 'retry_wait', mailboxd_now() + interval '1 hour',"
        " timestamptz 'epoch', timestamptz 'epoch')",
        registered.device_id,
    )
    await store.push_routes.put(registered.device_id, WEBPUSH, key=None)
    row = await store.postgres.fetchrow("SELECT state, next_attempt_at <= mailboxd_now() AS due FROM outbox_events")
    assert row is not None
    assert row["due"]
    assert row["state"] in ("pending", "retry_wait")


async def test_a_deleted_route_is_gone_and_deleting_again_is_fine(store: Accounts) -> None:
    _, registered = await store.register()
    await store.push_routes.put(registered.device_id, WEBPUSH, key=None)
    for _ in range(2):
        await store.push_routes.delete(registered.device_id, key=b"d")
        await store.push_routes.delete(registered.device_id, key=None)
    assert await store.push_routes.state(registered.device_id) is None
    assert await store.push_routes.route(registered.device_id) is None


async def test_a_put_repeated_with_its_key_answers_the_first_route(store: Accounts) -> None:
    _, registered = await store.register()
    first = await store.push_routes.put(registered.device_id, WEBPUSH, key=b"k")
    await store.push_routes.put(registered.device_id, PushAddress("fcm", {"token": "t"}), key=None)
    assert await store.push_routes.put(registered.device_id, WEBPUSH, key=b"k") == first
    with pytest.raises(MailboxError) as caught:
        await store.push_routes.put(registered.device_id, PushAddress("fcm", {"token": "t"}), key=b"k")
    assert caught.value.code is ErrorCode.IDEMPOTENCY_KEY_REUSED


async def test_a_revoked_device_has_no_route_and_gets_none(store: Accounts) -> None:
    _, registered = await store.register()
    await store.push_routes.put(registered.device_id, WEBPUSH, key=None)
    await store.identities.revoke_by_operator(registered.device_id, request_id="r")
    assert await store.push_routes.route(registered.device_id) is None
    for call in (
        store.push_routes.put(registered.device_id, WEBPUSH, key=None),
        store.push_routes.delete(registered.device_id, key=None),
    ):
        with pytest.raises(MailboxError) as caught:
            await call
        assert caught.value.code is ErrorCode.DEVICE_REVOKED


async def test_a_put_that_meets_a_revocation_under_way_leaves_no_route(store: Accounts) -> None:
    _, registered = await store.register()
    async with store.postgres.transaction() as revoking:
        await revoking.execute("SELECT FROM mailboxes FOR NO KEY UPDATE")
        putting = asyncio.create_task(store.push_routes.put(registered.device_id, WEBPUSH, key=None))
        await eventually(lambda: somebody_waits(store), what="the put waits for the mailbox")
        await revoking.execute("UPDATE mailboxes SET state = 2")
    with pytest.raises(MailboxError) as caught:
        await putting
    assert caught.value.code is ErrorCode.DEVICE_REVOKED
    assert await store.push_routes.state(registered.device_id) is None


async def somebody_waits(store: Accounts) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(await store.postgres.fetchval(query))
