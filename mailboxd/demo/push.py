"""A small push endpoint in the demo's own process: what a push service is for a phone."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Self

from aiohttp import web


class PushEndpoint:
    """`async with PushEndpoint() as push`: the worker posts wakes to `push.url`. They hold no content."""

    def __init__(self) -> None:
        self.wakes = 0
        self.first_wake_at: float | None = None  # perf_counter
        self._woken = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/wake"

    async def woken(self, within_s: float) -> None:
        """Return once a wake has come; TimeoutError after `within_s`."""
        async with asyncio.timeout(within_s):
            await self._woken.wait()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/wake", self._wake)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _wake(self, request: web.Request) -> web.Response:
        await request.read()
        self.wakes += 1
        if self.first_wake_at is None:
            self.first_wake_at = perf_counter()
        self._woken.set()
        return web.json_response({})
