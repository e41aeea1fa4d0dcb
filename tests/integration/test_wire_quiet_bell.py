"""The worker's ear for rings while nobody rings."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runtime.clock import SystemClock
from runtime.doorbell import Doorbell
from runtime.supervise import Progress
from store.redis_client import connect
from tests.support.waiting import eventually
from worker import bell_listener
from worker.bell_listener import BellListener


async def test_a_subscription_outlives_a_silence_longer_than_the_sockets_timeout(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bell_listener, "QUIET_SECONDS_MAX", 0.5)
    redis = connect(f"{redis_url}{'&' if '?' in redis_url else '?'}socket_timeout=0.1")
    clock = SystemClock()
    listening = asyncio.create_task(BellListener(redis, b"rings", Doorbell(), clock).run(Progress(clock)))

    async def subscriptions() -> list[Any]:
        return [client for client in await redis.client_list(_type="pubsub") if client["name"] == ""]

    async def asked() -> bool:
        return any(client["cmd"] == "ping" for client in await subscriptions())

    try:
        await eventually(asked, what="the quiet connection is asked whether it lives")
        assert len(await subscriptions()) == 1
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await redis.aclose()
