"""A link of the wake subscriber ends when it is told to, whatever becomes of the cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runtime.clock import SystemClock
from store import wake_link
from store.wake_link import LinkEvents, WakeLink


class Swallowing:
    """A connection below which a cancellation is lost, as in `asyncio.wait_for` when it meets the result."""

    socket_timeout: float | None = 10.0

    def __init__(self, where: str) -> None:
        self._where = where
        self.reached = asyncio.Event()
        self.closed = False

    async def send_command(self, *_words: bytes) -> None:
        await self._maybe("send")

    async def read_response(self) -> list[object]:
        await self._maybe("read")
        return [b"message", b"channel", b"e 1"]

    async def disconnect(self, *, nowait: bool) -> None:
        self.closed = nowait

    async def _maybe(self, what: str) -> None:
        if what != self._where:
            await asyncio.sleep(0)
            return
        self.reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return


class OnePlace:
    subscribe, unsubscribe = b"SUBSCRIBE", b"UNSUBSCRIBE"

    def __init__(self, connection: Swallowing) -> None:
        self._connection = connection

    def slot(self, _channel: bytes) -> int:
        return 0

    async def connect(self, _place: str) -> Swallowing:
        return self._connection


@pytest.mark.parametrize("where", ["send", "read"])
async def test_a_link_that_is_stopped_ends_although_its_cancellation_is_swallowed(where: str) -> None:
    connection = Swallowing(where)
    places: Any = OnePlace(connection)
    events = LinkEvents(lambda _heard: None, lambda _channel: None, lambda _channels: None, lambda: None)
    link = WakeLink(places, "", SystemClock(), events)
    link.want(b"channel")
    running = asyncio.create_task(link.run())
    await connection.reached.wait()
    link.stop()
    running.cancel()
    ended, _ = await asyncio.wait([running], timeout=5)
    assert running in ended
    assert connection.closed


class Silent(Swallowing):
    """A connection that is up, takes what is said and never answers: its other end is frozen."""

    def __init__(self) -> None:
        super().__init__("")
        self.ended = asyncio.Event()

    async def read_response(self) -> list[object]:
        assert self.socket_timeout is None  # the library makes no timer for each message
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def disconnect(self, *, nowait: bool) -> None:
        await super().disconnect(nowait=nowait)
        self.ended.set()


async def test_a_subscription_that_falls_silent_is_ended_and_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake_link, "SILENT_S", 0.05)
    monkeypatch.setattr(wake_link, "LOOK_S", 0.01)
    connection, trouble = Silent(), asyncio.Event()
    places: Any = OnePlace(connection)
    events = LinkEvents(lambda _heard: None, lambda _channel: None, lambda _channels: None, trouble.set)
    link = WakeLink(places, "", SystemClock(), events)
    link.want(b"channel")
    running = asyncio.create_task(link.run())
    try:
        async with asyncio.timeout(5):
            await connection.ended.wait()
            await trouble.wait()
        assert connection.closed
        assert link.restarts == 1
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
