"""What waits for the engine's next step: inputs in their order, and who waits for which to be durable."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, NamedTuple

from mailbox_client.engine_io import Input
from mailbox_client.pulse import Pulse

INBOX_MAX: Final = 1_024  # frames; past it the socket is not read until the engine has caught up


class Waiting(NamedTuple):
    one: Input
    done: asyncio.Future[None] | None  # whoever waits until the step that heard it is durable


class Inbox:
    """All that came since the last step is taken at once. A socket's frames can be many: they wait for room."""

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []
        self._in_step: list[Waiting] = []  # taken and not yet answered
        self._bell = asyncio.Event()
        self._taken = Pulse()  # the inbox was taken: whoever waits for room looks again

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, one: Input) -> None:
        self._waiting.append(Waiting(one, None))
        self._bell.set()

    def put_and_await(self, one: Input) -> asyncio.Future[None]:
        """The same; the future is done once `answer` was called after this input was taken."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(Waiting(one, done))
        self._bell.set()
        return done

    async def put_when_there_is_room(self, one: Input) -> None:
        while len(self._waiting) >= INBOX_MAX:
            await self._taken.wait()
        self.put(one)

    async def wait(self, at_most_s: float) -> None:
        """Return when something is here, or when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._bell.wait()

    def take(self) -> list[Input]:
        """Everything that is here, for one step. `answer` says how the step went."""
        self._in_step, self._waiting = self._waiting, []
        self._bell.clear()
        self._taken.ring()
        return [waiting.one for waiting in self._in_step]

    def answer(self, error: Exception | None) -> None:
        """Tell everybody who waits for what was taken that it is durable, or what went wrong."""
        _tell(self._in_step, error)
        self._in_step = []

    def close(self, error: Exception) -> None:
        """No step comes any more: tell everybody who waits for one, also for one that was cut off in the middle."""
        self.answer(error)
        _tell(self._waiting, error)


def _tell(waiting: list[Waiting], error: Exception | None) -> None:
    for _one, done in waiting:
        if done is not None and not done.done():
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
