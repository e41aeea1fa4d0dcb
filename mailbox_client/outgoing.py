"""Pending sends: durable before the first byte, in order, reconciled before any resend (seed 002, decision 1).

The order discipline is kept here and nowhere else: after a connection was lost nothing is given out until `reconciled`
was called, then the unmatched go first, in their old order and under their old ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mailbox_client.backoff import full_jitter
from mailbox_client.events import Event, Reconciled, SendConfirmed, SendOutcomeUnknown, SendsRefused, SendWaiting
from mailbox_client.local_store import LocalStore, SendState, StoredSend
from mailbox_client.receipts import Accepted, Receipt, Refusal
from mailbox_client.sends import wire_bytes
from mailbox_client.settings import ClientSettings
from protocol.errors import ErrorCode
from protocol.frames import Send, SendEnvelope, SendResult
from protocol.ids import ClientMessageId, DeviceId
from protocol.limits import WireLimits

# Nothing is wrong with the send itself: it is tried again by itself. MAILBOX_FULL is not among them, since it may last
# for days: the app is told, and the rest of the recipients is not held up.
_WAIT: Final = frozenset(
    {
        ErrorCode.RATE_LIMITED,
        ErrorCode.ECHO_BACKLOG_FULL,
        ErrorCode.UNAVAILABLE,
        ErrorCode.INTERNAL,
        ErrorCode.UNAUTHENTICATED,  # the token ended under way; the connection gets another
        ErrorCode.TOKEN_EXPIRED,
    }
)


@dataclass(slots=True)
class _Pending:
    stored: StoredSend
    bytes: int
    created_here: int | None = None  # monotonic; None: made by an earlier process
    in_flight_since: int | None = None
    not_before: int = 0
    attempts: int = 0


class Outgoing:
    """The pending sends of one device.

    Promise: a send is given out only while its session lives, or after a reconciliation that did not find it; it ends
    exactly once, as confirmed, refused or unknown; and what is not yet answered is in the store.
    """

    def __init__(self, store: LocalStore, settings: ClientSettings, random: Callable[[], float]) -> None:
        self._store = store
        self._settings = settings
        self._random = random
        self._order = store.last_send_order()
        self._pending: dict[ClientMessageId, _Pending] = {}  # in the order to send
        for stored in store.sends(SendState.PENDING):
            self._pending[stored.cmid] = _Pending(stored, wire_bytes(stored.envelopes))
        self._open = False
        self._paused_until = 0
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._matched = 0  # by the mailbox's entries, since the connection was lost

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, cmid: ClientMessageId) -> bool:
        return cmid in self._pending

    @property
    def in_flight(self) -> int:
        return self._in_flight

    # -- the app

    def submit(
        self,
        now: int,
        server_now: int | None,
        cmid: ClientMessageId,
        envelopes: tuple[SendEnvelope, ...],
        echo: bool,
    ) -> None:
        """Keep a new send; it goes out behind all that are pending."""
        self._order += 1
        stored = StoredSend(cmid, self._order, envelopes, echo, SendState.PENDING, server_now)
        self._store.add_send(stored)
        self._pending[cmid] = _Pending(stored, wire_bytes(envelopes), now)

    def try_again(self, now: int, server_now: int | None, cmid: ClientMessageId) -> None:
        """Take a send whose outcome is unknown back among the pending, as the app decided. Others are passed over."""
        stored = self._store.send(cmid)
        if stored is not None and stored.state is SendState.UNKNOWN:
            stored = stored._replace(state=SendState.PENDING, created_at=server_now)
            self._store.save_send(stored)
            self._pending[cmid] = _Pending(stored, wire_bytes(stored.envelopes), now)

    def forget(self, cmid: ClientMessageId) -> None:
        """End a send whose outcome is unknown, as the app decided."""
        stored = self._store.send(cmid)
        if stored is not None and stored.state is SendState.UNKNOWN:
            self._store.save_send(stored._replace(state=SendState.REFUSED))

    # -- reconciliation

    def server_time_learned(self, now: int, server_now: int) -> None:
        """Give the sends made before any server time was known their time of creation, counted back from now.

        Nothing of them has left the device yet: a token comes first, and tells the time.
        """
        for pending in self._pending.values():
            if pending.stored.created_at is None:
                age = now - pending.created_here if pending.created_here is not None else 0
                self._save(pending, pending.stored._replace(created_at=server_now - age))

    def connection_lost(self) -> list[Event]:
        """Close the way out until `reconciled`: whatever was in flight may or may not have been committed."""
        self._open = False
        self._matched = 0
        self._in_flight = self._in_flight_bytes = 0
        events: list[Event] = []
        for pending in list(self._pending.values()):
            pending.in_flight_since = None
            pending.not_before = pending.attempts = 0
            if pending.stored.accepted_at is not None:
                events.append(self._confirm_by_entry(pending, pending.stored.accepted_at))
        return events

    def entry_seen(self, cmid: ClientMessageId, accepted_at: int) -> list[Event]:
        """An entry with this cmid is in the mailbox: its send was committed, all of it (SEND is atomic).

        Of a send in flight only the proof is kept, since its SEND_ACK says more and is on its way.
        """
        pending = self._pending.get(cmid)
        if pending is None:
            return []
        if pending.in_flight_since is not None:
            self._save(pending, pending.stored._replace(accepted_at=accepted_at))
            return []
        self._matched += 1
        return [self._confirm_by_entry(pending, accepted_at)]

    def reconciled(self, server_now: int) -> list[Event]:
        """The mailbox was read to the watermark: what it did not show was not committed and may go out again."""
        events: list[Event] = []
        if self._open:
            return events
        self._open = True
        unknown = 0
        for cmid, pending in list(self._pending.items()):
            created_at = pending.stored.created_at
            if created_at is not None and server_now - created_at > self._settings.pending_age_ms:
                self._save(pending, pending.stored._replace(state=SendState.UNKNOWN))
                del self._pending[cmid]
                unknown += 1
                events.append(SendOutcomeUnknown(cmid))
        return [Reconciled(self._matched, len(self._pending), unknown), *events]

    # -- the wire

    def take(self, now: int, limits: WireLimits | None, sends_max: int) -> tuple[list[Send], list[Event]]:
        """Give out what may go now, in order, and count it as in flight. Events: what can never go here."""
        sends: list[Send] = []
        events: list[Event] = []
        if not self._open or now < self._paused_until or self._in_flight == len(self._pending):
            return sends, events
        bytes_max = limits.bytes_in_flight if limits is not None else self._settings.pending_bytes_max
        behind: set[DeviceId] = set()  # recipients of a send that waits: later ones to them wait as well
        for pending in list(self._pending.values()):
            if pending.in_flight_since is not None:
                continue
            recipients = {envelope.to for envelope in pending.stored.envelopes}
            if now < pending.not_before or not behind.isdisjoint(recipients):
                behind |= recipients
                continue
            if limits is not None and pending.bytes > limits.max_frame_bytes:
                events.append(self._refuse(pending, range(len(pending.stored.envelopes)), ErrorCode.REQUEST_TOO_LARGE))
                continue
            full = self._in_flight_bytes + pending.bytes > bytes_max and self._in_flight > 0
            if self._in_flight >= sends_max or full:
                break
            pending.in_flight_since = now
            self._in_flight += 1
            self._in_flight_bytes += pending.bytes
            sends.append(Send(pending.stored.cmid, pending.stored.envelopes, pending.stored.echo))
        return sends, events

    def answered(self, cmid: ClientMessageId, duplicate: bool, results: Sequence[SendResult]) -> list[Event]:
        """A SEND_ACK, or the HTTP answer: the send is done."""
        pending = self._pending.get(cmid)
        if pending is None:
            return []
        envelopes = pending.stored.envelopes
        accepted = tuple(
            Accepted(envelope.to, envelope.mid, result.accepted_at, result.expires_at)
            for envelope, result in zip(envelopes, results, strict=False)
        )
        accepted_at = accepted[0].accepted_at if accepted else pending.stored.accepted_at
        self._finish(pending, pending.stored._replace(state=SendState.CONFIRMED, accepted_at=accepted_at))
        return [SendConfirmed(Receipt(cmid, accepted, pending.stored.refused, duplicate))]

    def failed(
        self, now: int, cmid: ClientMessageId, code: ErrorCode, at: Sequence[int] | None, retry_after_ms: int | None
    ) -> list[Event]:
        """An error for a send in a living connection: wait and repeat it, or drop the refused and go on with the rest.

        Nothing was recorded for a refused SEND, so the rest keeps the cmid (WIRE, "SEND is atomic").
        """
        pending = self._pending.get(cmid)
        if pending is None or pending.in_flight_since is None:
            return []
        if pending.stored.accepted_at is not None:
            return [
                self._confirm_by_entry(pending, pending.stored.accepted_at)
            ]  # its entry is in the mailbox: the error speaks of a repeat
        self._back_from_flight(pending)
        count = len(pending.stored.envelopes)
        refused = [index for index in at or () if 0 <= index < count] or list(range(count))
        if code in _WAIT and len(refused) == count:
            return [self._wait(now, pending, code, retry_after_ms, everybody=not at)]
        return [self._refuse(pending, refused, code, retry_after_ms)]

    def stalled(self, now: int) -> bool:
        """True if an answer is overdue for so long that the connection must be dead."""
        deadline = now - self._settings.send_answer_ms
        return self._in_flight > 0 and any(
            pending.in_flight_since is not None and pending.in_flight_since <= deadline
            for pending in self._pending.values()
        )

    def next_due(self, now: int) -> int | None:
        """When, after now, `take` or `stalled` may say something new by time alone."""
        if not self._open:
            return None
        dues = []
        for pending in self._pending.values():
            if pending.in_flight_since is not None:
                dues.append(pending.in_flight_since + self._settings.send_answer_ms)
            else:
                dues.append(max(pending.not_before, self._paused_until))
        return min((due for due in dues if due > now), default=None)

    # -- inside

    def _save(self, pending: _Pending, stored: StoredSend) -> None:
        pending.stored = stored
        self._store.save_send(stored)

    def _finish(self, pending: _Pending, stored: StoredSend) -> None:
        if pending.in_flight_since is not None:
            self._back_from_flight(pending)
        self._save(pending, stored)
        del self._pending[stored.cmid]

    def _back_from_flight(self, pending: _Pending) -> None:
        pending.in_flight_since = None
        self._in_flight -= 1
        self._in_flight_bytes -= pending.bytes

    def _confirm_by_entry(self, pending: _Pending, accepted_at: int) -> Event:
        stored = pending.stored
        accepted = tuple(Accepted(envelope.to, envelope.mid, accepted_at, None) for envelope in stored.envelopes)
        self._finish(pending, stored._replace(state=SendState.CONFIRMED, accepted_at=accepted_at))
        return SendConfirmed(Receipt(stored.cmid, accepted, stored.refused, duplicate=False, reconciled=True))

    def _wait(
        self, now: int, pending: _Pending, code: ErrorCode, retry_after_ms: int | None, *, everybody: bool
    ) -> Event:
        pending.attempts += 1
        settings = self._settings
        jitter = full_jitter(settings.retry_base_ms, settings.retry_cap_ms, pending.attempts, self._random())
        wait = max(retry_after_ms or 0, jitter)
        pending.not_before = now + wait
        if everybody:  # the sender's own rate, or the server: the next send would fare no better
            self._paused_until = max(self._paused_until, pending.not_before)
        return SendWaiting(pending.stored.cmid, code.value, wait)

    def _refuse(
        self, pending: _Pending, indices: Sequence[int], code: ErrorCode, retry_after_ms: int | None = None
    ) -> Event:
        stored = pending.stored
        out = set(indices)
        refused = tuple(
            Refusal(stored.envelopes[index].to, stored.envelopes[index].mid, code.value, retry_after_ms)
            for index in sorted(out)
        )
        rest = tuple(envelope for index, envelope in enumerate(stored.envelopes) if index not in out)
        everyone = stored.refused + refused
        if rest:
            # Durable before the rest goes out: an echo proves exactly what the last attempt held.
            self._save(pending, stored._replace(envelopes=rest, refused=everyone))
            pending.bytes = wire_bytes(rest)
            return SendsRefused(stored.cmid, refused, nothing_left=False)
        self._finish(pending, stored._replace(state=SendState.REFUSED, refused=everyone))
        return SendsRefused(stored.cmid, everyone, nothing_left=True)
