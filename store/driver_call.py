"""A driver's call inside the caller's own task, which never cancels it.

A call in a task of its own costs four turns of the event loop between an answer and the next statement: the driver's
task, the one who waits for it, and the new task. In each turn a busy gateway reads a hundred sockets, and the database
waits. Here the call is stepped by hand: its first step runs at once, and one turn lies behind its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


@coroutine
def in_place(call: Coroutine[Any, Any, T], timeout_s: float) -> Generator[Any, None, T]:
    """The call's result. A cancelled or overdue caller leaves it where it stands and raises CancelledError or
    TimeoutError; then the connection is good for nothing and must be dropped, which ends what the call waits for.
    """
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[None] = loop.create_future()

    late = False

    def overdue() -> None:
        nonlocal late
        late = True
        if not turn.done():
            turn.set_exception(TimeoutError())

    timer = loop.call_later(timeout_s, overdue)
    try:
        while True:
            try:
                awaited = call.send(None)
            except StopIteration as finished:
                result: T = finished.value
                return result
            if awaited is None:  # only to let others run
                yield
                continue
            awaited._asyncio_future_blocking = False
            turn = loop.create_future()
            if late:  # the time ran out just as the step before was answered
                turn.set_exception(TimeoutError())
            awaited.add_done_callback(lambda _, turn=turn: turn.done() or turn.set_result(None))
            try:
                yield from turn
            except BaseException:
                # Its error will be ours: seen.
                awaited.add_done_callback(lambda done: done.cancelled() or done.exception())
                raise
    finally:
        timer.cancel()
        call.close()
