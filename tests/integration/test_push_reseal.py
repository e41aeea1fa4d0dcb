"""After a rotation of the push-token key no route needs the old key for long, and every one still wakes its device."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from protocol.ids import DeviceId
from runtime.clock import SystemClock
from runtime.metrics import Metrics
from store.instance import push_token_key_in_use
from store.push_reseal import PushReseal
from store.push_seal import PushSeal, Sealed
from tests.support.wakes import ScriptedProvider, WorkerParts, put_route, worker_parts
from worker import reseal
from worker.metrics import WorkerMetrics
from worker.reseal import ResealLoop

OLD, NEW, STAGED = b"o" * 32, b"n" * 32, b"s" * 32
BEFORE = PushSeal(1, {1: OLD})
AFTER = PushSeal(2, {1: OLD, 2: NEW, 3: STAGED})
RETIRED = PushSeal(2, {2: NEW, 3: STAGED})


@pytest.fixture
async def worker(database: str, redis_url: str) -> AsyncIterator[WorkerParts]:
    async with worker_parts(database, redis_url, seal=RETIRED) as parts:
        yield parts


def a_loop(worker: WorkerParts, superseded: tuple[int, ...] = (1,)) -> ResealLoop:
    return ResealLoop(PushReseal(worker.stores.postgres, AFTER, superseded), WorkerMetrics(Metrics()), SystemClock())


async def keys_in_use(worker: WorkerParts) -> list[int]:
    return [key for key in (1, 2, 3) if await push_token_key_in_use(worker.stores.postgres, key)]


async def test_all_routes_are_sealed_anew_and_still_open(worker: WorkerParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reseal, "PAGE_MAX", 3)
    devices = [await worker.device(route=False) for _ in range(8)]
    for device in devices:
        await put_route(worker.stores, device, f"http://127.0.0.1:1/{device.hex()}", seal=BEFORE)
    rows = await worker.stores.postgres.fetch("SELECT version, updated_at FROM push_routes ORDER BY device_id")
    loop = a_loop(worker)
    assert await loop.walk() == 8
    assert await loop.walk() == 0
    assert await keys_in_use(worker) == [2]
    assert rows == await worker.stores.postgres.fetch("SELECT version, updated_at FROM push_routes ORDER BY device_id")
    # The old key is retired by now: each is woken at its own address.
    for device in devices:
        await worker.submit(device)
    await worker.turn()
    provider = worker.provider
    assert isinstance(provider, ScriptedProvider)
    assert {target.settings["url"].rpartition("/")[2] for target in provider.pushed} == {d.hex() for d in devices}


async def test_what_another_process_seals_with_the_staged_key_is_left_alone(worker: WorkerParts) -> None:
    """It has been restarted after the rotation, this worker has not: it must not take its routes back."""
    device = await worker.device(route=False)
    await put_route(worker.stores, device, "http://127.0.0.1:1/", seal=PushSeal(3, {3: STAGED}))
    assert await a_loop(worker).walk() == 0
    assert await keys_in_use(worker) == [3]


async def test_a_route_that_is_put_meanwhile_is_not_overwritten(
    worker: WorkerParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = await worker.device(route=False)
    await put_route(worker.stores, device, "http://127.0.0.1:1/before", seal=BEFORE)
    loop = a_loop(worker)
    fetch = worker.stores.postgres.fetch

    async def and_put(*arguments: object) -> object:
        rows = await fetch(*arguments)  # type: ignore[arg-type]
        await put_route(worker.stores, device, "http://127.0.0.1:1/after", seal=BEFORE)
        return rows

    monkeypatch.setattr(worker.stores.postgres, "fetch", and_put)
    assert await loop.walk() == 0
    monkeypatch.undo()
    assert await loop.walk() == 1
    assert await url_of(worker, device) == "http://127.0.0.1:1/after"


async def url_of(worker: WorkerParts, device: DeviceId) -> str:
    row = await worker.stores.postgres.fetchrow("SELECT * FROM push_routes WHERE device_id = $1", device)
    assert row is not None
    return RETIRED.open(device, "gateway", Sealed(row["seal_key_id"], row["sealed_address"]))["url"]


async def test_a_seal_that_does_not_open_stops_no_other(worker: WorkerParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reseal, "PAGE_MAX", 1)
    for _ in range(3):
        await put_route(worker.stores, await worker.device(route=False), "http://127.0.0.1:1/", seal=BEFORE)
    await worker.stores.postgres.execute(
        "UPDATE push_routes SET sealed_address = '\\x00'"
        " WHERE device_id = (SELECT min(device_id::text)::uuid FROM push_routes)"
    )
    loop = a_loop(worker)
    assert await loop.walk() == 2
    assert await keys_in_use(worker) == [1, 2]
    assert loop._metrics.seals_broken._value.get() == 1


async def test_without_a_superseded_key_nothing_is_read(worker: WorkerParts) -> None:
    assert not PushReseal(worker.stores.postgres, BEFORE, ()).needed
