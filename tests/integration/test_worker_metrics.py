"""What a worker shows of itself moves with what it does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from runtime.clock import SystemClock
from store.outbox import Job
from store.policy_rules import Policy
from store.retention import Table
from tests.support.wakes import ScriptedProvider, WorkerParts, worker_parts
from worker.cleanup import Cleanup
from worker.handlers.wake_device import TASK
from worker.push.outcome import Gone, Misconfigured, Retry


@pytest.fixture
async def worker(database: str, redis_url: str) -> AsyncIterator[WorkerParts]:
    async with worker_parts(database, redis_url) as parts:
        yield parts


def value(metric: Any, *labels: str) -> float:
    return float((metric.labels(*labels) if labels else metric)._value.get())


async def test_a_wake_shows_in_outbox_queue_jobs_and_pushes(worker: WorkerParts) -> None:
    metrics = worker.metrics
    device = await worker.device()
    await worker.submit(device)
    await worker.skip(20)
    await worker.reconciler.round()
    assert value(metrics.outbox_depth, "pending") == 1
    assert value(metrics.outbox_due) == 1
    assert 20 <= value(metrics.outbox_due_age) < 30
    await worker.turn()
    await worker.reconciler.round()
    assert value(metrics.published, "wake_device") == 1
    assert value(metrics.job_attempts, "wake_device", "first") == 1
    assert value(metrics.jobs, "wake_device", "pushed") == 1
    assert value(metrics.pushes, "gateway", "accepted") == 1
    assert metrics.push_seconds.labels("gateway")._sum.get() > 0
    assert (value(metrics.outbox_depth, "retry_wait"), value(metrics.outbox_due)) == (1, 0)
    await worker.contact(device)
    await worker.skip(31)
    await worker.turn()
    assert value(metrics.intents_completed, "contact") == 1


@pytest.mark.parametrize(
    ("outcome", "told"),
    [(Retry("timeout", None), "retry"), (Gone(), "gone"), (Misconfigured("403"), "misconfigured")],
)
async def test_every_outcome_of_a_push_is_counted_for_its_provider(
    worker: WorkerParts, outcome: Any, told: str
) -> None:
    provider = worker.provider
    assert isinstance(provider, ScriptedProvider)
    provider.outcome = lambda _target: outcome
    await worker.submit(await worker.device())
    await worker.turn()
    shown = {
        sample.labels["outcome"]: sample.value
        for family in worker.metrics.pushes.collect()
        for sample in family.samples
        if sample.name.endswith("_total") and sample.labels["provider"] == "gateway"
    }
    assert sum(shown.values()) == 1
    assert any(told in name for name in shown), shown


async def test_attempts_after_a_failure_are_counted_apart(database: str, redis_url: str) -> None:
    async def fails(_job: Job) -> str:
        raise ValueError

    async with worker_parts(database, redis_url, handlers={TASK: fails}) as worker:
        await worker.submit(await worker.device())
        for _ in range(3):
            await worker.turn()
            await worker.skip(3_600)
        assert value(worker.metrics.job_attempts, "wake_device", "first") == 1
        assert value(worker.metrics.job_attempts, "wake_device", "again") == 2


async def test_the_queues_messages_and_what_is_handed_out_show(worker: WorkerParts) -> None:
    await worker.submit(await worker.device())
    await worker.dispatch()
    await worker.dispatcher.round()
    assert value(worker.metrics.queue_messages) == 1


async def test_clean_up_shows_what_it_removed(worker: WorkerParts) -> None:
    await worker.submit(await worker.device(), count=3)
    await worker.skip(8 * 86_400)

    class Right(SystemClock):
        """The host's clock goes with the database's."""

        def wall_ms(self) -> int:
            return super().wall_ms() + 8 * 86_400_000

    cleanup = Cleanup(worker.retention, Policy, worker.metrics, Right(), round_seconds=5)
    assert await cleanup.round(Table.EXPIRED) == 3
    assert value(worker.metrics.cleaned, "expired") == 3
