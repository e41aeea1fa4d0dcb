"""What goes into the engine and what comes out of it. Plain values: a simulation makes and takes them as well."""

from __future__ import annotations

from typing import NamedTuple

from mailbox_client.errors import StopReason
from mailbox_client.events import Event, Transport
from mailbox_client.local_store import StoredMessage
from protocol.errors import MailboxError
from protocol.frames import ClientFrame, Entry, Send, SendEnvelope, SendResult, ServerFrame
from protocol.ids import ClientMessageId, MessageId

# -- from the app


class Start(NamedTuple):
    """Connect, also after a stop: the app or its user acted."""


class Stop(NamedTuple):
    """Close in good order. Nothing is connected until the next Start."""


class Woke(NamedTuple):
    """A wake push came, or the device was asleep: prove the connection or replace it, now."""


class Prefer(NamedTuple):
    """Use only this transport from now on; None: choose."""

    transport: Transport | None


class Submit(NamedTuple):
    """A new send with a consumed id. It is durable when the step ends, before its first byte goes out."""

    cmid: ClientMessageId
    envelopes: tuple[SendEnvelope, ...]
    echo: bool


class Resend(NamedTuple):
    """The app's decision on a send whose outcome is unknown: try it again under its id, behind what is pending."""

    cmid: ClientMessageId


class Forget(NamedTuple):
    """The app's decision on a send whose outcome is unknown: leave it."""

    cmid: ClientMessageId


class TakeMessages(NamedTuple):
    """Hand over up to `limit` messages; the answer is a HandOver."""

    limit: int


class ReturnMessages(NamedTuple):
    """Messages that were handed over and not looked at: a clean end, no crash."""

    mids: tuple[MessageId, ...]


class Confirm(NamedTuple):
    """The app is done with these. Durable when the step ends; their ACK follows."""

    mids: tuple[MessageId, ...]


class DeferMessages(NamedTuple):
    """The app cannot finish these now."""

    mids: tuple[MessageId, ...]


class RetryDeferred(NamedTuple):
    """Hand over all deferred messages again, for example after a key change."""


# -- from the clock and the adapters


class Tick(NamedTuple):
    """Time passed. Needed at `Engine.next_due`; harmless at any other time."""


class TokenGiven(NamedTuple):
    """`reauth_in_ms` counts from the answer, by the local monotonic clock: a wrong wall clock changes nothing."""

    request: int
    token: str
    reauth_in_ms: int
    server_now_ms: int


class TokenFailed(NamedTuple):
    """No token. `error` is the server's answer, None if there was none; `stop` ends all trying."""

    request: int
    error: MailboxError | None = None
    stop: StopReason | None = None


class SocketOpened(NamedTuple):
    socket: int


class SocketLost(NamedTuple):
    """The socket closed, or never opened. A code of None: lost or refused without a close frame.

    `http_status` is that of a refused upgrade; `unreachable` says that not even TCP or TLS came about.
    """

    socket: int
    code: int | None = None
    reconnect_after_ms: int | None = None
    http_status: int | None = None
    unreachable: bool = False


class FrameReceived(NamedTuple):
    socket: int
    frame: ServerFrame


class Page(NamedTuple):
    """The answer of GET /v1/mailbox."""

    entries: tuple[Entry, ...]
    cursor: str
    more: bool
    watermark: str
    caught_up: bool


class PullAnswered(NamedTuple):
    request: int
    page: Page


class SendAnswered(NamedTuple):
    request: int
    duplicate: bool
    results: tuple[SendResult, ...]


class AckAnswered(NamedTuple):
    request: int


class RequestFailed(NamedTuple):
    """An HTTP request failed; `error` is the server's answer, None if there was none (then nothing is known)."""

    request: int
    error: MailboxError | None


Input = (
    Start
    | Stop
    | Woke
    | Prefer
    | Submit
    | Resend
    | Forget
    | TakeMessages
    | ReturnMessages
    | Confirm
    | DeferMessages
    | RetryDeferred
    | Tick
    | TokenGiven
    | TokenFailed
    | SocketOpened
    | SocketLost
    | FrameReceived
    | PullAnswered
    | SendAnswered
    | AckAnswered
    | RequestFailed
)

# -- to the adapters and the app


class FetchToken(NamedTuple):
    """Sign a challenge and get a token."""

    request: int


class OpenSocket(NamedTuple):
    socket: int


class PutFrame(NamedTuple):
    socket: int
    frame: ClientFrame


class CloseSocket(NamedTuple):
    """Close the socket; `at_once` does not wait for the other side, which may be gone. SocketLost need not follow."""

    socket: int
    at_once: bool


class GetPage(NamedTuple):
    request: int
    cursor: str | None
    wait_s: int
    until: str | None


class PostSend(NamedTuple):
    request: int
    send: Send


class PostAck(NamedTuple):
    request: int
    mids: tuple[MessageId, ...]


class Abandon(NamedTuple):
    """No answer to this HTTP request is wanted any more."""

    request: int


class HandOver(NamedTuple):
    messages: tuple[StoredMessage, ...]


class MessagesWaiting(NamedTuple):
    """There are messages to take."""


class ServerTimeKnown(NamedTuple):
    """Said once: leases of client message ids start no lower than this from now on."""

    server_now_ms: int


class Notify(NamedTuple):
    event: Event


Output = (
    FetchToken
    | OpenSocket
    | PutFrame
    | CloseSocket
    | GetPage
    | PostSend
    | PostAck
    | Abandon
    | HandOver
    | MessagesWaiting
    | ServerTimeKnown
    | Notify
)
