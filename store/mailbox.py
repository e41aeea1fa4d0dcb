"""Reading mailboxes: pages of un-acked, unexpired entries in order of position. Reading changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import asyncpg

from protocol.errors import MailboxError
from protocol.frames import Entry
from protocol.ids import DeviceId
from store.coalescer import Coalescer, Told, Waiting
from store.postgres import LaneFault, Postgres
from store.records import MailboxStatus, Page, PositionedEntry, ReadRequest
from store.sql_files import load_sql

BYTES_MAX: Final = 8 * 1024 * 1024  # what the pages of one batch may hold at most
ENTRIES_MAX: Final = 4_096
WAITING_MAX: Final = 50_000  # one read a session is in flight

Item = Waiting[ReadRequest, Page]


class MailboxReader:
    """Gives pages; entries and head of one come from one snapshot, so nothing lies unseen between them."""

    def __init__(self, postgres: Postgres, clock: Callable[[], float]) -> None:
        self._postgres = postgres
        self._sql = load_sql("mailbox")
        self._lane = postgres.lane("read")
        self._coalescer: Coalescer[ReadRequest, Page] = Coalescer(
            "read",
            self._flush,
            clock=clock,
            entries_max=ENTRIES_MAX,
            bytes_max=BYTES_MAX,
            waiting_max=WAITING_MAX,
            waiting_bytes_max=WAITING_MAX * BYTES_MAX,
        )

    @property
    def after_batch(self) -> list[Callable[[], None]]:
        """Hooks that run once after all callers of a batch were told."""
        return self._coalescer.after_batch

    def put(self, request: ReadRequest, done: Callable[[Page | MailboxError], None], *, session: int) -> None:
        """Queue a read; `done` gets the page or the error. UNAVAILABLE at once when full."""
        self._coalescer.put(request, key=session, entries=request.entries_max, size=request.bytes_max, done=done)

    async def read(self, request: ReadRequest, *, session: int) -> Page:
        """The awaitable form."""
        return await self._coalescer.submit(request, key=session, entries=request.entries_max, size=request.bytes_max)

    async def status(self, device: DeviceId) -> MailboxStatus:
        """What waits for this device; counted from the rows, not from the counters, since expired ones do not count."""
        row = await self._postgres.fetchrow(self._sql["read_status"], device)
        if row is None:
            raise AssertionError("an aggregate always gives a row")
        return MailboxStatus(row["entries"], row["bytes"], row["oldest_ms"])

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new reads, finish what is queued."""
        clean = await self._coalescer.drain(timeout_s)
        await self._lane.close()
        return clean

    async def _flush(self, batch: Sequence[Item]) -> Told[ReadRequest, Page]:
        try:
            rows = await self._lane.call(self._sql["read_mailboxes"], *columns_of([item.item for item in batch]))
        except LaneFault as failure:
            error = failure.error()
            return [(item, MailboxError(error.code, retry_after_ms=error.retry_after_ms)) for item in batch]
        return list(zip(batch, pages_of(len(batch), rows, self._lane.epoch), strict=True))


def columns_of(requests: Sequence[ReadRequest]) -> tuple[Any, ...]:
    """The arguments of read_mailboxes."""
    return (
        [request.device for request in requests],
        [request.after for request in requests],
        [request.entries_max for request in requests],
        [request.bytes_max for request in requests],
    )


def pages_of(requests: int, rows: Sequence[asyncpg.Record], epoch: bytes) -> list[Page]:
    """The rows of read_mailboxes as one page a request, in order."""
    entries: list[list[PositionedEntry]] = [[] for _ in range(requests)]
    heads = [0] * requests
    more = [False] * requests
    for row in rows:
        n = row["n"] - 1
        heads[n] = row["head"]
        if row["position"] is None:
            continue
        if row["beyond"]:
            more[n] = True
            continue
        entries[n].append(PositionedEntry(row["position"], _entry(row), row["envelope_size"]))
    return [
        Page(tuple(page), head, there_is_more, epoch)
        for page, head, there_is_more in zip(entries, heads, more, strict=True)
    ]


def _entry(row: asyncpg.Record) -> Entry:
    if row["kind"] == 1:
        return Entry(
            row["message_id"], 0, None, row["accepted_ms"], row["expires_ms"], None, row["client_message_id"], True
        )
    return Entry(
        row["message_id"],
        row["protocol_version"],
        row["envelope_bytes"],
        row["accepted_ms"],
        row["expires_ms"],
        row["padding_class"],
        row["client_message_id"],
    )
