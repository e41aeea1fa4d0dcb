"""The one history checker: bench, simulation, soak and fault runs feed it what they saw, it says what was broken.

It knows only what a client can see: SENDs handed to a connection, their answers, entries that arrived, entries that an
app was given, ACKs that were answered. From that it judges the promises of WIRE ("A session", "Order", "SEND is
atomic") and of seed 000 (section 8): an accepted, unexpired envelope reaches its device once in the app's view, with
the bytes that were sent and in its sender's order; nothing that was never sent, or was refused as not committed,
appears. Pure: no clock, no I/O. Call it in the order in which things happened at the observer.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

EXAMPLES_MAX: Final = 20


class StreamKind(StrEnum):
    """How entries arrive. A push stream is one session's pushed batches, a walk is one chain of pulls by cursor."""

    PUSH = "push"
    WALK = "walk"


class Fault(StrEnum):
    """A promise that was broken. The values are the names in the JSON verdict."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    OUT_OF_ORDER = "out_of_order"
    UNEXPECTED = "unexpected"
    CORRUPTED = "corrupted"
    REFUSED_BUT_STORED = "refused_but_stored"
    WRONG_ANSWER = "wrong_answer"


class OfferedEnvelope(NamedTuple):
    """One envelope of a SEND. `content` is a digest of the body, or the body itself where bodies are shared objects."""

    to: bytes
    mid: bytes
    content: bytes


class Acceptance(NamedTuple):
    """One line of a SEND_ACK: instants in milliseconds of the server's clock. A `SendResult` fits as it is."""

    mid: bytes
    accepted_at: int
    expires_at: int


class _Record:
    """One entry of one mailbox, from its first offer on."""

    __slots__ = (
        "accepted_at",
        "ack_tick",
        "alias",
        "before",
        "confirmed",
        "content",
        "deferred",
        "device",
        "expires_at",
        "first",
        "first_index",
        "first_stream",
        "handed",
        "key",
        "last",
        "mixed",
        "note",
        "order",
        "possible",
        "push",
        "walk",
    )  # fmt: skip

    def __init__(
        self, device: bytes, key: bytes, content: bytes | None, order: object, ordinal: int, note: Any = None
    ) -> None:
        self.note = note
        self.device = device
        self.key = key
        self.content = content  # None: an echo, which has no body
        self.order = order
        self.first = ordinal  # the span of attempts in which it may have taken its position
        self.last = ordinal
        self.before = 0  # the attempt before the last
        self.mixed = False  # offered under several orders: its place is not known
        self.possible = 1  # attempts that were not refused as not committed
        self.accepted_at = 0  # 0: not known to be accepted
        self.expires_at = 0
        self.push: Stream | None = None
        self.walk: Stream | None = None
        self.first_stream: Stream | None = None
        self.first_index = 0
        self.handed = 0
        self.confirmed = False
        self.deferred = False
        self.ack_tick = 0  # 0: no ACK answered
        self.alias: bytes | None = None  # the key under the echo's own message id

    @property
    def received(self) -> bool:
        return self.first_stream is not None


class Attempt:
    """One SEND as it was handed to one connection. Give it back with the answer; an answer that never comes is fine."""

    __slots__ = ("echo", "ordinal", "records", "since")

    def __init__(self, records: tuple[_Record, ...], echo: _Record | None, ordinal: int, since: int) -> None:
        self.records = records
        self.echo = echo
        self.since = since  # its place may be anywhere from this ordinal
        self.ordinal = ordinal  # to this one


class Stream:
    """One session's pushed entries or one walk of pulls: entries come in position order, each at most once."""

    __slots__ = ("count", "device", "highest", "is_push", "opened", "seen_of")

    def __init__(self, device: bytes, kind: StreamKind, opened: int) -> None:
        self.device = device
        self.is_push = kind is StreamKind.PUSH
        self.opened = opened
        self.count = 0
        self.highest: dict[object, int] = {}  # per sending order: the highest `first` that came so far
        self.seen_of: dict[Stream, int] = {}  # per stream that saw an entry first: the highest index met again


class Recorder:
    """Takes one run's history and judges it.

    `settled_kept` bounds the memory of long runs: an entry that was accepted, received and acked is forgotten once that
    many younger ones are settled. No fault escapes by this: an entry that comes again after it was forgotten counts as
    `unexpected` instead of `duplicated`. A run that repeats SENDs needs `settled_kept` larger than the number of
    entries settled while a SEND may still be repeated. None keeps everything.

    `app_view` says that the run records hand-overs to an app: an accepted entry is then lost unless it was handed over.
    Echoes are judged by arrival in either view: a run that does not record arrivals leaves `echo_cmid` out.
    """

    def __init__(self, *, settled_kept: int | None = None, app_view: bool = False) -> None:
        self._settled_kept = settled_kept
        self._app_view = app_view
        self._live: dict[bytes, _Record] = {}
        self._settled: dict[bytes, int] = {}  # key -> tick of the answered ACK, the younger half
        self._settled_old: dict[bytes, int] = {}
        self._tick = 1
        self._gone: set[bytes] = set()
        self._app_highest: dict[tuple[bytes, object], int] = {}
        self._faults = dict.fromkeys(Fault, 0)
        self._examples: list[dict[str, str]] = []
        self.offered_sends = 0
        self.accepted_sends = 0
        self.refused_sends = 0
        self.accepted_entries = 0
        self.received_entries = 0  # distinct
        self.handed_entries = 0  # distinct
        self.acked_entries = 0  # distinct
        self.redelivered = 0  # came again, as it may: un-acked in a new session, un-confirmed after a crash

    # -- the sender's side

    def offered(
        self,
        sender: bytes,
        order: object,
        envelopes: Sequence[OfferedEnvelope],
        *,
        echo_cmid: bytes | None = None,
        note: Any = None,
        instead_of: Attempt | None = None,
    ) -> Attempt:
        """Note a SEND in the moment it is handed to a connection, before any answer can come.

        `order` names the session whose SENDs to one mailbox keep their order (any hashable; a simulation that expects
        order across reconnects names the device instead). `echo_cmid` is the SEND's cmid when it asked for an echo.
        A repeat is offered again, with the same envelopes or the rest of them; one that leaves later, in the same
        connection, but ahead of what waits behind the refused one names that as `instead_of`. `note` comes back
        when an envelope arrives.
        """
        self.offered_sends += 1
        ordinal = self.offered_sends
        live = self._live
        records = []
        for to, mid, content in envelopes:
            key = to + mid
            record = live.get(key)
            if record is None:
                record = live[key] = self._start(to, key, content, order, ordinal, note)
            else:
                self._again(record, content, order, ordinal)
            records.append(record)
        echo: _Record | None = None
        if echo_cmid is not None:
            key = sender + echo_cmid
            echo = live.get(key)
            if echo is None:
                echo = live[key] = self._start(sender, key, None, order, ordinal)
            else:
                self._again(echo, None, order, ordinal)
        return Attempt(tuple(records), echo, ordinal, ordinal if instead_of is None else instead_of.since)

    def accepted(self, attempt: Attempt, results: Sequence[tuple[Any, ...]], *, duplicate: bool | None = None) -> None:
        """Note a SEND_ACK: one `Acceptance` per envelope, in the order sent, and on a repeat the first again.

        `duplicate` as the SEND_ACK says it tells at which attempt the entries took their positions: at this one
        (False), or at one before it (True). None, where it is not known, leaves all of them possible.
        """
        self.accepted_sends += 1
        records = attempt.records
        if len(results) != len(records):
            self._fault(Fault.WRONG_ANSWER, records[0] if records else None, "not one result per envelope")
            return
        for record, (mid, accepted_at, expires_at) in zip(records, results, strict=True):
            if record.key[len(record.device) :] != mid:
                self._fault(Fault.WRONG_ANSWER, record, "results are not in the order sent")
                return
            if duplicate is not None:
                _narrow(record, attempt, duplicate)
            if not record.accepted_at:
                self._accept(record, accepted_at, expires_at)
            elif record.accepted_at != accepted_at and not record.ack_tick and accepted_at < record.expires_at:
                self._fault(Fault.WRONG_ANSWER, record, "a repeat was not answered with the first acceptance")
        echo = attempt.echo
        if echo is not None and not echo.accepted_at and records:
            self._accept(echo, records[0].accepted_at, 0)

    def refused(self, attempt: Attempt, *, not_committed: bool) -> None:
        """Note an ERROR for a SEND. Only `not_committed` says that this attempt left nothing behind."""
        self.refused_sends += 1
        if not not_committed:
            return
        for record in attempt.records:
            self._withdraw(record)
        if attempt.echo is not None:
            self._withdraw(attempt.echo)

    def given_up(self, attempt: Attempt, mids: Container[bytes]) -> Attempt:
        """Note that a sender was told for good that these of its envelopes are not stored, by no attempt at all.

        A refusal that the database decides says that also of earlier attempts whose outcome was unknown, since replay
        is looked at first. Gives the attempt that goes on with the rest.
        """
        rest = []
        for record in attempt.records:
            if record.key[len(record.device) :] in mids:
                record.possible = 1
                self._withdraw(record)
            else:
                rest.append(record)
        return Attempt(tuple(rest), attempt.echo, attempt.ordinal, attempt.since)

    # -- the recipient's side

    def open_stream(self, device: bytes, kind: StreamKind = StreamKind.PUSH) -> Stream:
        """Note the start of a session (at HELLO) or of a walk of pulls (when its first request leaves)."""
        self._tick += 1
        return Stream(device, kind, self._tick)

    def received(self, stream: Stream, mid: bytes, content: bytes | None, echo_cmid: bytes | None = None) -> Any:
        """Note one entry that arrived. For an echo give its cmid; its `content` is None.

        Gives the note with which it was offered, the first time that it arrives; else None.
        """
        device = stream.device
        stream.count += 1
        key = device + (mid if echo_cmid is None else echo_cmid)
        record = self._live.get(key)
        if record is None:
            self._received_unknown(stream, key)
            return None
        note, record.note = record.note, None
        if record.content != content:
            self._fault(Fault.CORRUPTED, record, "other bytes than were sent")
        if record.first_stream is None:
            record.first_stream = stream
            record.first_index = stream.count
            self.received_entries += 1
            if not record.possible and not record.accepted_at:
                self._fault(Fault.REFUSED_BUT_STORED, record, "refused as not committed, and here it is")
            if echo_cmid is not None:
                record.alias = device + mid
                self._live[record.alias] = record
        else:
            self._received_again(stream, record)
        if stream.is_push:
            record.push = stream
        else:
            record.walk = stream
        if not record.mixed:
            highest = stream.highest.get(record.order, 0)
            if record.last < highest:
                self._fault(Fault.OUT_OF_ORDER, record, "behind a later SEND of the same session")
            elif record.first > highest:
                stream.highest[record.order] = record.first
        return note

    def handed_over(self, device: bytes, mid: bytes, content: bytes | None) -> None:
        """Note that the app was given an entry. Again before `confirmed` is legal (a crash), after it is not."""
        record = self._live.get(device + mid)
        if record is None:
            key = device + mid
            known = key in self._settled or key in self._settled_old
            fault = Fault.DUPLICATED if known else Fault.UNEXPECTED
            self._fault_at(fault, device, key, "handed to the app, and never sent or long done")
            return
        if record.content != content:
            self._fault(Fault.CORRUPTED, record, "the app got other bytes than were sent")
        record.handed += 1
        if record.handed == 1:
            self.handed_entries += 1
            if not record.possible and not record.accepted_at:
                self._fault(Fault.REFUSED_BUT_STORED, record, "refused as not committed, and the app has it")
            self._check_app_order(record)
            self._settle(record)
        elif record.confirmed:
            self._fault(Fault.DUPLICATED, record, "handed to the app again after it had confirmed")
        else:
            self.redelivered += 1

    def confirmed(self, device: bytes, mid: bytes) -> None:
        """Note that the app's confirmation of an entry is durable (its call returned)."""
        record = self._live.get(device + mid)
        if record is not None:
            record.confirmed = True

    def deferred(self, device: bytes, mid: bytes) -> None:
        """Note a DEFER: the entry may reach the app later than its sender's order says."""
        record = self._live.get(device + mid)
        if record is not None:
            record.deferred = True

    def acked(self, device: bytes, mids: Iterable[bytes]) -> None:
        """Note an answered ACK (ACK_RESULT or the HTTP answer): streams opened from now on may not show these."""
        self._tick += 1
        tick = self._tick
        live = self._live
        for mid in mids:
            record = live.get(device + mid)
            if record is not None and not record.ack_tick:
                record.ack_tick = tick
                self.acked_entries += 1
                self._settle(record)

    def gone(self, device: bytes) -> None:
        """Note that a device was revoked: what waits for it is nobody's loss any more."""
        self._gone.add(device)

    # -- the verdict

    @property
    def entries_kept(self) -> int:
        """Records in memory, for the bound of long runs."""
        return len(self._live) + len(self._settled) + len(self._settled_old)

    def outstanding(self) -> int:
        """Accepted entries that did not arrive yet; a run drains until it is 0 or its patience ends."""
        return sum(1 for record in self._waiting() if record.device not in self._gone)

    def verdict(self, *, now_ms: int | None = None) -> dict[str, Any]:
        """Judge the history as a JSON document, `ok` first. Call it when every device has drained its mailbox.

        `now_ms` is the server's time: an accepted entry that expired by then and never arrived is `expired_unseen`, no
        loss. Counts of faults come with up to 20 examples, ids shortened to four bytes.
        """
        faults = dict(self._faults)
        examples = list(self._examples)
        expired_unseen = 0
        for record in self._waiting():
            if record.device in self._gone:
                continue
            if now_ms is not None and record.expires_at and record.expires_at <= now_ms:
                expired_unseen += 1
                continue
            faults[Fault.LOST] += 1
            if len(examples) < EXAMPLES_MAX:
                examples.append(_example(Fault.LOST, record.device, record.key, "accepted, and never arrived"))
        return {
            "ok": not any(faults.values()),
            **{fault.value: count for fault, count in faults.items()},
            "offered_sends": self.offered_sends,
            "accepted_sends": self.accepted_sends,
            "refused_sends": self.refused_sends,
            "accepted_entries": self.accepted_entries,
            "received_entries": self.received_entries,
            "handed_entries": self.handed_entries,
            "acked_entries": self.acked_entries,
            "redelivered": self.redelivered,
            "expired_unseen": expired_unseen,
            "examples": examples,
        }

    # -- inside

    def _waiting(self) -> Iterable[_Record]:
        for key, record in self._live.items():
            if record.accepted_at and record.key == key:  # not under its alias
                if self._app_view and record.content is not None:
                    if not record.handed:
                        yield record
                elif record.first_stream is None:
                    yield record

    def _start(
        self, device: bytes, key: bytes, content: bytes | None, order: object, ordinal: int, note: Any = None
    ) -> _Record:
        record = _Record(device, key, content, order, ordinal, note)
        if self._settled_kept is not None:
            tick = self._settled.get(key) or self._settled_old.get(key)
            if tick:  # a repeat of something long done: it is not expected again
                record.ack_tick = tick
                record.handed = 1
                record.confirmed = record.mixed = True
                record.first_stream = _LONG_AGO
        return record

    def _again(self, record: _Record, content: bytes | None, order: object, ordinal: int) -> None:
        record.possible += 1
        record.before, record.last = record.last, ordinal
        if record.order != order:
            record.mixed = True
        if record.content != content:
            self._fault(Fault.WRONG_ANSWER, record, "the run itself offered two bodies under one id")

    def _accept(self, record: _Record, accepted_at: int, expires_at: int) -> None:
        record.accepted_at = accepted_at
        record.expires_at = expires_at
        self.accepted_entries += 1
        if record.ack_tick:
            self._settle(record)

    def _withdraw(self, record: _Record) -> None:
        record.possible -= 1
        if not record.possible and (record.received or record.handed) and not record.accepted_at:
            self._fault(Fault.REFUSED_BUT_STORED, record, "it had arrived, and then was refused as not committed")

    def _received_unknown(self, stream: Stream, key: bytes) -> None:
        tick = self._settled.get(key) or self._settled_old.get(key)
        if tick is None:
            self._fault_at(Fault.UNEXPECTED, stream.device, key, "arrived, and was never sent")
        elif stream.opened > tick:
            self._fault_at(Fault.DUPLICATED, stream.device, key, "came in a stream opened after its ACK was answered")
        else:
            self.redelivered += 1

    def _received_again(self, stream: Stream, record: _Record) -> None:
        if stream is (record.push if stream.is_push else record.walk):
            self._fault(Fault.DUPLICATED, record, "twice in one session or walk")
            return
        if record.ack_tick and stream.opened > record.ack_tick:
            self._fault(Fault.DUPLICATED, record, "came in a stream opened after its ACK was answered")
            return
        self.redelivered += 1
        before = record.first_stream
        if before is None or before is _LONG_AGO:
            return
        if record.first_index < stream.seen_of.get(before, 0):
            self._fault(Fault.OUT_OF_ORDER, record, "two streams of one mailbox differ in their order")
        else:
            stream.seen_of[before] = record.first_index

    def _check_app_order(self, record: _Record) -> None:
        if record.mixed or record.deferred:
            return
        at = (record.device, record.order)
        highest = self._app_highest.get(at, 0)
        if record.last < highest:
            self._fault(Fault.OUT_OF_ORDER, record, "handed to the app behind a later SEND of the same session")
        elif record.first > highest:
            self._app_highest[at] = record.first

    def _settle(self, record: _Record) -> None:
        """Forget what is done, keeping its key for a while; only in runs with bounded memory."""
        kept = self._settled_kept
        if kept is None or not (record.ack_tick and record.accepted_at):
            return
        if not (record.handed or record.received) or (
            self._app_view and record.content is not None and not record.handed
        ):
            return
        settled = self._settled
        for key in (record.key, record.alias):
            if key is not None and self._live.pop(key, None) is not None:
                settled[key] = record.ack_tick
        if len(settled) >= max(1, kept):
            self._settled_old = settled
            self._settled = {}

    def _fault(self, fault: Fault, record: _Record | None, detail: str) -> None:
        if record is None:
            self._fault_at(fault, b"", b"", detail)
        else:
            self._fault_at(fault, record.device, record.key, detail)

    def _fault_at(self, fault: Fault, device: bytes, key: bytes, detail: str) -> None:
        self._faults[fault] += 1
        if len(self._examples) < EXAMPLES_MAX:
            self._examples.append(_example(fault, device, key, detail))


_LONG_AGO: Final = Stream(b"", StreamKind.PUSH, 0)


def _narrow(record: _Record, attempt: Attempt, duplicate: bool) -> None:
    """Of the attempts in which an entry may have taken its position, keep those that the answer to one leaves."""
    if not duplicate:
        record.first, record.last = attempt.since, attempt.ordinal
    elif attempt.ordinal == record.last and record.before:
        record.last = record.before


def _example(fault: Fault, device: bytes, key: bytes, detail: str) -> dict[str, str]:
    mid = key[len(device) :]
    return {"fault": fault.value, "device": device[:4].hex(), "mid": mid[:4].hex(), "detail": detail}
