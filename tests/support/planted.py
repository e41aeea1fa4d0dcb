"""Starts a part of mailboxd, or a client of the fault kit, with a bug planted in it: the kit must catch each.

    python -m tests.support.planted BUG gateway|worker|client …

Nothing outside of tests starts anything by this.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.support.waiting import pace

WINDOW_S = 0.05  # how long the broken moment is kept open


def answered_before_the_commit() -> None:
    """Senders are told "accepted" while their transaction is still open."""
    from store.postgres import Lane

    true_call = Lane.call
    committing: dict[Lane, asyncio.Task[None]] = {}

    async def commit(connection: Any) -> None:
        await pace(WINDOW_S)
        try:
            await connection.execute("COMMIT")
        except Exception as error:  # what was promised is gone, and nobody hears of it: the bug
            print(f"planted: {error}", file=sys.stderr)

    async def call(lane: Lane, query: str, *arguments: Any) -> list[Any]:
        if "submit_" not in query:
            return await true_call(lane, query, *arguments)
        if (before := committing.pop(lane, None)) is not None:
            await before
        connection = await lane.connected()
        await connection.execute("BEGIN")
        try:
            rows = list(await connection.fetch(query, *arguments))
        except Exception:
            lane.drop()
            return await true_call(lane, query, *arguments)
        committing[lane] = asyncio.create_task(commit(connection))
        return rows

    Lane.call = call  # type: ignore[method-assign]


def cursor_over_a_late_commit() -> None:
    """After a read the stream stands at the clock instead of at the head that the read saw."""
    from gateway.delivery import Delivery

    true_read = Delivery._read

    def read(self: Delivery, session: Any, page: Any) -> None:
        if hasattr(page, "head"):
            page = page._replace(head=max(page.head, time.time_ns() // 1_000))
        true_read(self, session, page)

    Delivery._read = read  # type: ignore[method-assign]


def completed_without_its_generation() -> None:
    """A job ends its intent whatever came since it was judged, and takes its time before that."""
    from store import outbox
    from worker.handlers.wake_device import WakeDevice

    outbox._SQL["complete"] = (
        "WITH closed AS (UPDATE mailboxes SET wake_open = false WHERE device_id ="
        " (SELECT aggregate_ref FROM outbox_events WHERE event_id = $1))"
        " UPDATE outbox_events SET state = 'completed', reason = $4, attempts = 0, updated_at = mailboxd_now()"
        " WHERE event_id = $1 AND $2::bigint > 0 AND $3::bigint >= 0 RETURNING state"
    )
    true_pushed = outbox.OutboxStore.pushed

    async def pushed(self: outbox.OutboxStore, job: Any, began_at: Any) -> None:
        await true_pushed(self, job, began_at)
        # The device comes, reads and acks; then a look at the facts of before says that all is done.
        await pace(10 * WINDOW_S)
        await self.complete(job, reason="contact")

    outbox.OutboxStore.pushed = pushed  # type: ignore[method-assign]
    assert WakeDevice  # it calls `pushed` on the store that is patched here


def pushed_from_memory_while_a_read_runs() -> None:
    """A committed entry is pushed wherever the stream stands, also while a read is on its way."""
    from protocol.delivery_state import DeliveryState

    def offer(self: DeliveryState, position: int, previous_head: int, mid: Any, size: int, expires_at: int) -> bool:
        if not self._open or not self._fits(size):
            self.hint(position)
            return False
        self.sent = max(self.sent, position)
        self._take(mid, size, expires_at)
        return True

    DeliveryState.offer = offer  # type: ignore[method-assign]


def expired_by_the_clients_clock() -> None:
    """The app drops what is expired by its own clock."""
    from mailbox_client import Delivery, MailboxClient

    true_messages = MailboxClient.messages

    async def messages(self: MailboxClient) -> AsyncIterator[Delivery]:
        async for delivery in true_messages(self):
            if delivery.expires_at <= time.time() * 1_000:
                await delivery.confirm()
            else:
                yield delivery

    MailboxClient.messages = messages  # type: ignore[method-assign]


def recorded_before_the_effect() -> None:
    """The record of a request is committed in one transaction and its envelopes in a second one."""
    from store.postgres import Lane

    true_call = Lane.call
    take_out = (
        "CREATE TEMP TABLE IF NOT EXISTS planted (LIKE envelopes);"
        " WITH gone AS (DELETE FROM envelopes WHERE xmin = pg_current_xact_id()::xid RETURNING *)"
        " INSERT INTO planted SELECT * FROM gone"
    )
    put_in = "WITH back AS (DELETE FROM planted RETURNING *) INSERT INTO envelopes SELECT * FROM back"

    async def call(lane: Lane, query: str, *arguments: Any) -> list[Any]:
        if "submit_" not in query:
            return await true_call(lane, query, *arguments)
        connection = await lane.connected()
        await connection.execute("BEGIN")
        try:
            rows = list(await connection.fetch(query, *arguments))
        except Exception:
            lane.drop()
            return await true_call(lane, query, *arguments)
        await connection.execute(take_out + "; COMMIT")
        await pace(WINDOW_S)
        await connection.execute(put_in)
        return rows

    Lane.call = call  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    plant.__name__: plant
    for plant in (
        answered_before_the_commit,
        cursor_over_a_late_commit,
        completed_without_its_generation,
        pushed_from_memory_while_a_read_runs,
        expired_by_the_clients_clock,
        recorded_before_the_effect,
    )
}


def main(arguments: list[str]) -> int:
    bug, part, *rest = arguments
    BUGS[bug]()
    if part == "client":
        from loadtest.faults.client import main as client

        return client(rest)
    from mailboxd.cli import main as mailboxd

    sys.argv = ["mailboxd", part, *rest]
    return mailboxd() or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
