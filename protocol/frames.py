"""The frames of WIRE as values. Tuples, because they are made by the hundred thousand and never changed."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from protocol.errors import ErrorCode, Outcome
from protocol.ids import ClientMessageId, DeviceId, MessageId
from protocol.limits import PULL_LIMIT_DEFAULT, WINDOW_BYTES_DEFAULT, WINDOW_ENTRIES_DEFAULT, WireLimits


class FrameType(IntEnum):
    """A type number never changes its meaning."""

    HELLO = 1
    SEND = 2
    ACK = 3
    PULL_MAILBOX = 4
    DEFER = 5
    REAUTH = 6
    PING = 7
    WELCOME = 65
    SEND_ACK = 66
    MAILBOX_BATCH = 67
    ACK_RESULT = 68
    PUSH_EVENTS = 69
    PONG = 70
    GOAWAY = 71
    ERROR = 72


class SendEnvelope(NamedTuple):
    """One sealed envelope as the sender hands it in."""

    to: DeviceId
    mid: MessageId
    pv: int
    body: bytes
    ttl_s: int | None = None
    pad: int | None = None


class Hello(NamedTuple):
    token: str
    cursor: str | None = None
    window_entries: int = WINDOW_ENTRIES_DEFAULT  # already capped by the codec
    window_bytes: int = WINDOW_BYTES_DEFAULT
    instance: bytes | None = None
    attempt: int | None = None
    client: str | None = None


class Send(NamedTuple):
    cmid: ClientMessageId
    envelopes: tuple[SendEnvelope, ...]
    echo: bool = True


class Ack(NamedTuple):
    ref: int
    mids: tuple[MessageId, ...]


class PullMailbox(NamedTuple):
    ref: int
    cursor: str | None = None
    limit: int = PULL_LIMIT_DEFAULT


class Defer(NamedTuple):
    mids: tuple[MessageId, ...]


class Reauth(NamedTuple):
    token: str


class Ping(NamedTuple):
    t: Any = None


ClientFrame = Hello | Send | Ack | PullMailbox | Defer | Reauth | Ping


class Welcome(NamedTuple):
    session: str
    now: int
    heartbeat_s: int
    reauth_before: int
    limits: WireLimits
    watermark: str
    pending: bool


class SendResult(NamedTuple):
    mid: MessageId
    accepted_at: int
    expires_at: int


class SendAck(NamedTuple):
    cmid: ClientMessageId
    duplicate: bool
    results: tuple[SendResult, ...]


class Entry(NamedTuple):
    """One mailbox entry as the client sees it. An echo has `echo` true, pv 0 and no body."""

    mid: MessageId
    pv: int
    body: bytes | None
    accepted_at: int
    expires_at: int
    pad: int | None = None
    cmid: ClientMessageId | None = None
    echo: bool = False


class MailboxBatch(NamedTuple):
    ref: int | None
    entries: tuple[Entry, ...]
    cursor: str
    more: bool
    caught_up: bool


class AckResult(NamedTuple):
    ref: int
    results: tuple[str, ...]


class PushEvents(NamedTuple):
    events: tuple[dict[str, Any], ...]


class Pong(NamedTuple):
    t: Any = None


class GoAway(NamedTuple):
    reconnect_after_ms: int
    reason: str


class Error(NamedTuple):
    code: ErrorCode
    message: str
    retryable: bool
    request_id: str
    ref: int | None = None
    cmid: ClientMessageId | None = None
    retry_after_ms: int | None = None
    at: tuple[int, ...] | None = None
    outcome: Outcome | None = None


ServerFrame = Welcome | SendAck | MailboxBatch | AckResult | PushEvents | Pong | GoAway | Error
