"""A worker killed by SIGKILL, a process of its own, at every place that matters forgets nothing (seed 000, 5)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store.redis_client import connect
from tests.support.push_receiver import PushReceiver, push_receiver
from tests.support.waiting import eventually, in_time
from tests.support.wakes import WorkerParts, worker_parts
from tests.support.worker_process import WorkerLab, WorkerProcess


@pytest.fixture
def lab(database: str, redis_url: str, tmp_path: Path) -> WorkerLab:
    return WorkerLab(database, redis_url, tmp_path)


@pytest.fixture
async def parts(database: str, redis_url: str, lab: WorkerLab) -> AsyncIterator[WorkerParts]:
    """For submitting and looking; its own worker is never turned."""
    async with worker_parts(database, redis_url, seal=lab.seal) as made:
        yield made


@pytest.fixture
async def receiver() -> AsyncIterator[PushReceiver]:
    async with push_receiver() as made:
        yield made


async def pushed(parts: WorkerParts, device: bytes, times: int = 1) -> bool:
    row = await parts.intent(device)  # type: ignore[arg-type]
    return bool(row["state"] == "retry_wait" and row["pushes_accepted"] == times)


async def test_a_worker_wakes_a_device_within_250_ms_of_the_commit(
    lab: WorkerLab, parts: WorkerParts, receiver: PushReceiver
) -> None:
    async with lab.worker(settings={"MAILBOXD_DISPATCH_POLL_S": "30"}) as worker:

        async def pushed_after() -> float:
            device = await parts.device(url=receiver.url)
            await parts.submit(device)
            committed, before = asyncio.get_running_loop().time(), len(receiver.received)
            await lab.ring()
            await receiver.wait_for(before + 1)
            took = asyncio.get_running_loop().time() - committed
            await eventually(lambda: pushed(parts, device))
            assert await worker.metric("pushes_total") == before + 1
            return took

        await in_time(pushed_after, at_most_s=0.25)


@pytest.mark.parametrize(
    ("place", "pushes"),
    [
        ("dispatcher.after_commit", 1),
        ("job.after_side_effect", 2),  # at least once, collapsed by the provider's topic
        ("job.after_completion", 1),
        pytest.param("job.before_handler", 1, marks=pytest.mark.slow),
        pytest.param("job.before_settle", 1, marks=pytest.mark.slow),
    ],
)
async def test_killed_at_any_point_the_wake_is_not_forgotten(
    lab: WorkerLab, parts: WorkerParts, receiver: PushReceiver, place: str, pushes: int
) -> None:
    device = await parts.device(url=receiver.url)
    async with lab.worker(faults=f"{place}=kill") as dying:
        await parts.submit(device)
        assert await dying.ended() == -signal.SIGKILL
    await parts.skip(61)  # past the deadline of what was published or begun, and past the push's repeat
    if place in ("job.after_completion", "job.before_settle"):
        await parts.skip(-61)  # recorded already: nothing may come before its repeat
    async with lab.worker():
        await eventually(lambda: pushed(parts, device))
        await receiver.wait_for(pushes)
        assert len(receiver.received) == pushes


@pytest.mark.slow
async def test_killed_in_every_attempt_it_ends_as_a_dead_letter(
    lab: WorkerLab, parts: WorkerParts, receiver: PushReceiver
) -> None:
    device = await parts.device(url=receiver.url)
    await parts.submit(device)
    for _ in range(8):
        async with lab.worker(faults="job.before_handler=kill", ready=False) as dying:
            assert await dying.ended() == -signal.SIGKILL
        await parts.skip(61)
    async with lab.worker() as worker:
        await eventually(lambda: is_state(parts, device, "dead_letter"))
        assert await worker.metric("dead_letters_total") == 1
        await eventually(lambda: _hints_at(worker, '"dead_letters": 1'))  # ready all the same
    assert receiver.received == []
    assert not await parts.wake_open(device)
    await parts.submit(device)  # the next mail is not held up by it
    async with lab.worker():
        await receiver.wait_for(1)


async def _hints_at(worker: WorkerProcess, hint: str) -> bool:
    status, text = await worker.get("/readyz")
    return status == 200 and hint in text


async def test_a_worker_outlives_a_database_that_throws_it_out(
    lab: WorkerLab, parts: WorkerParts, receiver: PushReceiver
) -> None:
    throw_out = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'mailboxd worker%'"
    )
    async with lab.worker() as worker:
        for number in range(1, 4):
            device = await parts.device(url=receiver.url)
            assert await parts.stores.postgres.fetchval(throw_out) > 0
            await parts.submit(device)
            await receiver.wait_for(number)
        await eventually(worker.is_ready)
        assert worker.process.returncode is None


async def is_state(parts: WorkerParts, device: bytes, state: str) -> bool:
    return await parts.state(device) == state  # type: ignore[arg-type]


async def test_sigterm_finishes_the_job_in_hand(lab: WorkerLab, parts: WorkerParts, receiver: PushReceiver) -> None:
    receiver.hold = asyncio.Event()
    device = await parts.device(url=receiver.url)
    async with lab.worker() as worker:
        await parts.submit(device)
        await receiver.wait_for(1)
        worker.send(signal.SIGTERM)
        await eventually(lambda: _refuses(worker), within_seconds=30)
        receiver.hold.set()
        assert await worker.ended() == 0
    assert await pushed(parts, device)


async def _refuses(worker: WorkerProcess) -> bool:
    """Draining: the loops are over, only the job in hand is waited for."""
    status, text = await worker.get("/metrics")
    return status == 200 and "mailboxd_jobs_in_hand 1.0" in text


async def test_flushall_in_the_middle_rebuilds_the_queue_from_the_outbox(
    lab: WorkerLab, parts: WorkerParts, receiver: PushReceiver
) -> None:
    devices = [await parts.device(url=receiver.url) for _ in range(20)]
    for device in devices:
        await parts.submit(device)
    # All of them go out in one round; the first one that is begun stops the process.
    async with lab.worker(faults="job.before_handler=stop", ready=False) as stopped:
        await eventually(lambda: _all(parts, "published"))
        redis = connect(lab.redis_url)
        await redis.flushdb()
        await redis.aclose()
        stopped.send(signal.SIGKILL)
    await parts.skip(46)  # past the lease of what the killed one had begun, not past the deadline of the rest
    async with lab.worker():
        await receiver.wait_for(len(devices), within_seconds=60)
    assert len({push.wake_route_id for push in receiver.received}) == len(devices)


async def _all(parts: WorkerParts, state: str) -> bool:
    left = await parts.stores.postgres.fetchval("SELECT count(*) FROM outbox_events WHERE state <> $1", state)
    return bool(left == 0)
