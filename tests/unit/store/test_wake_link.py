"""A link of the wake subscriber ends when it is told to, whatever becomes of the cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runtime.clock import SystemClock
from store.wake_link import LinkEvents, WakeLink


class Swallowing:
    """A connection below which a cancellation is lost, as in `asyncio.wait_for` when it meets the result."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.reached = asyncio.Event()
        self.closed = False

    async def send_command(self, *_words: bytes) -> None:
        await self._maybe("send")

    async def read_response(self, *, timeout: float) -> list[object]:
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
