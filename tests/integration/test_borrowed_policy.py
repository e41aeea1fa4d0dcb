"""A policy value that is set for a while comes back, also when whoever set it was killed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailboxd.borrowed_policy import NOTE_FILE, borrowed, give_back, is_borrowed
from runtime.clock import SystemClock
from runtime.logs import DeviceTags
from store.audit import AuditStore
from store.policy import PolicyStore
from store.postgres import Postgres

KEY = "submit_rate_per_pair"


@pytest.fixture
async def store(database: str) -> AsyncIterator[PolicyStore]:
    postgres = Postgres(database, pool_max=2)
    await postgres.open()
    try:
        clock = SystemClock()
        yield PolicyStore(postgres, AuditStore(postgres, DeviceTags(bytes(32), clock), clock))
    finally:
        await postgres.close()


async def rate(store: PolicyStore) -> int:
    return (await store.load()).submit_rate_per_pair


async def test_it_holds_in_the_block_and_comes_back_after_it_however_it_ends(
    store: PolicyStore, tmp_path: Path
) -> None:
    before = await rate(store)
    with pytest.raises(RuntimeError):
        async with borrowed(tmp_path, store, KEY, 0, request_id="demo"):
            assert (before, await rate(store)) == (5, 0)
            assert is_borrowed(tmp_path)
            raise RuntimeError
    assert await rate(store) == before
    assert list(tmp_path.iterdir()) == []


async def killed_while_borrowing(store: PolicyStore, directory: Path) -> None:
    """What a SIGKILL inside the block leaves."""
    async with borrowed(directory, store, KEY, 0, request_id="demo"):
        note = (directory / NOTE_FILE).read_bytes()
    await store.change([f"{KEY}=0"], request_id="demo")
    (directory / NOTE_FILE).write_bytes(note)


async def test_whoever_comes_next_gives_back_what_a_killed_one_borrowed(store: PolicyStore, tmp_path: Path) -> None:
    await store.change([f"{KEY}=7"], request_id="operator")
    await killed_while_borrowing(store, tmp_path)
    assert is_borrowed(tmp_path)
    await give_back(tmp_path, store, request_id="up")
    assert await rate(store) == 7
    assert not is_borrowed(tmp_path)


async def test_killed_twice_the_first_value_still_comes_back(store: PolicyStore, tmp_path: Path) -> None:
    await killed_while_borrowing(store, tmp_path)
    await give_back(tmp_path, store, request_id="up")  # as the second demo's own server does at its start
    await killed_while_borrowing(store, tmp_path)
    await give_back(tmp_path, store, request_id="up")
    assert await rate(store) == 5


async def test_what_somebody_set_since_stays(store: PolicyStore, tmp_path: Path) -> None:
    await killed_while_borrowing(store, tmp_path)
    await store.change([f"{KEY}=9"], request_id="operator")
    await give_back(tmp_path, store, request_id="up")
    assert await rate(store) == 9
    assert not is_borrowed(tmp_path)


@pytest.mark.parametrize(
    "note", ["", "{", "[]", '{"key": "nonsense", "value": 0, "before": 1}', '{"key": "ttl_s_min"}']
)
async def test_a_damaged_note_changes_nothing_and_is_gone(store: PolicyStore, tmp_path: Path, note: str) -> None:
    (tmp_path / NOTE_FILE).write_text(note)
    before = await store.load()
    await give_back(tmp_path, store, request_id="up")
    assert await store.load() == before
    assert not is_borrowed(tmp_path)
