"""A client as a process of its own, to be killed: it sends, receives, and writes down what it saw, line by line.

    python -m tests.support.client_process URL STORE LOG PEER,PEER,… storm|calm

Each line holds the machine's monotonic time, so that the lines of several processes can be put in order. In a storm it
goes on until it is killed; in the calm it sends nothing, confirms everything and ends when all is settled.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from mailbox_client import (
    ClientSettings,
    Event,
    MailboxClient,
    SendConfirmed,
    SendsRefused,
    Transport,
)
from protocol.frames import SendEnvelope
from protocol.ids import DeviceId, MessageId
from tests.support.waiting import eventually, pace

SETTINGS = ClientSettings(backoff_base_ms=20, backoff_cap_ms=1_000, retry_base_ms=20, retry_cap_ms=1_000)
QUIET_S = 1.0
CALM_S = 100.0


class Notes:
    """Whole lines, each written at once: a killed process leaves no half line behind."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: str, **fields: Any) -> None:
        line = json.dumps({"at": time.monotonic_ns(), "what": what, **fields}) + "\n"
        os.write(self._file, line.encode())


async def send_on(client: MailboxClient, peers: list[DeviceId], notes: Notes) -> None:
    while True:
        await pace(random.choice([0, 0, 0.01, 0.1]))
        envelopes = [
            SendEnvelope(peer, MessageId(random.randbytes(16)), 1, random.randbytes(random.choice([16, 1_000])))
            for peer in random.sample(peers, random.randint(1, 2))
        ]
        cmid = client.next_client_message_id()
        if not any(cmid):
            continue
        notes.write(
            "offered",
            cmid=cmid.hex(),
            envelopes=[(one.to.hex(), one.mid.hex(), one.body[:16].hex()) for one in envelopes],
        )
        await client.post(envelopes, client_message_id=cmid)


async def receive(client: MailboxClient, notes: Notes, pause: Callable[[], Awaitable[None]]) -> None:
    async for delivery in client.messages():
        notes.write("handed", mid=delivery.message_id.hex(), content=delivery.body[:16].hex())
        await pause()
        await delivery.confirm()
        notes.write("confirmed", mid=delivery.message_id.hex())


async def disturb(client: MailboxClient) -> None:
    while True:
        await pace(random.uniform(0.1, 1.0))
        random.choice(
            [
                client.cut_connection,
                client.on_wake,
                lambda: client.prefer(random.choice([None, None, Transport.HTTP])),
            ]
        )()


async def storm(client: MailboxClient, peers: list[DeviceId], notes: Notes) -> None:
    async def pause() -> None:
        await pace(random.choice([0, 0, 0.02]))

    await asyncio.gather(send_on(client, peers, notes), receive(client, notes, pause), disturb(client))


async def calm(client: MailboxClient, notes: Notes) -> None:
    last = time.monotonic()

    async def pause() -> None:
        nonlocal last
        last = time.monotonic()

    receiving = asyncio.create_task(receive(client, notes, pause))
    await client.caught_up()
    await client.retry_deferred()

    async def settled() -> bool:
        quiet = not client.pending_sends and time.monotonic() - last >= QUIET_S
        return quiet and (await client.http.mailbox_status()).pending_entries == 0

    await eventually(settled, within_seconds=CALM_S, what="everything is settled")
    receiving.cancel()


async def main(url: str, store: str, log: str, peers: str, mode: str) -> None:
    notes = Notes(log)

    def on_event(event: Event) -> None:
        match event:
            case SendConfirmed(receipt):
                notes.write(
                    "accepted",
                    cmid=receipt.client_message_id.hex(),
                    results=[(one.message_id.hex(), one.accepted_at, one.expires_at) for one in receipt.accepted],
                )
            case SendsRefused(cmid, refused, _):
                notes.write("refused", cmid=cmid.hex(), codes=[one.code for one in refused])
            case _:
                pass

    async with MailboxClient(url, store, settings=SETTINGS, on_event=on_event) as client:
        if mode == "storm":
            await storm(client, [DeviceId(bytes.fromhex(peer)) for peer in peers.split(",")], notes)
        else:
            await calm(client, notes)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
