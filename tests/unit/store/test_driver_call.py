"""A call is written at once, is never cancelled, and what it raises comes out."""

from __future__ import annotations

import asyncio

import pytest

from store.driver_call import in_place


class Driver:
    """As a driver's call: writes first, waits for its answer, and says when it was cancelled."""

    def __init__(self) -> None:
        self.written = 0
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.ended = False

    async def call(self) -> str:
        self.written += 1
        try:
            return await self.answer
        finally:
            self.ended = True


async def test_the_statement_is_written_before_anything_else_gets_its_turn() -> None:
    driver = Driver()
    seen: list[int] = []

    async def caller() -> str:
        asyncio.get_running_loop().call_soon(lambda: seen.append(driver.written))
        return await in_place(driver.call(), 5.0)

    task = asyncio.ensure_future(caller())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == [1]
    driver.answer.set_result("done")
    assert await task == "done"


async def test_an_answer_that_is_there_already_and_a_call_that_lets_others_run_are_fine() -> None:
    async def call() -> int:
        await asyncio.sleep(0)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(1)
        return await done + await asyncio.sleep(0, 2)

    assert await in_place(call(), 5.0) == 3


async def test_what_the_call_raises_reaches_the_caller() -> None:
    driver = Driver()
    task = asyncio.ensure_future(in_place(driver.call(), 5.0))
    await asyncio.sleep(0)
    driver.answer.set_exception(ConnectionResetError("gone"))
    with pytest.raises(ConnectionResetError):
        await task


async def test_a_cancelled_caller_does_not_cancel_what_the_driver_waits_for() -> None:
    driver = Driver()
    task = asyncio.ensure_future(in_place(driver.call(), 5.0))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not driver.answer.cancelled()
    assert driver.ended
    driver.answer.set_exception(ConnectionResetError("dropped"))  # nobody is left to be told, and nothing complains


async def test_an_overdue_call_ends_with_a_timeout_and_is_not_cancelled_either() -> None:
    driver = Driver()
    with pytest.raises(TimeoutError):
        await in_place(driver.call(), 0.01)
    assert not driver.answer.done()
    assert driver.ended


async def test_a_time_that_runs_out_just_as_one_step_is_answered_ends_the_next_step() -> None:
    driver = Driver()
    loop = asyncio.get_running_loop()
    limit = loop.time() + 0.01

    async def call() -> str:
        first: asyncio.Future[None] = loop.create_future()

        def answer_late() -> None:
            first.set_result(None)
            while loop.time() <= limit + 0.01:  # a busy loop: answer and limit come in one turn, the answer first
                pass

        loop.call_soon(answer_late)
        await first
        return await driver.call()

    task = asyncio.ensure_future(in_place(call(), 0.01))
    await asyncio.wait((task,), timeout=5.0)
    assert task.done()
    with pytest.raises(TimeoutError):
        task.result()
    assert driver.written == 1
    assert driver.ended
