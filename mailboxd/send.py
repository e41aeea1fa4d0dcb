"""`mailboxd send`: seal a file to one device and leave it in that device's mailbox."""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from mailbox_client import Account, Connected, Disconnected, Event, MailboxClient, SendRefused, SendWaiting
from mailboxd.byte_source import pieces
from mailboxd.progress import Progress
from mailboxd.terminal import CommandError
from mailboxd.transfer import PARTS_MAX, SEALED_CLASSES, Address, Part, part_bytes, seal
from protocol.frames import SendEnvelope
from protocol.ids import MessageId

ENVELOPES_PER_SEND: Final = 15  # of 64 KiB: just below 1 MiB
SENDS_AT_ONCE: Final = 8
RETRY_WAIT_MS: Final = 2_000
PROTOCOL_VERSION: Final = 1


class Sent(NamedTuple):
    """What became of it: all of it is stored durably."""

    transfer: bytes
    parts: int
    bytes: int


def tell(progress: Progress) -> Callable[[Event], None]:
    """What a client's events mean to who waits at the terminal."""

    def on_event(event: Event) -> None:
        match event:
            case SendWaiting(_, code, retry_in_ms):
                progress.wait(f"the server asks for patience ({code})", retry_in_ms)
            case Disconnected(_, retry_in_ms):
                progress.wait("no connection to the server", retry_in_ms)
            case Connected():
                progress.goes_on()
            case _:
                pass

    return on_event


async def send_file(
    source: BinaryIO, to: Address, url: str, state: Path, *, invite: str | None, ttl_s: int | None
) -> Sent:
    """Return when the server has stored everything. A full mailbox is waited for; how far it is is told on stderr.

    Raises CommandError, ClientError, MailboxError; what was sent until then stays there until it expires.
    """
    store = state / "device.sqlite"
    await Account.register(url, store, invite=invite)
    progress = Progress("sent", _size_of(source))
    try:
        async with MailboxClient(url, store, on_event=tell(progress)) as client:
            limits = (await client.http.instance()).limits
            padding = next((size for size in SEALED_CLASSES if 256 << size <= limits.envelope_bytes_max), None)
            if padding is None:
                raise CommandError(f"this instance takes envelopes of at most {limits.envelope_bytes_max} bytes")
            if ttl_s is not None and ttl_s > limits.ttl_s_max:  # WIRE: the server caps it without a word
                progress.line(f"this instance keeps mail for at most {limits.ttl_s_max} s, not {ttl_s} s")
            return await _send_all(client, source, to, padding, ttl_s, progress)
    finally:
        progress.end()


async def _send_all(
    client: MailboxClient, source: BinaryIO, to: Address, padding: int, ttl_s: int | None, progress: Progress
) -> Sent:
    transfer = secrets.token_bytes(16)
    free = asyncio.Semaphore(SENDS_AT_ONCE)
    parts = size = 0
    async with asyncio.TaskGroup() as sending:
        group: list[SendEnvelope] = []
        group_bytes = 0
        async for part in _parts(source, transfer, part_bytes(padding)):
            body = seal(part, to, padding)
            group.append(
                SendEnvelope(to.device, MessageId(secrets.token_bytes(16)), PROTOCOL_VERSION, body, ttl_s, padding)
            )
            parts, size = parts + 1, size + len(part.data)
            group_bytes += len(part.data)
            if len(group) == ENVELOPES_PER_SEND or part.total:
                await free.acquire()
                sending.create_task(_send(client, group, group_bytes, free, progress), name=f"send-{parts}")
                group, group_bytes = [], 0
    return Sent(transfer, parts, size)


async def _send(
    client: MailboxClient, envelopes: list[SendEnvelope], data_bytes: int, free: asyncio.Semaphore, progress: Progress
) -> None:
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
                wait_ms = min(waits, default=RETRY_WAIT_MS)
                progress.wait(f"not taken yet ({', '.join(sorted({refusal.code for refusal in refused}))})", wait_ms)
                await asyncio.sleep(wait_ms / 1_000)
        progress.moved(data_bytes)
    finally:
        free.release()


async def _parts(source: BinaryIO, transfer: bytes, data_bytes: int) -> AsyncGenerator[Part, None]:
    """The source in parts; an empty one has one empty part. Looks one part ahead, to mark the last."""
    number, data = 0, b""
    async for following in pieces(source, data_bytes):
        if data:
            yield Part(transfer, number, 0, data)
            number += 1
            if number >= PARTS_MAX:
                raise CommandError("the file is too large")
        data = following
    yield Part(transfer, number, number + 1, data)


def _size_of(source: BinaryIO) -> int | None:
    """How much there is to read, where that can be known: of a file, not of a pipe."""
    about = os.fstat(source.fileno())
    return about.st_size if stat.S_ISREG(about.st_mode) else None
