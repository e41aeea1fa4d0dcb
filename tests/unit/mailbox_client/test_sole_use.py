"""One client at a time on one store object."""

from __future__ import annotations

import asyncio

import pytest

from mailbox_client import sole_use
from mailbox_client.errors import ClientError
from mailbox_client.local_store.memory import MemoryStore


async def test_a_store_has_one_user_until_it_is_left() -> None:
    store, one, two = MemoryStore(), object(), object()
    sole_use.take(store, one)
    with pytest.raises(ClientError, match="another client is using this store"):
        sole_use.take(store, two)
    sole_use.leave(store, two)  # not its claim to give back
    with pytest.raises(ClientError, match="another client is using this store"):
        sole_use.take(store, two)
    sole_use.leave(store, one)
    sole_use.leave(store, one)
    sole_use.take(store, two)
    sole_use.leave(store, two)


async def test_other_stores_are_free() -> None:
    one, two, user = MemoryStore(), MemoryStore(), object()
    sole_use.take(one, user)
    sole_use.take(two, user)
    sole_use.leave(one, user)
    sole_use.leave(two, user)


def test_the_claim_of_a_user_whose_event_loop_is_gone_is_void() -> None:
    store, two = MemoryStore(), object()

    async def takes(user: object) -> None:
        sole_use.take(store, user)

    asyncio.run(takes(object()))
    asyncio.run(takes(two))
    sole_use.leave(store, two)
