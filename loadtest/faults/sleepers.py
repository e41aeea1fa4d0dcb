"""Phones as one process: devices that are away until a wake push comes, then read their mail and go away again.

    python -m loadtest.faults.sleepers '{"url": …, "directory": …, "notes": …, "stores": […], "seed": 1}'

Each has an account in its store. The push-gateway receiver is part of the process. A line `calm` on standard input lets
all of them read what is left, with no push, and ends the process with 0; the end of the input ends it at once.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from loadtest.faults.client import LEFT_ALONE, SETTINGS, cancel, digest, first, listen
from loadtest.faults.notes import Notes
from mailbox_client import ClientError, MailboxClient
from protocol.errors import MailboxError

LOOK_S: Final = 0.05
ROUTE_S_MAX: Final = 30.0
CALM_S_MAX: Final = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SleeperOptions:
    """What the process is told."""

    url: str
    notes: str
    stores: tuple[str, ...]
    seed: int


class Sleeper:
    """One device. `pushed` is set by the receiver."""

    def __init__(self, number: int, options: SleeperOptions, notes: Notes) -> None:
        self.number = number
        self.pushed = asyncio.Event()
        self._options = options
        self._store = options.stores[number]
        self._notes = notes
        self._random = random.Random(options.seed + number)
        self._confirming = False
        self._last_news = 0.0

    async def live(self, push_url: str) -> None:
        """Set the route, then sleep and wake for ever."""
        async with self._client() as client:
            async with asyncio.timeout(ROUTE_S_MAX):
                while True:
                    with suppress(MailboxError, ClientError):
                        await client.http.set_push_route("gateway", url=f"{push_url}/{self.number}")
                        break
                    await asyncio.sleep(0.2)
            await self._read(client, self._random.uniform(0.1, 0.4))
        while True:
            await self.pushed.wait()
            self.pushed.clear()
            await self.wake()

    async def wake(self) -> None:
        """Connect, read to the end, leave a random moment later. It stays as long as that takes, as an app would."""
        async with self._client() as client:
            self._notes.write("woken", device=client.device_id.hex())
            await self._read(client, self._random.uniform(0.1, 0.4))

    async def drain(self) -> None:
        """Read until nothing is left."""
        async with asyncio.timeout(CALM_S_MAX), self._client() as client:
            while True:
                await self._read(client, 0.1)
                with suppress(MailboxError, ClientError):
                    if (await client.http.mailbox_status()).pending_entries == 0:
                        return

    def _client(self) -> MailboxClient:
        return MailboxClient(self._options.url, self._store, settings=SETTINGS)

    async def _read(self, client: MailboxClient, quiet_s: float) -> None:
        """Take what comes until all that waited is confirmed and nothing has come for `quiet_s`."""
        receiving = asyncio.create_task(self._receive(client), name="receive")
        try:
            await client.caught_up()
            self._last_news = max(self._last_news, time.monotonic())
            while self._confirming or time.monotonic() - self._last_news < quiet_s:
                await asyncio.sleep(LOOK_S)
                if receiving.done():
                    receiving.result()
        finally:
            receiving.cancel()
            await asyncio.wait((receiving,))

    async def _receive(self, client: MailboxClient) -> None:
        device = client.device_id.hex()
        async for delivery in client.messages():
            mid = delivery.message_id.hex()
            self._notes.write("handed", device=device, mid=mid, content=digest(delivery.body))
            self._confirming = True
            try:
                await delivery.confirm()
            finally:
                self._confirming = False  # also when it is cancelled: then the message is handed over again
            self._notes.write("confirmed", device=device, mid=mid)
            self._last_news = time.monotonic()


async def run(options: SleeperOptions) -> int:
    notes = Notes(Path(options.notes))
    sleepers = [Sleeper(number, options, notes) for number in range(len(options.stores))]

    async def push(request: web.Request) -> web.Response:
        sleepers[int(request.match_info["number"])].pushed.set()
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/{number}", push)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    push_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    calm = asyncio.Event()
    calming: asyncio.Task[Any] = asyncio.create_task(calm.wait(), name="calm")
    listening = asyncio.create_task(listen(calm), name="listen")
    living: list[asyncio.Task[None]] = [
        asyncio.create_task(sleeper.live(push_url), name=f"sleeper-{sleeper.number}") for sleeper in sleepers
    ]
    try:
        if await first({calming, listening, *living}) is not calming:
            return LEFT_ALONE
        await cancel(living)
        await asyncio.gather(*(sleeper.drain() for sleeper in sleepers))
        return 0
    finally:
        await cancel([calming, listening, *living])
        await runner.cleanup()


def main(arguments: list[str]) -> int:
    document = json.loads(arguments[0])
    return asyncio.run(run(SleeperOptions(**{**document, "stores": tuple(document["stores"])})))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
