"""ACK: released exactly once, stable for ever, one transaction for many devices (seed 000, 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from protocol.errors import MailboxError
from runtime import faultpoints
from store.coalescer import Coalescer, Told, Waiting
from store.faults import Fault
from store.postgres import LaneFault, Postgres
from store.records import AckRequest
from store.sql_files import load_sql

IDS_MAX: Final = 320  # in one batch: the row that remembers it stays within a page
WAITING_MAX: Final = 20_000
ID_BYTES: Final = 16

Item = Waiting[AckRequest, None]


class AckStore:
    """Takes ACKs: told None once the ids are no longer pending in that device's mailbox, whatever they were."""

    def __init__(self, postgres: Postgres, clock: Callable[[], float]) -> None:
        self._sql = load_sql("acks")["ack_batch_v1"]
        self._lane = postgres.lane("ack")
        self._coalescer: Coalescer[AckRequest, None] = Coalescer(
            "ack",
            self._flush,
            clock=clock,
            entries_max=IDS_MAX,
            bytes_max=IDS_MAX * ID_BYTES,
            waiting_max=WAITING_MAX,
            waiting_bytes_max=WAITING_MAX * 100 * ID_BYTES,
        )

    @property
    def after_batch(self) -> list[Callable[[], None]]:
        """Hooks that run once after all callers of a batch were told."""
        return self._coalescer.after_batch

    def put(self, request: AckRequest, done: Callable[[MailboxError | None], None], *, session: int) -> None:
        """Queue an ACK; `done` gets None after the commit, or the error. UNAVAILABLE at once when full."""
        ids = len(request.mids)
        self._coalescer.put(request, key=session, entries=ids, size=ids * ID_BYTES, done=done)

    async def ack(self, request: AckRequest, *, session: int) -> None:
        """The awaitable form. Cancelling it does not recall the ACK; a repeat is harmless."""
        ids = len(request.mids)
        await self._coalescer.submit(request, key=session, entries=ids, size=ids * ID_BYTES)

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new ACKs, finish what is queued."""
        clean = await self._coalescer.drain(timeout_s)
        await self._lane.close()
        return clean

    async def _flush(self, batch: Sequence[Item]) -> Told[AckRequest, None]:
        await faultpoints.reach("ack.before_call")
        try:
            await self._lane.call(self._sql, *columns_of([item.item for item in batch]))
        except LaneFault as failure:
            if failure.fault is Fault.DATA and len(batch) > 1:
                middle = len(batch) // 2
                return [*await self._flush(batch[:middle]), *await self._flush(batch[middle:])]
            error = failure.error()
            return [(item, error) for item in batch]
        await faultpoints.reach("ack.after_commit")
        return [(item, None) for item in batch]


def columns_of(requests: Sequence[AckRequest]) -> tuple[Any, ...]:
    """The arguments of ack_batch_v1: owners sorted, since that is the lock order, then (device, id) pairs."""
    owners = sorted({request.device for request in requests})
    pairs = sorted({(request.device, mid) for request in requests for mid in request.mids})
    return owners, [device for device, _ in pairs], [mid for _, mid in pairs]
