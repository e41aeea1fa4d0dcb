"""The smallest receiver of the push-gateway protocol (docs/push-gateway.md), and of web push as far as headers go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(frozen=True)
class Received:
    """One push as it came in."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def wake_route_id(self) -> str:
        document = json.loads(self.body)
        assert set(document) == {"wake_route_id"}, "nothing but the route's id may be pushed"
        return str(document["wake_route_id"])


@dataclass
class PushReceiver:
    """Answers every push with `answer(number)` (204 at first) and keeps it."""

    url: str
    received: list[Received] = field(default_factory=list)
    answer: Callable[[Received], web.StreamResponse] = lambda _push: web.Response(status=204)
    hold: asyncio.Event | None = None  # pushes wait for it before they are answered
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def wait_for(self, count: int, *, within_seconds: float = 30.0) -> None:
        async with asyncio.timeout(within_seconds), self.arrived:
            await self.arrived.wait_for(lambda: len(self.received) >= count)

    def always(self, status: int, headers: Mapping[str, str] | None = None) -> None:
        self.answer = lambda _push: web.Response(status=status, headers=headers)


@asynccontextmanager
async def push_receiver(ssl: Any = None) -> AsyncIterator[PushReceiver]:
    """Listening on a free loopback port."""
    receiver = PushReceiver("")

    async def handle(request: web.Request) -> web.StreamResponse:
        push = Received(request.path, dict(request.headers), await request.read())
        async with receiver.arrived:
            receiver.received.append(push)
            receiver.arrived.notify_all()
        if receiver.hold is not None:
            await receiver.hold.wait()
        return receiver.answer(push)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=ssl)
    await site.start()
    port = runner.addresses[0][1]
    receiver.url = f"{'https' if ssl else 'http'}://127.0.0.1:{port}/push"
    try:
        yield receiver
    finally:
        if receiver.hold is not None:
            receiver.hold.set()
        await runner.cleanup()
