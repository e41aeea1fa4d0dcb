from __future__ import annotations

import asyncio

import pytest

from protocol.errors import ErrorCode, MailboxError
from runtime.supervise import Progress
from tests.support.clock import FakeClock
from worker.outages import through_outages


class Loop:
    """Fails with each of `errors` in turn, then runs for ever."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.begun = 0

    async def __call__(self, progress: Progress) -> None:
        self.begun += 1
        if self.errors:
            raise self.errors.pop(0)
        await asyncio.Event().wait()


async def test_a_database_that_is_away_ends_no_loop_however_long(clock: FakeClock) -> None:
    loop = Loop(*(MailboxError(ErrorCode.UNAVAILABLE) for _ in range(500)))
    progress = Progress(clock)
    running = asyncio.create_task(through_outages("x", loop, clock)(progress))
    await clock.advance(600)
    assert (loop.begun, running.done()) == (501, False)
    assert progress.turns == 500  # alive all the time
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("error", [MailboxError(ErrorCode.INTERNAL), ValueError("a bug")])
async def test_a_bug_goes_through(clock: FakeClock, error: Exception) -> None:
    with pytest.raises(type(error)):
        await through_outages("x", Loop(error), clock)(Progress(clock))
