"""Loops: restarted with growing pauses, watched for progress, ended in order."""

from __future__ import annotations

import asyncio

import pytest

from runtime.supervise import BACKOFF_MAX_SECONDS, LoopFailed, Progress, Supervisor
from tests.support.clock import FakeClock, settle


async def run_until_stopped(progress: Progress, stopping: asyncio.Event) -> None:
    progress()
    await stopping.wait()


async def test_it_ends_when_told_and_its_loops_have_ended(clock: FakeClock) -> None:
    stopping, supervisor, ended = asyncio.Event(), Supervisor(clock), []

    async def body(progress: Progress) -> None:
        await run_until_stopped(progress, stopping)
        ended.append(True)

    supervisor.add("loop", body, stalled_after_seconds=10)
    running = asyncio.create_task(supervisor.run(stopping))
    await settle()
    assert not running.done()
    stopping.set()
    await running
    assert ended == [True]


async def test_a_loop_that_fails_is_started_again_after_a_pause(clock: FakeClock) -> None:
    stopping, failures, starts = asyncio.Event(), [], 0
    supervisor = Supervisor(clock, on_failure=failures.append)

    async def body(progress: Progress) -> None:
        nonlocal starts
        starts += 1
        if starts < 3:
            raise RuntimeError("broken")
        await run_until_stopped(progress, stopping)

    supervisor.add("loop", body, stalled_after_seconds=10)
    running = asyncio.create_task(supervisor.run(stopping))
    await settle()
    assert starts == 1
    await clock.advance(BACKOFF_MAX_SECONDS)
    assert starts == 3
    assert failures == ["loop", "loop"]
    assert supervisor.health()[0].restarts == 2
    stopping.set()
    await running


async def test_a_loop_that_returns_early_counts_as_failed(clock: FakeClock) -> None:
    stopping, supervisor = asyncio.Event(), Supervisor(clock)

    async def body(progress: Progress) -> None:
        pass

    supervisor.add("loop", body, stalled_after_seconds=10, failures_max=3)
    running = asyncio.create_task(supervisor.run(stopping))
    await clock.advance(10 * BACKOFF_MAX_SECONDS)
    with pytest.raises(LoopFailed, match="loop failed 3 times in a row"):
        await running


async def test_progress_between_failures_starts_the_count_anew(clock: FakeClock) -> None:
    stopping, supervisor, starts = asyncio.Event(), Supervisor(clock), 0

    async def body(progress: Progress) -> None:
        nonlocal starts
        starts += 1
        progress()
        raise RuntimeError("now and then")

    supervisor.add("loop", body, stalled_after_seconds=10, failures_max=3)
    running = asyncio.create_task(supervisor.run(stopping))
    await clock.advance(5)
    assert starts > 10
    assert not running.done()
    stopping.set()
    await running


async def test_one_loop_beyond_restarting_ends_the_others(clock: FakeClock) -> None:
    stopping, supervisor, cancelled = asyncio.Event(), Supervisor(clock), []

    async def steady(progress: Progress) -> None:
        try:
            await run_until_stopped(progress, stopping)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def broken(progress: Progress) -> None:
        raise RuntimeError("broken")

    supervisor.add("steady", steady, stalled_after_seconds=10)
    supervisor.add("broken", broken, stalled_after_seconds=10, failures_max=1)
    with pytest.raises(LoopFailed):
        await supervisor.run(stopping)
    assert cancelled == [True]


async def test_a_loop_without_progress_is_stalled_until_it_moves(clock: FakeClock) -> None:
    stopping, supervisor = asyncio.Event(), Supervisor(clock)
    go = asyncio.Event()

    async def body(progress: Progress) -> None:
        await go.wait()
        await run_until_stopped(progress, stopping)

    supervisor.add("loop", body, stalled_after_seconds=10)
    running = asyncio.create_task(supervisor.run(stopping))
    await clock.advance(10)
    assert supervisor.stalled() == ()
    await clock.advance(1)
    assert supervisor.stalled() == ("loop",)
    assert supervisor.health()[0].seconds_since_progress == 11
    go.set()
    await settle()
    assert supervisor.stalled() == ()
    stopping.set()
    await running


async def test_cancelled_it_leaves_no_loop_behind(clock: FakeClock) -> None:
    stopping, supervisor, ended = asyncio.Event(), Supervisor(clock), []

    async def body(progress: Progress) -> None:
        try:
            await run_until_stopped(progress, stopping)
        finally:
            ended.append(True)

    supervisor.add("loop", body, stalled_after_seconds=10)
    running = asyncio.create_task(supervisor.run(stopping))
    await settle()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == [True]


async def test_a_loop_that_does_not_end_in_its_time_is_cancelled(clock: FakeClock) -> None:
    stopping, supervisor, cancelled = asyncio.Event(), Supervisor(clock), []

    async def body(progress: Progress) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    supervisor.add("loop", body, stalled_after_seconds=10)
    running = asyncio.create_task(supervisor.run(stopping, stop_seconds=0.01))
    await settle()
    stopping.set()
    await running
    assert cancelled == [True]


async def test_a_loop_that_swallows_a_cancellation_ends_all_the_same(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio.wait_for does that before Python 3.12, when its result comes in the same moment."""
    monkeypatch.setattr("runtime.supervise.CANCEL_AGAIN_SECONDS", 0.01)
    stopping, supervisor, swallowed = asyncio.Event(), Supervisor(clock), []

    async def body(progress: Progress) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if len(swallowed) == 2:
                    raise
                swallowed.append(True)

    supervisor.add("loop", body, stalled_after_seconds=10)
    running = asyncio.create_task(supervisor.run(stopping, stop_seconds=0.01))
    await settle()
    stopping.set()
    async with asyncio.timeout(5):
        await running
    assert len(swallowed) == 2


async def test_a_pause_before_a_restart_ends_at_once_when_stopping(clock: FakeClock) -> None:
    stopping, supervisor = asyncio.Event(), Supervisor(clock)

    async def body(progress: Progress) -> None:
        raise RuntimeError("broken")

    supervisor.add("loop", body, stalled_after_seconds=10)
    running = asyncio.create_task(supervisor.run(stopping))
    await settle()
    began = clock.monotonic()
    stopping.set()
    await running
    assert clock.monotonic() == began


def test_names_are_unique(clock: FakeClock) -> None:
    async def body(progress: Progress) -> None: ...

    supervisor = Supervisor(clock)
    supervisor.add("loop", body, stalled_after_seconds=1)
    with pytest.raises(ValueError, match="already"):
        supervisor.add("loop", body, stalled_after_seconds=1)
