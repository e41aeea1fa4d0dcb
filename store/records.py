"""What goes in and out of the mailbox transactions, as values."""

from __future__ import annotations

from typing import NamedTuple

from protocol.frames import Entry, SendEnvelope, SendResult
from protocol.ids import ClientMessageId, DeviceId, MessageId


class SubmitRequest(NamedTuple):
    """One SEND, well-formed, with what its door already knows."""

    session: int  # order key: one number a connection or HTTP request, unique in the process
    actor: DeviceId
    operation: str  # protocol.admission.SEND or SEND_BY_KEY
    key: bytes  # the cmid, or the Idempotency-Key's ASCII
    cmid: ClientMessageId | None
    envelopes: tuple[SendEnvelope, ...]
    echo: bool
    rate_refused_ms: int | None = None  # the sender's rate says no for n ms; a replay still gets its answer
    pair_refused: tuple[int, ...] = ()  # envelopes that the per-pair rate refuses
    pair_retry_after_ms: int = 0


class StoredEntry(NamedTuple):
    """One entry that this request put into a mailbox; `previous_head` is the mailbox's head before it."""

    device: DeviceId
    position: int
    previous_head: int
    entry: Entry
    size: int


class Submitted(NamedTuple):
    """A committed SEND. `epoch` is the one of the connection that gave the positions."""

    duplicate: bool
    results: tuple[SendResult, ...]
    stored: tuple[StoredEntry, ...]
    epoch: bytes
    filling: tuple[DeviceId, ...]  # recipients that are now above 80 % of a quota


class AckRequest(NamedTuple):
    device: DeviceId
    mids: tuple[MessageId, ...]


class ReadRequest(NamedTuple):
    """`after` 0 reads from the oldest un-acked entry."""

    device: DeviceId
    after: int
    entries_max: int
    bytes_max: int


class PositionedEntry(NamedTuple):
    position: int
    entry: Entry
    size: int


class Page(NamedTuple):
    """Un-acked, unexpired entries in order, and the mailbox's head of the same snapshot."""

    entries: tuple[PositionedEntry, ...]
    head: int
    more: bool
    epoch: bytes


class MailboxStatus(NamedTuple):
    """Un-acked and unexpired, echoes not counted; the instant in ms, None when nothing waits."""

    pending_entries: int
    pending_bytes: int
    oldest_accepted_at: int | None
