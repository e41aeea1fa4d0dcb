"""Waiting for what another process or task will do: bounded, and told what was missing."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Final

_FIRST_PAUSE_SECONDS: Final = 0.002
_PAUSE_MAX_SECONDS: Final = 0.1


async def eventually(
    holds: Callable[[], bool | Awaitable[bool]], *, within_seconds: float = 30.0, what: str = ""
) -> None:
    """Return as soon as `holds()` is true; AssertionError with `what` when it is not in time."""
    deadline = asyncio.get_running_loop().time() + within_seconds
    pause = _FIRST_PAUSE_SECONDS
    while True:
        answer = holds()
        if await answer if inspect.isawaitable(answer) else answer:
            return
        if asyncio.get_running_loop().time() >= deadline:
            raise AssertionError(f"not within {within_seconds} s: {what or inspect.getsource(holds).strip()}")
        await asyncio.sleep(pause)
        pause = min(_PAUSE_MAX_SECONDS, pause * 1.5)


async def pace(seconds: float) -> None:
    """The rhythm of a workload or of faults in a long run. It stands for no waiting: nothing may rely on it."""
    await asyncio.sleep(seconds)


async def in_time(attempt: Callable[[], Awaitable[float]], *, at_most_s: float, tries: int = 3) -> None:
    """One of a few attempts, each of which returns its seconds, takes at most that long.

    The bound is the program's; a busy machine may stretch a single attempt beyond it, and hardly three.
    """
    took: list[float] = []
    while len(took) < tries:
        took.append(await attempt())
        if took[-1] <= at_most_s:
            return
    raise AssertionError(f"took {took} s, and the bound is {at_most_s} s")
