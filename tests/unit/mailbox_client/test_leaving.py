"""Leaving a client whose store is at work."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from mailbox_client import MailboxClient, driver
from mailbox_client.engine import Engine
from mailbox_client.engine_io import Input, Output, Submit
from mailbox_client.errors import ClientStopped
from mailbox_client.local_store import StoredAccount
from mailbox_client.local_store.sqlite import SqliteStore
from protocol.frames import SendEnvelope
from protocol.ids import DeviceId, IdentityId, InstanceId, MessageId
from tests.support.waiting import eventually

NOWHERE = "http://127.0.0.1:9"


def an_envelope() -> SendEnvelope:
    return SendEnvelope(DeviceId(b"r" * 16), MessageId(b"m" * 16), 1, b"sealed")


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


async def test_whoever_waits_for_a_step_that_a_bug_ends_is_told_that_the_client_stopped(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Engine.step

    def broken_step(engine: Engine, now_ms: int, inputs: list[Input]) -> list[Output]:
        if any(isinstance(one, Submit) for one in inputs):
            raise RuntimeError("a bug")
        return step(engine, now_ms, inputs)

    monkeypatch.setattr(Engine, "step", broken_step)
    async with MailboxClient(NOWHERE, file) as client:
        with pytest.raises(ClientStopped):
            await asyncio.wait_for(client.post([an_envelope()]), 10)


async def test_whoever_waits_for_a_step_that_is_cut_off_is_told_that_the_client_stopped(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk hangs, and the client is left: it waits its time and gives up the step under way."""
    entered, go_on = threading.Event(), threading.Event()
    step = Engine.step

    def hanging_step(engine: Engine, now_ms: int, inputs: list[Input]) -> list[Output]:
        if any(isinstance(one, Submit) for one in inputs):
            entered.set()
            assert go_on.wait(20)
        return step(engine, now_ms, inputs)

    monkeypatch.setattr(Engine, "step", hanging_step)
    monkeypatch.setattr(driver, "CLOSE_TIMEOUT_S", 0.05)
    client = await MailboxClient(NOWHERE, file).__aenter__()
    posting = asyncio.create_task(client.post([an_envelope()]))
    await eventually(entered.is_set)
    leaving = asyncio.create_task(client.__aexit__(None, None, None))
    with pytest.raises(ClientStopped):
        await asyncio.wait_for(posting, 10)
    go_on.set()
    await leaving
