"""A client of the SDK as a process of its own, to be killed: it sends, receives, and notes what it saw.

    python -m loadtest.faults.client '{"url": …, "store": …, "notes": …, "peers": […], "seed": 1, …}'

It sends numbered bodies to its peers at its pace until a line `calm` comes on its standard input, then sends nothing
more, confirms what comes, and ends with 0 when all is settled. The end of the input ends it at once.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtest.faults.notes import Notes
from mailbox_client import (
    ClientSettings,
    Delivery,
    Event,
    MailboxClient,
    NoAnswer,
    Reconciled,
    SendConfirmed,
    SendOutcomeUnknown,
    SendsRefused,
    SendWaiting,
    Stopped,
    Transport,
)
from protocol.errors import MailboxError
from protocol.frames import SendEnvelope
from protocol.ids import DeviceId, MessageId

QUIET_S: Final = 0.5
CONFIRM_MAX: Final = 64
SLEEPERS_SHARE: Final = 0.05
LEFT_ALONE: Final = 3  # the exit code when the kit has closed its end
SETTINGS: Final = ClientSettings(
    backoff_base_ms=50, backoff_cap_ms=1_000, retry_base_ms=50, retry_cap_ms=1_000, send_answer_ms=10_000,
    open_ms=3_000, welcome_ms=5_000, socket_retry_base_ms=2_000, socket_retry_cap_ms=4_000, poll_wait_s=5,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What a client process is told."""

    url: str
    store: str
    notes: str
    number: int
    peers: tuple[str, ...]  # hex ids of whom it sends to; none: it only receives
    sleepers: tuple[str, ...] = ()  # of whom it sends to now and then: they get a chance to be away
    seed: int
    pause_s: float  # on average, between two sends
    body_bytes: int
    ttl_s: int | None = None
    pending_max: int = 64  # sends without an answer: then it waits
    clock_offset_s: int = 0  # this process's wall clock is wrong by so much
    disturbed: bool = False  # cuts its own connection and changes its transport now and then


class ClientRun:
    """One life of the process."""

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self.notes = Notes(Path(options.notes))
        self.random = random.Random(options.seed)
        self.calm = asyncio.Event()
        self.last_news = time.monotonic()
        self._number = 0

    def on_event(self, event: Event) -> None:
        match event:
            case SendConfirmed(receipt):
                self.notes.write(
                    "accepted",
                    cmid=receipt.client_message_id.hex(),
                    duplicate=None if receipt.reconciled else receipt.duplicate,
                    results=[(one.message_id.hex(), one.accepted_at, one.expires_at or 0) for one in receipt.accepted],
                )
            case SendsRefused(cmid, refused, _):
                self.notes.write(
                    "refused", cmid=cmid.hex(), refused=[(one.message_id.hex(), one.code) for one in refused]
                )
            case Reconciled():
                self.notes.write("reconciled")
            case SendWaiting(cmid, code, _):
                self.notes.write("again", cmid=cmid.hex(), code=code)
            case SendOutcomeUnknown(cmid):
                self.notes.write("unknown", cmid=cmid.hex())
            case Stopped(reason):
                self.notes.write("stopped", reason=str(reason))
            case _:
                pass

    async def send_on(self, client: MailboxClient) -> None:
        peers = [DeviceId(bytes.fromhex(peer)) for peer in self.options.peers]
        while True:
            await asyncio.sleep(self.random.expovariate(1 / self.options.pause_s))
            if peers and client.pending_sends < self.options.pending_max:
                await self._send(client, peers)

    async def _send(self, client: MailboxClient, peers: list[DeviceId]) -> None:
        self._number += 1
        body = b"%08d/%08d/" % (self.options.number, self._number) + secrets.token_bytes(self.options.body_bytes)
        some = self.random.sample(peers, min(len(peers), self.random.randint(1, 2)))
        if self.options.sleepers and self.random.random() < SLEEPERS_SHARE:
            some[0] = DeviceId(bytes.fromhex(self.random.choice(self.options.sleepers)))
        envelopes = [
            SendEnvelope(peer, MessageId(secrets.token_bytes(16)), 1, body, self.options.ttl_s) for peer in some
        ]
        cmid = client.next_client_message_id()
        if not any(cmid):
            return  # no id can be issued at the moment: nothing was sent
        self.notes.write(
            "offered", cmid=cmid.hex(), envelopes=[(e.to.hex(), e.mid.hex(), digest(body)) for e in envelopes]
        )
        await client.post(envelopes, client_message_id=cmid)

    async def receive(self, client: MailboxClient) -> None:
        """Note each message before it is confirmed; several that came together are confirmed together."""
        waiting: list[Delivery] = []
        arrived = asyncio.Event()

        async def confirm() -> None:
            while True:
                await arrived.wait()
                arrived.clear()
                while waiting:
                    some = waiting[:CONFIRM_MAX]
                    del waiting[:CONFIRM_MAX]
                    await client.confirm(*some)
                    for delivery in some:
                        self.notes.write("confirmed", mid=delivery.message_id.hex())

        confirming = asyncio.create_task(confirm(), name="confirm")
        try:
            async for delivery in client.messages():
                self.notes.write("handed", mid=delivery.message_id.hex(), content=digest(delivery.body))
                self.last_news = time.monotonic()
                waiting.append(delivery)
                arrived.set()
        finally:
            confirming.cancel()
            await asyncio.wait((confirming,))

    async def disturb(self, client: MailboxClient) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.2, 1.5))
            if not self.options.disturbed:
                continue
            match self.random.randrange(4):
                case 0:
                    client.prefer(self.random.choice([None, None, Transport.HTTP]))
                case 1:
                    client.on_wake()
                case _:
                    client.cut_connection()

    async def settle(self, client: MailboxClient) -> None:
        """Return when nothing is pending on either side and nothing has come for a moment."""
        await client.retry_deferred()
        while True:
            await asyncio.sleep(0.1)
            if client.pending_sends or time.monotonic() - self.last_news < QUIET_S:
                continue
            try:
                if (await client.http.mailbox_status()).pending_entries == 0:
                    return
            except (MailboxError, NoAnswer):
                pass  # not reached at the moment

    async def main(self) -> int:
        options = self.options
        async with MailboxClient(options.url, options.store, settings=SETTINGS, on_event=self.on_event) as client:
            calm = asyncio.create_task(self.calm.wait(), name="calm")
            listening = asyncio.create_task(listen(self.calm), name="listen")
            receiving = asyncio.create_task(self.receive(client), name="receive")
            storm = [
                asyncio.create_task(self.send_on(client), name="send"),
                asyncio.create_task(self.disturb(client), name="disturb"),
            ]
            try:
                if await first({calm, listening, receiving, *storm}) is not calm:
                    return LEFT_ALONE
                await cancel(storm)
                client.prefer(None)
                settling = asyncio.create_task(self.settle(client), name="settle")
                storm.append(settling)
                return 0 if await first({settling, listening, receiving}) is settling else LEFT_ALONE
            finally:
                await cancel([calm, listening, receiving, *storm])


async def listen(calm: asyncio.Event) -> None:
    """Set `calm` when the kit says so; return when the kit is gone."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        if line.strip() == b"calm":
            calm.set()


async def first(tasks: set[asyncio.Task[Any]]) -> asyncio.Task[Any]:
    """The one that ended first; its error is raised here."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return done.pop()


async def cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def digest(body: bytes) -> str:
    """What the history keeps of a body: sender, number and the first of its random bytes."""
    return body[:34].hex()


def options_of(text: str) -> ClientOptions:
    document: dict[str, Any] = json.loads(text)
    return ClientOptions(**document | {name: tuple(document[name]) for name in ("peers", "sleepers")})


def main(arguments: list[str]) -> int:
    options = options_of(arguments[0])
    if options.clock_offset_s:
        _set_clock(options.clock_offset_s)
    return asyncio.run(ClientRun(options).main())


def _set_clock(offset_s: int) -> None:
    """The wall clock as Python code of this process reads it, and no other one."""
    true_time, true_time_ns = time.time, time.time_ns
    time.time = lambda: true_time() + offset_s
    time.time_ns = lambda: true_time_ns() + offset_s * 10**9


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
