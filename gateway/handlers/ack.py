"""ACK: `acked` for every well-formed id once the commit is through (WIRE, last paragraph)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gateway.delivery import Delivery
from gateway.metrics import GatewayMetrics
from protocol.codec import encode_ack_result
from protocol.errors import MailboxError
from protocol.frames import Ack
from store.acks import AckStore
from store.records import AckRequest

if TYPE_CHECKING:
    from gateway.session import DeviceSession


class AckHandler:
    """Takes ACKs to the store. The window of the session was freed when the ACK came in."""

    def __init__(self, acks: AckStore, delivery: Delivery, metrics: GatewayMetrics) -> None:
        self._acks = acks
        self._delivery = delivery
        self._tally = metrics.tally

    def websocket(self, session: DeviceSession, frame: Ack, _size: int) -> None:
        device = session.device
        if device is None:
            raise RuntimeError("an ACK comes after HELLO")
        ref, mids = frame
        count = len(mids)
        # Ids that were not in the window: pulled, or of an earlier session. The push stream must step over them.
        done = partial(self._done, session, ref, count, session.released < count)
        try:
            self._acks.put(AckRequest(device, mids), done, session=session.number)
        except MailboxError as error:
            done(error)
        self._delivery.pump(session)

    def _done(self, session: DeviceSession, ref: int, count: int, strangers: bool, error: MailboxError | None) -> None:
        """The store decided: answer the client, if it is still there."""
        session.state.ack_answered()
        if error is not None:
            session.answer_error(error, ref=ref)
        else:
            self._tally.acks += count
            session.connection.send_patiently(encode_ack_result(ref, count))
            if strangers:
                self._delivery.recheck(session)
        session.answered()
