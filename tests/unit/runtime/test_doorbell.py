"""A doorbell's rings coalesce, and none is lost."""

from __future__ import annotations

import asyncio

import pytest

from runtime.doorbell import Doorbell


async def test_many_rings_are_one_visit() -> None:
    bell = Doorbell()
    for _ in range(5):
        bell.ring()
    assert await bell.wait(at_most_seconds=1) is True
    assert await bell.wait(at_most_seconds=0) is False


async def test_a_ring_during_the_work_is_kept_for_the_next_look() -> None:
    bell = Doorbell()
    bell.ring()
    await bell.wait(at_most_seconds=1)
    bell.ring()  # while the waiter works
    assert await bell.wait(at_most_seconds=1) is True


async def test_a_waiter_wakes_when_it_rings() -> None:
    bell = Doorbell()
    waiting = asyncio.create_task(bell.wait(at_most_seconds=30))
    await asyncio.sleep(0)
    bell.ring()
    assert await waiting is True


async def test_a_cancelled_wait_loses_no_ring() -> None:
    bell = Doorbell()
    waiting = asyncio.create_task(bell.wait(at_most_seconds=30))
    await asyncio.sleep(0)
    waiting.cancel()
    bell.ring()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await bell.wait(at_most_seconds=0) is True
