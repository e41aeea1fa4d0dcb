"""Leaving a client whose store is at work."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from mailbox_client import MailboxClient
from mailbox_client.local_store import StoredAccount
from mailbox_client.local_store.sqlite import SqliteStore
from protocol.ids import DeviceId, IdentityId, InstanceId
from tests.support.waiting import eventually

NOWHERE = "http://127.0.0.1:9"


class SlowDisk:
    """Holds every reservation of ordinals until `go_on`, and tells whether the store was closed under one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.closed_at_rest: bool | None = None
        self._busy = False
        reserve, close = SqliteStore.reserve_ordinals, SqliteStore.close

        def slow_reserve(store: SqliteStore, *args: Any, **kwargs: Any) -> Any:
            self._busy = True
            self.entered.set()
            assert self.go_on.wait(10)
            try:
                return reserve(store, *args, **kwargs)
            finally:
                self._busy = False

        def watched_close(store: SqliteStore) -> None:
            self.closed_at_rest = not self._busy
            close(store)

        monkeypatch.setattr(SqliteStore, "reserve_ordinals", slow_reserve)
        monkeypatch.setattr(SqliteStore, "close", watched_close)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    store = SqliteStore(tmp_path / "device.sqlite")
    with store.transaction():
        store.save_account(
            StoredAccount(
                NOWHERE, InstanceId(b"i" * 16), IdentityId(b"a" * 16), DeviceId(b"d" * 16), b"s" * 32, b"b" * 32
            )
        )
    store.close()
    return tmp_path / "device.sqlite"


async def test_a_client_that_is_cancelled_while_it_opens_closes_its_file_behind_the_call_under_way(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    opening = asyncio.create_task(MailboxClient(NOWHERE, file).__aenter__())
    await eventually(disk.entered.is_set)
    opening.cancel()
    asyncio.get_running_loop().call_later(0.05, disk.go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert disk.closed_at_rest is True


async def test_cancelled_again_while_it_waits_for_the_disk_it_still_does_not_close_under_a_call(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    opening = asyncio.create_task(MailboxClient(NOWHERE, file).__aenter__())
    await eventually(disk.entered.is_set)
    for _ in range(10):
        opening.cancel()
        await asyncio.sleep(0)
    await asyncio.wait((opening,), timeout=10)
    assert opening.cancelled()
    assert disk.closed_at_rest is None
    disk.go_on.set()
    await eventually(lambda: disk.closed_at_rest is not None)
    assert disk.closed_at_rest is True
