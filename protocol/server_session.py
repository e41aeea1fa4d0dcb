"""One WebSocket connection as the server sees it: what the client may do now, and when the server must act.

No await, no clock, no socket. Monotonic seconds and database milliseconds are handed in. The order of a session:

    OPENING    created by the upgrade; HELLO is due within 10 s
    GREETING   HELLO is in, its token and place are being judged within another 10 s; nothing else is served yet
    LIVE       WELCOME is out
    LEAVING    GOAWAY is out; what is asked is still served until the close
    CLOSED

Per message this costs a few comparisons and dictionary steps, no objects. What is pushed, and when, is
`delivery_state`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, assert_never

from protocol.delivery_state import BatchEnd, DeliveryState, ReadPlan
from protocol.errors import CloseCode, ErrorCode, MailboxError
from protocol.frames import Ack, ClientFrame, Defer, Hello, Ping, PullMailbox, Reauth, Send
from protocol.limits import (
    BYTES_IN_FLIGHT_MAX,
    HELLO_TIMEOUT_S,
    SENDS_IN_FLIGHT_MAX,
)
from protocol.packing import malformed

__all__ = ["BatchEnd", "Close", "Due", "DueKind", "Phase", "ReadPlan", "ServerSession", "come_back_reason"]

HEARTBEATS_MISSED: Final = 2
HEARTBEAT_GRACE_S: Final = 5.0
ACKS_IN_FLIGHT_MAX: Final = 256
PULLS_IN_FLIGHT_MAX: Final = 4  # each may answer with 1 MiB


class Phase(Enum):
    OPENING = "opening"
    GREETING = "greeting"
    LIVE = "live"
    LEAVING = "leaving"
    CLOSED = "closed"


_OPENING: Final = Phase.OPENING  # a plain name costs a tenth of the enum's attribute
_GREETING: Final = Phase.GREETING
_CLOSED: Final = Phase.CLOSED


class Close(NamedTuple):
    """How to end the connection. `error` is told in an ERROR frame first."""

    code: int
    reason: str = ""
    error: MailboxError | None = None


class DueKind(Enum):
    PING = "ping"
    REAUTH_SOON = "reauth_soon"  # send PUSH_EVENTS reauth_soon and GOAWAY
    UNJUDGED = "unjudged"  # nobody could judge the HELLO in time: UNAVAILABLE and the close that goes with it
    CLOSE = "close"


class Due(NamedTuple):
    """What the passing of time asks for."""

    kind: DueKind
    close: Close | None = None


def come_back_reason(reconnect_after_ms: int) -> str:
    """The close reason of 4429 and 4503."""
    return f'{{"reconnect_after_ms": {reconnect_after_ms}}}'


class ServerSession(DeliveryState):
    """One connection: frames in, decisions out.

    The shell keeps one rule: before it serves a frame it calls `receive`, and after it has answered a SEND, ACK or
    PULL_MAILBOX it calls the matching `…_answered`.
    """

    __slots__ = (
        "_acks_in_flight",
        "_bytes_in_flight",
        "_judged_by",
        "_pulls_in_flight",
        "_reauth_at",
        "_reauth_said",
        "_sends_in_flight",
        "_token_ends_at",
        "heard_at",
        "heartbeat_s",
        "hello",
        "opened_at",
        "phase",
        "pinged_at",
    )

    def __init__(self, *, opened_at: float, heartbeat_s: float) -> None:
        """`opened_at`: monotonic seconds at which the upgrade was accepted."""
        super().__init__()
        self.phase = Phase.OPENING
        self.hello: Hello | None = None
        self.opened_at = opened_at
        self.heartbeat_s = heartbeat_s
        self.heard_at = opened_at  # the shell sets it whenever bytes of a frame, ping or pong arrive
        self.pinged_at = opened_at
        self._sends_in_flight = 0
        self._bytes_in_flight = 0
        self._acks_in_flight = 0
        self._pulls_in_flight = 0
        self._judged_by = float("inf")
        self._reauth_at = float("inf")
        self._reauth_said = False
        self._token_ends_at = float("inf")

    # Frames in

    @property
    def hello_seen(self) -> bool:
        """For the codec: after HELLO only other frames, before it only HELLO."""
        return self.phase is not _OPENING

    def may_serve(self, size: int) -> bool:
        """Whether a frame of `size` bytes may be taken up now. False: leave it in the socket and stop reading.

        A single frame always fits when nothing is in flight, whatever its size.
        """
        phase = self.phase
        if phase is _GREETING or phase is _CLOSED:
            return False
        return (
            self._sends_in_flight < SENDS_IN_FLIGHT_MAX
            and (not self._bytes_in_flight or self._bytes_in_flight + size <= BYTES_IN_FLIGHT_MAX)
            and self._acks_in_flight < ACKS_IN_FLIGHT_MAX
            and self._pulls_in_flight < PULLS_IN_FLIGHT_MAX
        )

    def receive(self, frame: ClientFrame, size: int, now: float) -> int:
        """Take note of a frame that is to be served; `size` is its length as a message. Gives how many window slots it
        freed.

        Raises MailboxError where it is illegal now: BAD_FRAME out of order, TOKEN_EXPIRED past the token's end. What to
        do about it says `close_for`.
        """
        phase = self.phase
        if phase is _OPENING or phase is _GREETING or phase is _CLOSED:
            if type(frame) is not Hello or phase is not _OPENING:
                raise malformed("HELLO comes once, before every other frame")
            self.hello = frame
            self.phase = _GREETING
            # A client that hears nothing cannot tell a busy server from a dead one: it is told as late as HELLO is due.
            self._judged_by = now + HELLO_TIMEOUT_S
            return 0
        if now >= self._token_ends_at:
            raise MailboxError(ErrorCode.TOKEN_EXPIRED)
        # In the order of how often they come; a match statement looks at each class twice as long.
        if isinstance(frame, Send):
            self._sends_in_flight += 1
            self._bytes_in_flight += size
        elif isinstance(frame, Ack):
            self._acks_in_flight += 1
            return self.release(frame.mids)
        elif isinstance(frame, Defer):
            return self.release(frame.mids)
        elif isinstance(frame, PullMailbox):
            self._pulls_in_flight += 1
        elif isinstance(frame, Hello):
            raise malformed("HELLO comes once, before every other frame")
        elif not isinstance(frame, Reauth | Ping):
            assert_never(frame)
        return 0

    def send_answered(self, size: int) -> None:
        """SEND_ACK or ERROR is out for a SEND of `size` bytes."""
        self._sends_in_flight -= 1
        self._bytes_in_flight -= size

    def ack_answered(self) -> None:
        self._acks_in_flight -= 1

    def pull_answered(self) -> None:
        self._pulls_in_flight -= 1

    @property
    def in_flight(self) -> int:
        """Requests taken up and not answered: what a clean drain waits for."""
        return self._sends_in_flight + self._acks_in_flight + self._pulls_in_flight

    # Opening and ending

    def welcome(
        self,
        *,
        start: int,
        head: int,
        pending: bool,
        token_ends_at: float,
        reauth_at: float,
        fresh: bool = False,
    ) -> None:
        """WELCOME goes out: the session is live and delivers behind `start`.

        `start`, `head`, `pending`, `fresh`: see `DeliveryState.start`. Both times are monotonic seconds. Call
        `take_batch` right after WELCOME is written: a client that is already caught up hears so at once.
        """
        if self.hello is None:
            raise RuntimeError("WELCOME answers a HELLO")
        self.phase = Phase.LIVE
        self.start(
            start=start,
            head=head,
            pending=pending,
            window_entries=self.hello.window_entries,
            window_bytes=self.hello.window_bytes,
            fresh=fresh,
        )
        self.hello = None  # what it asked for is spent, and tokens are not kept
        self.reauthenticated(token_ends_at=token_ends_at, reauth_at=reauth_at)

    def reauthenticated(self, *, token_ends_at: float, reauth_at: float) -> None:
        """A fresh token of the same device was accepted: new deadlines. A bad one changes nothing."""
        self._token_ends_at = token_ends_at
        self._reauth_at = reauth_at
        self._reauth_said = False

    def leaving(self) -> None:
        """GOAWAY is out (drain). What is in flight or still asked is served until the close."""
        if self.phase is Phase.LIVE:
            self.phase = Phase.LEAVING

    def closed(self) -> None:
        """Nothing is received or delivered any more."""
        self.phase = Phase.CLOSED
        self.stop()

    def pull_caught_up(self, position: int) -> bool:
        """`caught_up` in the answer to PULL_MAILBOX: its cursor against this session's watermark."""
        return position >= self.watermark

    def close_for(self, error: MailboxError, reconnect_after_ms: int = 0) -> Close | None:
        """Whether an error on this connection ends it: None when the session goes on after the ERROR frame.

        Before WELCOME every error ends it; `reconnect_after_ms` is told with 4429 and 4503.
        """
        code = error.code
        if code is ErrorCode.BAD_FRAME:
            return Close(CloseCode.MALFORMED, "malformed", error)
        if code is ErrorCode.TOKEN_EXPIRED and self.phase in (Phase.LIVE, Phase.LEAVING):
            return Close(CloseCode.UNAUTHENTICATED, "token expired", error)
        if self.phase is not Phase.OPENING and self.phase is not Phase.GREETING:
            return None
        match code:
            case ErrorCode.UNAUTHENTICATED | ErrorCode.TOKEN_EXPIRED:
                return Close(CloseCode.UNAUTHENTICATED, "not authenticated", error)
            case ErrorCode.DEVICE_REVOKED:
                return Close(CloseCode.REVOKED, "revoked", error)
            case ErrorCode.RATE_LIMITED:
                return Close(CloseCode.RATE_LIMITED, come_back_reason(reconnect_after_ms), error)
            case ErrorCode.UNAVAILABLE:
                return Close(CloseCode.UNAVAILABLE, come_back_reason(reconnect_after_ms), error)
            case _:
                return Close(CloseCode.SERVER_FAULT, "", error)

    # Time

    def next_deadline(self) -> float:
        """Monotonic seconds at which `due` may have something; earlier calls are legal and give None.

        It only moves later as frames come in, so a timer set for it may fire early, never late.
        """
        if self.phase is Phase.OPENING:
            return self.opened_at + HELLO_TIMEOUT_S
        if self.phase is Phase.GREETING:
            return self._judged_by
        reauth_at = self._token_ends_at if self._reauth_said else self._reauth_at
        return min(self._silent_at(), self._ping_at(), reauth_at, self._token_ends_at)

    def due(self, now: float) -> Due | None:
        """What to do at `now`; call again until None. After PING the shell goes on waiting: any sign of life will do.

        REAUTH_SOON comes once per token. A REAUTH in flight does not stop the clock.
        """
        match self.phase:
            case Phase.CLOSED:
                return None
            case Phase.OPENING:
                if now >= self.opened_at + HELLO_TIMEOUT_S:
                    return Due(DueKind.CLOSE, Close(CloseCode.TIMEOUT, "no HELLO in time"))
                return None
            case Phase.GREETING:
                return Due(DueKind.UNJUDGED) if now >= self._judged_by else None
            case Phase.LIVE | Phase.LEAVING:
                pass
            case _:
                assert_never(self.phase)
        if now >= self._token_ends_at:
            error = MailboxError(ErrorCode.TOKEN_EXPIRED)
            return Due(DueKind.CLOSE, Close(CloseCode.UNAUTHENTICATED, "token expired", error))
        if now >= self._silent_at():
            return Due(DueKind.CLOSE, Close(CloseCode.TIMEOUT, "heartbeat missed"))
        if now >= self._reauth_at and not self._reauth_said:
            self._reauth_said = True
            return Due(DueKind.REAUTH_SOON)
        if now >= self._ping_at():
            self.pinged_at = now
            return Due(DueKind.PING)
        return None

    def _silent_at(self) -> float:
        return self.heard_at + HEARTBEATS_MISSED * self.heartbeat_s + HEARTBEAT_GRACE_S

    def _ping_at(self) -> float:
        return max(self.heard_at, self.pinged_at) + self.heartbeat_s
