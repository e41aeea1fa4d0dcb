"""The dispatcher's bell over Redis: a ring is heard, a dead subscription is noticed, and nothing depends on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from runtime.clock import SystemClock
from runtime.doorbell import Doorbell
from runtime.supervise import Progress
from store.redis_client import connect
from store.wake import WakeBus, WakeNames
from tests.support.waiting import eventually
from worker import bell_listener
from worker.bell_listener import BellListener

NAMES = WakeNames("0123456789abcdef", b"k" * 32)


@asynccontextmanager
async def listening(redis_url: str, bell: Doorbell) -> AsyncIterator[None]:
    redis = connect(redis_url)
    clock = SystemClock()
    listener = BellListener(redis, NAMES.outbox, bell, clock)
    running = asyncio.create_task(listener.run(Progress(clock)))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await redis.aclose()


async def test_a_gateways_ring_is_heard_at_once(redis_url: str) -> None:
    bell = Doorbell()
    async with listening(redis_url, bell):
        assert await bell.wait(at_most_seconds=30)  # the subscription itself: what came before it was not heard
        redis = connect(redis_url)
        bus = WakeBus(redis, NAMES)
        bus.publish_worker()
        assert await bell.wait(at_most_seconds=30)
        await bus.close()
        await redis.aclose()


class SilentRedis:
    """Takes every command and answers none but the subscription: half-open, as after a lost FIN."""

    def __init__(self) -> None:
        self.connections = 0
        self.pings = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while data := await reader.read(65_536):
            self.pings += data.count(b"PING")
            if b"PING" not in data:
                writer.write(b"+OK\r\n" * data.count(b"*"))
        writer.close()


async def test_a_subscription_that_is_dead_without_an_error_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUIET_SECONDS_MAX", "ANSWER_SECONDS_MAX", "RECONNECT_SECONDS"):
        monkeypatch.setattr(bell_listener, name, 0.05)
    silent = SilentRedis()
    server = await asyncio.start_server(silent.serve, "127.0.0.1", 0)
    bell = Doorbell()
    async with server, listening(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", bell):
        await eventually(lambda: silent.connections >= 3 and silent.pings >= 2)
        assert await bell.wait(at_most_seconds=30)  # what was rung meanwhile was not heard: look


async def test_without_redis_it_keeps_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell_listener, "RECONNECT_SECONDS", 0.05)
    bell = Doorbell()
    async with listening("redis://127.0.0.1:1/0", bell):
        for _ in range(3):
            assert await bell.wait(at_most_seconds=30)
