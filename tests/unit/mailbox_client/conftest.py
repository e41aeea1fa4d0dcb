"""Both stores under one name: a test that takes `open_store` runs on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mailbox_client.local_store import LocalStore
from mailbox_client.local_store.memory import MemoryStore
from mailbox_client.local_store.sqlite import SqliteStore

OpenStore = Callable[[], LocalStore]


@pytest.fixture(params=["memory", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Opens the test's store; opening it again finds what was committed, as the next process would."""
    if request.param == "memory":
        kept = MemoryStore()
        yield lambda: kept
        return
    opened: list[SqliteStore] = []

    def open_again() -> LocalStore:
        for store in opened:
            store.close()
        opened.append(SqliteStore(tmp_path / "device.sqlite"))
        return opened[-1]

    yield open_again
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> LocalStore:
    return open_store()
