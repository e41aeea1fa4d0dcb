"""Named places where a test lets a process die, fail, stop or wait. Unarmed they cost one falsy check.

In a process of its own: `MAILBOXD_FAULTPOINTS="submit.after_commit=kill, ack.before_call=raise@3"` (the third time
it is reached). Inside a test's process: `with faultpoints.armed("submit.after_commit", Action.PAUSE) as point`.
Nothing but tests arms them; a process that finds the variable set says so loudly (`arm_from_environment`).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

ENVIRONMENT_NAME: Final = "MAILBOXD_FAULTPOINTS"


class Action(StrEnum):
    KILL = "kill"  # SIGKILL to this process: what a power cut leaves behind
    STOP = "stop"  # SIGSTOP to this process: it holds what it holds until someone sends SIGCONT
    RAISE = "raise"  # FaultInjected, as an unexpected error would come
    PAUSE = "pause"  # wait until released (only where the place can wait)


class FaultInjected(Exception):
    """An unexpected error, made on purpose."""


class FaultPointError(Exception):
    """The arming itself is wrong."""


class FaultPoint:
    """One armed place. Acts when it is reached for the `at`-th time, and every time after that."""

    def __init__(self, name: str, action: Action, at: int = 1) -> None:
        if at < 1:
            raise FaultPointError(f"{name}: counting starts at 1, not {at}")
        self.name = name
        self.action = action
        self.times_reached = 0
        self._at = at
        self._reached = asyncio.Event()
        self._released = asyncio.Event()

    async def reached(self) -> None:
        """Return once it has acted (or, for a pause, once somebody stands there)."""
        await self._reached.wait()

    def release(self) -> None:
        """Let everybody who stands or will stand here go on."""
        self._released.set()

    def _is_due(self) -> bool:
        self.times_reached += 1
        if self.times_reached < self._at:
            return False
        self._reached.set()
        return True

    def _act(self) -> None:
        match self.action:
            case Action.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Action.STOP:
                os.kill(os.getpid(), signal.SIGSTOP)
            case Action.RAISE:
                raise FaultInjected(self.name)
            case Action.PAUSE:
                raise FaultPointError(f"{self.name}: this place cannot wait")

    async def act(self) -> None:
        if not self._is_due():
            return
        if self.action is Action.PAUSE:
            await self._released.wait()
        else:
            self._act()

    def act_now(self) -> None:
        if self._is_due():
            self._act()


_armed: dict[str, FaultPoint] = {}


async def reach(name: str) -> None:
    """Mark the place `name` in a coroutine."""
    if _armed and (point := _armed.get(name)):
        await point.act()


def reach_now(name: str) -> None:
    """Mark the place `name` in a callback, which cannot wait: a pause there is refused."""
    if _armed and (point := _armed.get(name)):
        point.act_now()


@contextmanager
def armed(name: str, action: Action, *, at: int = 1) -> Iterator[FaultPoint]:
    """Arm one place for the time of the block; what waits there at the end is let go."""
    if name in _armed:
        raise FaultPointError(f"{name} is armed already")
    point = FaultPoint(name, action, at)
    _armed[name] = point
    try:
        yield point
    finally:
        del _armed[name]
        point.release()


def arm_from_environment(environ: Mapping[str, str]) -> list[str]:
    """Arm what `MAILBOXD_FAULTPOINTS` names for the life of this process and return the names.

    Raises FaultPointError if the text cannot be read; then nothing is armed.
    """
    points = [_parse(item.strip()) for item in environ.get(ENVIRONMENT_NAME, "").split(",") if item.strip()]
    _armed.update({point.name: point for point in points})
    return [point.name for point in points]


def _parse(item: str) -> FaultPoint:
    name, _, rest = item.partition("=")
    action, _, at = rest.partition("@")
    try:
        return FaultPoint(name, Action(action), int(at) if at else 1)
    except ValueError:
        actions = "|".join(Action)
        raise FaultPointError(f"{ENVIRONMENT_NAME}: {item!r} is not NAME=({actions})[@COUNT]") from None
