"""Audit events: bounded, without names, listed newest first (seed 001, 2.9)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from store.audit import REFUSALS_PER_MINUTE_MAX, AuditOutcome, AuditType
from tests.support.accounts import Accounts, accounts


@pytest_asyncio.fixture
async def store(database: str) -> AsyncIterator[Accounts]:
    async with accounts(database) as made:
        yield made


async def record(store: Accounts, event_type: AuditType, actor: bytes | None = None) -> None:
    await store.audit.record(
        store.postgres, event_type, AuditOutcome.DONE, request_id="r", policy_version=3, actor=actor
    )


async def test_an_actor_is_a_hash_that_changes_every_day(store: Accounts) -> None:
    device = b"0123456789abcdef"
    for _ in range(2):
        await record(store, AuditType.DEVICE_ADDED, device)
    await store.clock.advance(86_400)
    await record(store, AuditType.DEVICE_ADDED, device)
    newest, second, first = await store.audit.list()
    assert first.actor_hash == second.actor_hash != newest.actor_hash
    assert device.hex() not in f"{first}{newest}"


async def test_an_event_of_a_rolled_back_transaction_never_was(store: Accounts) -> None:
    async def fail() -> None:
        async with store.postgres.transaction() as connection:
            await store.audit.record(
                connection, AuditType.KEY_ROTATED, AuditOutcome.DONE, request_id="r", policy_version=1
            )
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert await store.audit.list() == ()


async def test_refusals_past_their_number_a_minute_are_left_out(store: Accounts) -> None:
    for _ in range(REFUSALS_PER_MINUTE_MAX + 5):
        await store.audit.record_refusal(AuditType.PROOF_FAILED, request_id="r", policy_version=1)
    assert len(await store.audit.list(limit=1_000)) == REFUSALS_PER_MINUTE_MAX
    await store.clock.advance(60)
    await store.audit.record_refusal(AuditType.PROOF_FAILED, request_id="r", policy_version=1)
    assert len(await store.audit.list(limit=1_000)) == REFUSALS_PER_MINUTE_MAX + 1


async def test_the_list_pages_backwards_and_filters_by_type(store: Accounts) -> None:
    for event_type in (AuditType.INVITE_CREATED, AuditType.KEY_ROTATED, AuditType.INVITE_CREATED):
        await record(store, event_type)
    newest, *_ = await store.audit.list(limit=1)
    older = await store.audit.list(before=newest.audit_id)
    assert [event.event_type for event in older] == ["key.rotated", "invite.created"]
    assert [event.event_type for event in await store.audit.list(event_type=AuditType.KEY_ROTATED)] == ["key.rotated"]
