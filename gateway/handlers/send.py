"""SEND, for both doors: the sender's rates, the commit, and moving on what was committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.byte_budget import ByteBudget
from gateway.conflict_audit import ConflictAudit
from gateway.delivery import Delivery
from gateway.metrics import GatewayMetrics
from protocol.codec import encode_send_ack
from protocol.errors import ErrorCode, MailboxError
from protocol.frames import Send, SendEnvelope
from protocol.ids import ClientMessageId, DeviceId
from store.rate_limit import RateLimiter
from store.records import SubmitRequest, Submitted
from store.submit import SubmitStore

if TYPE_CHECKING:
    from gateway.session import DeviceSession

Done = Callable[[Submitted | MailboxError], None]

_new: Final = tuple.__new__  # as the class's own constructor, without the Python function around it


class SendHandler:
    """Takes SENDs to the store. An answer that is no error stands for a commit."""

    def __init__(
        self,
        submit: SubmitStore,
        rates: RateLimiter,
        delivery: Delivery,
        budget: ByteBudget,
        conflicts: ConflictAudit,
        metrics: GatewayMetrics,
    ) -> None:
        self._submit = submit
        self._rates = rates
        self._delivery = delivery
        self._budget = budget
        self._conflicts = conflicts
        self._tally = metrics.tally
        submit.after_batch.append(delivery.committed)

    def websocket(self, session: DeviceSession, frame: Send, size: int) -> None:
        """SEND on a session: SEND_ACK or ERROR follows after the commit."""
        device = session.device
        if device is None:
            raise RuntimeError("a SEND comes after HELLO")
        cmid, envelopes, echo = frame
        answer = partial(self.answered, session, cmid, size)
        self._budget.take(size)
        try:
            request = self._request(
                session.number, device, session.connection.address, "send", cmid, cmid, envelopes, echo
            )
            self._submit.put(request, answer)
        except MailboxError as error:
            answer(error)

    async def http(
        self,
        *,
        order: int,
        device: DeviceId,
        address: str,
        cmid: ClientMessageId | None,
        idempotency_key: bytes | None,
        envelopes: tuple[SendEnvelope, ...],
        echo: bool,
        request_id: str,
    ) -> Submitted:
        """The SEND of HTTP, with exactly one of `cmid` and `idempotency_key`. Raises the refusal.

        `order`: a number of this request's own. Cancelling it does not recall the SEND.
        """
        if cmid is not None:
            request = self._request(order, device, address, "send", cmid, cmid, envelopes, echo)
        else:
            request = self._request(order, device, address, "send.key", idempotency_key or b"", None, envelopes, echo)
        future: asyncio.Future[Submitted] = asyncio.get_running_loop().create_future()

        def done(result: Submitted | MailboxError) -> None:
            if not isinstance(result, MailboxError):
                self._stored(result)  # at once, in commit order, whether somebody still waits or not
            elif result.code is ErrorCode.MESSAGE_ID_CONFLICT:
                self._conflicts.note(device, request_id)
            if future.done():
                return
            if isinstance(result, MailboxError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self._submit.put(request, done)
        return await future

    def _request(
        self,
        order: int,
        device: DeviceId,
        address: str,
        operation: str,
        key: bytes,
        cmid: ClientMessageId | None,
        envelopes: tuple[SendEnvelope, ...],
        echo: bool,
    ) -> SubmitRequest:
        rates = self._rates.submit(device, address, envelopes)
        return _new(SubmitRequest, (order, device, operation, key, cmid, envelopes, echo, *rates))

    def answered(
        self, session: DeviceSession, cmid: ClientMessageId, size: int, result: Submitted | MailboxError
    ) -> None:
        """The store decided: answer the sender, if it is still there, and note what was stored for whom."""
        self._budget.give_back(size)
        session.state.send_answered(size)
        if isinstance(result, MailboxError):
            request_id = session.answer_error(result, cmid=cmid)
            if result.code is ErrorCode.MESSAGE_ID_CONFLICT and session.device is not None:
                self._conflicts.note(session.device, request_id)
        else:
            session.connection.send(encode_send_ack(cmid, result.duplicate, result.results))
            self._stored(result)
        session.answered()

    def _stored(self, submitted: Submitted) -> None:
        self._delivery.stored(submitted)
        self._tally.sends += 1
