"""`mailboxd send`: seal a file to one device and leave it in that device's mailbox."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from mailbox_client import Account, Event, MailboxClient, SendWaiting
from mailbox_client.errors import SendRefused
from mailboxd.terminal import CommandError
from mailboxd.transfer import PARTS_MAX, SEALED_CLASSES, Address, Part, part_bytes, seal
from protocol.frames import SendEnvelope
from protocol.ids import MessageId

ENVELOPES_PER_SEND: Final = 15  # of 64 KiB: just below 1 MiB
SENDS_AT_ONCE: Final = 8
RETRY_WAIT_S: Final = 2.0
PROTOCOL_VERSION: Final = 1


class Sent(NamedTuple):
    """What became of it: all of it is stored durably."""

    transfer: bytes
    parts: int
    bytes: int


async def send_file(
    source: BinaryIO, to: Address, url: str, state: Path, *, invite: str | None, ttl_s: int | None
) -> Sent:
    """Return when the server has stored everything. A full mailbox is waited for.

    Raises CommandError, ClientError, MailboxError; what was sent until then stays there until it expires.
    """
    store = state / "device.sqlite"
    await Account.register(url, store, invite=invite)
    waiting = _Notice()
    async with MailboxClient(url, store, on_event=waiting) as client:
        limits = (await client.http.instance()).limits
        padding = next((size for size in SEALED_CLASSES if 256 << size <= limits.envelope_bytes_max), None)
        if padding is None:
            raise CommandError(f"this instance takes envelopes of at most {limits.envelope_bytes_max} bytes, too small")
        transfer = secrets.token_bytes(16)
        free = asyncio.Semaphore(SENDS_AT_ONCE)
        parts = size = 0
        async with asyncio.TaskGroup() as sending:
            group: list[SendEnvelope] = []
            for part in _parts(source, transfer, part_bytes(padding)):
                body = seal(part, to, padding)
                group.append(
                    SendEnvelope(to.device, MessageId(secrets.token_bytes(16)), PROTOCOL_VERSION, body, ttl_s, padding)
                )
                parts, size = parts + 1, size + len(part.data)
                if len(group) == ENVELOPES_PER_SEND or part.total:
                    await free.acquire()
                    sending.create_task(_send(client, group, free), name=f"send-{parts}")
                    group = []
    return Sent(transfer, parts, size)


async def _send(client: MailboxClient, envelopes: list[SendEnvelope], free: asyncio.Semaphore) -> None:
    """Until every envelope is stored. Only what may succeed later is tried again, as a new send."""
    try:
        while envelopes:
            try:
                refused = (await client.send_envelopes(envelopes)).refused
            except SendRefused as error:
                refused = error.refused
            final = sorted({refusal.code for refusal in refused if not refusal.retryable})
            if final:
                raise CommandError(f"refused: {', '.join(final)}")
            again = {refusal.message_id for refusal in refused}
            envelopes = [envelope for envelope in envelopes if envelope.mid in again]
            if envelopes:
                waits = [refusal.retry_after_ms for refusal in refused if refusal.retry_after_ms]
                await asyncio.sleep(min(waits) / 1_000 if waits else RETRY_WAIT_S)
    finally:
        free.release()


def _parts(source: BinaryIO, transfer: bytes, data_bytes: int) -> Iterator[Part]:
    """The source in parts; an empty one has one empty part. Looks one part ahead, to mark the last."""
    number, data = 0, source.read(data_bytes)
    while following := source.read(data_bytes):
        yield Part(transfer, number, 0, data)
        number, data = number + 1, following
        if number >= PARTS_MAX:
            raise CommandError("the file is too large")
    yield Part(transfer, number, number + 1, data)


class _Notice:
    """Says once that the server asks for patience."""

    def __init__(self) -> None:
        self._said = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, SendWaiting) and not self._said:
            self._said = True
            print(f"mailboxd: the server asks to wait ({event.code}); going on slowly", file=sys.stderr, flush=True)
