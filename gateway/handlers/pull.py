"""PULL_MAILBOX: one page, outside of the window; deletes nothing (seed 000, 3.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.database_time import DatabaseTime
from gateway.delivery import Delivery
from protocol.codec import encode_entry, encode_mailbox_batch
from protocol.cursor import DeviceCursors
from protocol.delivery_state import READ_BYTES_MAX
from protocol.errors import ErrorCode, MailboxError
from protocol.frames import PullMailbox
from protocol.ids import DeviceId
from store.mailbox import MailboxReader
from store.records import Page, ReadRequest

if TYPE_CHECKING:
    from gateway.session import DeviceSession


class PullHandler:
    """Answers with a page behind the cursor, or from the oldest un-acked entry."""

    def __init__(
        self,
        reader: MailboxReader,
        delivery: Delivery,
        database_time: DatabaseTime,
        call_of_device: Callable[[DeviceId], int],
    ) -> None:
        """`call_of_device`: count one request of a device; 0, or the milliseconds to wait. As over HTTP."""
        self._reader = reader
        self._delivery = delivery
        self._database_time = database_time
        self._call_of_device = call_of_device

    def websocket(self, session: DeviceSession, frame: PullMailbox, _size: int) -> None:
        device, cursors = session.device, session.cursors
        if device is None or cursors is None:
            raise RuntimeError("a pull comes after HELLO")
        ref, cursor, limit = frame
        session.contact = True

        def done(page: Page | MailboxError) -> None:
            session.state.pull_answered()
            try:
                session.connection.send(self._answer(session, cursors, ref, after, page))
            except MailboxError as error:
                session.answer_error(error, ref=ref)
            session.answered()

        after = 0
        try:
            if refused_ms := self._call_of_device(device):
                raise MailboxError(ErrorCode.RATE_LIMITED, retry_after_ms=refused_ms)
            if cursor is not None:
                after, _, epoch = cursors.open(cursor, self._database_time.now_ms())
                if epoch != session.epoch:
                    raise MailboxError(ErrorCode.CURSOR_INVALID)
            self._reader.put(ReadRequest(device, after, limit, READ_BYTES_MAX), done, session=session.number)
        except MailboxError as error:
            done(error)

    def _answer(
        self, session: DeviceSession, cursors: DeviceCursors, ref: int, after: int, page: Page | MailboxError
    ) -> bytes:
        if isinstance(page, MailboxError):
            raise page
        if page.epoch != session.epoch:
            self._delivery.other_epoch(session)
            raise MailboxError(ErrorCode.CURSOR_INVALID)
        if after > page.head:
            raise MailboxError(ErrorCode.CURSOR_INVALID)
        position = page.entries[-1].position if page.more else page.head
        return encode_mailbox_batch(
            ref,
            [encode_entry(row.entry) for row in page.entries],
            cursors.seal(position, self._database_time.now_ms(), session.epoch),
            page.more,
            session.state.pull_caught_up(position),
        )
