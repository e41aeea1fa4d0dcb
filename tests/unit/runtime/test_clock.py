"""The tests' clock and the real one keep the same promises."""

from __future__ import annotations

import asyncio
import time

import pytest

from runtime.clock import Clock, SystemClock
from tests.support.clock import FakeClock, settle


async def test_sleepers_wake_in_order_and_at_their_own_moment(clock: FakeClock) -> None:
    woke: list[tuple[str, float]] = []

    async def sleeper(name: str, *pauses: float) -> None:
        for pause in pauses:
            await clock.sleep(pause)
            woke.append((name, clock.monotonic()))

    start = clock.monotonic()
    tasks = [asyncio.create_task(sleeper("a", 3, 3)), asyncio.create_task(sleeper("b", 1, 4))]
    await clock.advance(5.5)
    assert [(name, at - start) for name, at in woke] == [("b", 1), ("a", 3), ("b", 5)]
    assert clock.monotonic() - start == 5.5
    await clock.advance(1)
    assert woke[-1] == ("a", start + 6)
    await asyncio.gather(*tasks)


async def test_a_cancelled_sleeper_is_forgotten(clock: FakeClock) -> None:
    task = asyncio.create_task(clock.sleep(5))
    await settle()
    assert clock.sleepers == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await clock.advance(10)
    assert clock.sleepers == 0


async def test_both_readings_move_together_and_the_date_can_be_wrong(clock: FakeClock) -> None:
    wall, monotonic = clock.wall_ms(), clock.monotonic()
    await clock.advance(2)
    assert (clock.wall_ms() - wall, clock.monotonic() - monotonic) == (2_000, 2)
    clock.jump_wall(-3_600)
    assert (clock.wall_ms() - wall, clock.monotonic() - monotonic) == (2_000 - 3_600_000, 2)


@pytest.mark.parametrize("seconds", [0, -1])
async def test_no_time_is_no_wait(clock: FakeClock, seconds: float) -> None:
    some: Clock
    for some in (clock, SystemClock()):
        await some.sleep(seconds)
    assert clock.sleepers == 0


def test_the_system_clock_reads_the_host() -> None:
    system = SystemClock()
    assert abs(system.wall_ms() - time.time() * 1000) < 1_000
    assert system.monotonic() <= system.monotonic()
