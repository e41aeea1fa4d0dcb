"""What `mailboxd admin status` says of intents, queue, pushes and clean-up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from store.job_queue import JobQueue, QueueLost
from store.policy_rules import Policy
from store.redis_names import read_instance_tag
from store.work_status import read_work
from tests.integration.test_outbox_queue import publications
from tests.support.wakes import ScriptedProvider, WorkerParts, worker_parts
from worker.push.outcome import Retry

DAY = 86_400


@pytest.fixture
async def worker(database: str, redis_url: str) -> AsyncIterator[WorkerParts]:
    async with worker_parts(database, redis_url) as parts:
        yield parts


async def work(worker: WorkerParts, redis_url: str) -> dict[str, Any]:
    return await read_work(worker.stores.postgres, redis_url, Policy())


async def test_an_instance_at_rest_says_so(worker: WorkerParts, redis_url: str) -> None:
    shown = await work(worker, redis_url)
    assert shown["outbox_due"] == {"events": 0, "oldest_s": 0}
    assert shown["queue"] == {"waiting": 0, "handed_out": 0}
    assert set(shown["cleanup_overdue_s"].values()) == {0}
    assert (shown["wakes_ended"], shown["wakes_in_trouble"]) == ({}, {})


async def test_what_is_due_pushed_in_trouble_ended_and_overdue_shows(worker: WorkerParts, redis_url: str) -> None:
    provider = worker.provider
    assert isinstance(provider, ScriptedProvider)
    pushed, done = await worker.device(), await worker.device(route=False)
    await worker.submit(pushed)
    await worker.submit(done)
    await worker.turn()
    provider.outcome = lambda _target: Retry("timeout", None)
    await worker.submit(await worker.device())
    await worker.turn()
    late = await worker.device()
    await worker.submit(late)
    await worker.skip(20)
    shown = await work(worker, redis_url)
    assert shown["outbox_due"]["events"] >= 1
    assert 20 <= shown["outbox_due"]["oldest_s"] < 30
    assert shown["outbox_tries"] == {
        "attempts_max": 0,
        "troubles_max": 1,
        "pushed_unanswered": 1,
        "unknown_tasks": 0,
    }
    assert shown["wakes_ended"] == {"no_route": 1}
    assert shown["wakes_in_trouble"] == {"gateway timeout": 1}
    await worker.skip(8 * DAY)
    overdue = (await work(worker, redis_url))["cleanup_overdue_s"]
    assert overdue["expired"] > DAY / 2
    assert overdue["outbox"] > DAY


async def test_the_queues_lag_shows_and_looking_changes_nothing(worker: WorkerParts, redis_url: str) -> None:
    tag = await read_instance_tag(worker.stores.postgres)
    queue = JobQueue(worker.redis, tag, consumer=b"one")
    await queue.publish(publications(3))
    assert (await work(worker, redis_url))["queue"] == {"waiting": 3, "handed_out": 0}
    with pytest.raises(QueueLost):  # its group was not made by looking
        await queue.receive(2, block_ms=1)
    await queue.receive(2, block_ms=1)
    assert (await work(worker, redis_url))["queue"] == {"waiting": 1, "handed_out": 2}


async def test_without_redis_the_rest_shows(worker: WorkerParts) -> None:
    shown = await work(worker, "redis://127.0.0.1:1/0")
    assert shown["queue"] == {"not_reached": "ConnectionError"}
    assert "events" in shown["outbox_due"]
