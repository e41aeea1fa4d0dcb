"""Submit, pull with wait and ACK over HTTP alone, in MessagePack: where a WebSocket cannot live."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final

import aiohttp
import msgpack  # type: ignore[import-untyped]

from loadtest.accounts import Account
from loadtest.recorder import OfferedEnvelope, Recorder, StreamKind
from loadtest.run import Run, figures, merged, told
from loadtest.swarm import Window
from protocol.limits import ACK_MAX

DEVICES_MAX: Final = 50  # a client library's request costs more than the server's answer: this many keep it busy
WAIT_S: Final = 20
MSGPACK: Final = "application/msgpack"


class HttpFailed(Exception):
    """The server answered what it should not."""


class _Users:
    """Devices that send one message after the other, and wait for their mail by long poll."""

    def __init__(self, http: aiohttp.ClientSession, accounts: Sequence[Account], payload_bytes: int) -> None:
        self.recorder = Recorder()
        self.window = Window(perf_counter())
        self.refusals: Counter[str] = Counter()
        self.sending = True
        self._http = http
        self._accounts = accounts
        self._body = os.urandom(payload_bytes)
        self._sent_at: dict[bytes, float] = {}
        self._random = random.Random(1)

    async def send(self, account: Account) -> None:
        """One message after the other while `sending`."""
        others = [other.device for other in self._accounts if other is not account]
        while self.sending:
            mid, cmid, to = os.urandom(16), os.urandom(16), self._random.choice(others)
            attempt = self.recorder.offered(account.device, account.device, (OfferedEnvelope(to, mid, self._body),))
            started = self._sent_at[mid] = perf_counter()
            envelope = {"to": to, "message_id": mid, "protocol_version": 1, "body": self._body}
            status, answer = await self._call(
                account, "POST", "/v1/envelopes", {"client_message_id": cmid, "echo": False, "envelopes": [envelope]}
            )
            if status >= 400:
                self.refusals[answer["code"]] += 1
                self.recorder.refused(attempt, not_committed=answer.get("outcome") == "not_committed")
                await asyncio.sleep(answer.get("retry_after_ms", 100) / 1_000)
                continue
            self.window.send_ack.add(perf_counter() - started)
            self.window.confirmed += 1
            results = [(r["message_id"], r["accepted_at"], r["expires_at"]) for r in answer["results"]]
            self.recorder.accepted(attempt, results)

    async def receive(self, account: Account) -> None:
        """Long polls from cursor to cursor, each page acked; until cancelled."""
        walk = self.recorder.open_stream(account.device, StreamKind.WALK)
        cursor = ""
        while True:
            status, page = await self._call(account, "GET", f"/v1/mailbox?limit=256&wait_s={WAIT_S}{cursor}")
            if status >= 400:
                raise HttpFailed(f"GET /v1/mailbox: {status} {page.get('code')}")
            cursor = f"&cursor={page['cursor']}"
            now = perf_counter()
            mids = [entry["message_id"] for entry in page["entries"]]
            for entry in page["entries"]:
                self.recorder.received(walk, entry["message_id"], entry["body"])
                self.window.delivered += 1
                self.window.delivery.add(now - self._sent_at.pop(entry["message_id"], now))
            for at in range(0, len(mids), ACK_MAX):
                some = mids[at : at + ACK_MAX]
                status, answer = await self._call(account, "POST", "/v1/mailbox/acks", {"message_ids": some})
                if status >= 400:
                    raise HttpFailed(f"POST /v1/mailbox/acks: {status} {answer.get('code')}")
                self.recorder.acked(account.device, some)
                self.window.acked += len(some)

    async def _call(self, account: Account, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {account.token}", "Accept": MSGPACK, "Content-Type": MSGPACK}
        data = msgpack.packb(body) if body is not None else None
        async with self._http.request(method, path, data=data, headers=headers) as answer:
            return answer.status, msgpack.unpackb(await answer.read())


async def http_only(run: Run) -> dict[str, Any]:
    """Up to 50 devices, one message in flight each, each with its own long poll."""
    settings = run.settings
    accounts = await run.accounts(min(settings.devices, DEVICES_MAX))
    meter = run.meter()
    connector = aiohttp.TCPConnector(limit=2 * len(accounts))
    async with aiohttp.ClientSession(run.server.urls[0], connector=connector) as http:
        users = _Users(http, accounts, settings.payload_bytes)
        receiving = [asyncio.create_task(users.receive(account)) for account in accounts]
        sending = [asyncio.create_task(users.send(account)) for account in accounts]
        try:
            await asyncio.sleep(settings.warmup_s)
            users.window = Window(perf_counter())
            meter.start()
            await asyncio.sleep(settings.seconds)
            window, seconds = users.window, perf_counter() - users.window.started
            used = meter.stop(window.confirmed)
            users.sending = False
            await asyncio.wait_for(asyncio.gather(*sending), timeout=30)
            drained = await _drained(users, receiving)
        finally:
            for task in (*sending, *receiving):
                task.cancel()
            await asyncio.gather(*sending, *receiving, return_exceptions=True)
    return merged(
        {"devices": len(accounts), "payload": settings.payload_bytes},
        figures(window, seconds),
        told(users.recorder, drained=drained, refusals=users.refusals, disconnects={}),
        {"cpu": used},
    )


async def _drained(users: _Users, receiving: Sequence[asyncio.Task[None]]) -> bool:
    end = perf_counter() + 20
    while perf_counter() < end:
        for task in receiving:
            if task.done():
                task.result()  # raises what ended it
        if not users.recorder.outstanding() and users.recorder.acked_entries == users.recorder.received_entries:
            return True
        await asyncio.sleep(0.05)
    return False
