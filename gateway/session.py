"""One device's WebSocket session: ties the connection to the pure rules of `protocol.server_session`.

What a frame asks for is done by `gateway.handlers`; what is pushed, by `gateway.delivery`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from gateway.request_ids import new_request_id
from protocol.codec import decode_client_frame, encode_error, encode_server_frame
from protocol.errors import CloseCode, ErrorCode, MailboxError
from protocol.frames import GoAway, Hello, PushEvents
from protocol.limits import HELLO_TIMEOUT_S, MAX_FRAME_BYTES, MAX_FRAME_BYTES_BEFORE_HELLO
from protocol.packing import malformed
from protocol.server_session import Close, Due, DueKind, Phase, ServerSession, come_back_reason

if TYPE_CHECKING:
    from gateway.ws_connection import WsConnection
    from gateway.ws_door import WsDoor
    from protocol.cursor import DeviceCursors
    from protocol.frames import ServerFrame
    from protocol.ids import DeviceId

log = structlog.get_logger(__name__)

_INTERNAL_CLOSES: Final = Close(CloseCode.SERVER_FAULT)
_ENDS: Final = (DueKind.CLOSE, DueKind.UNJUDGED)


class DeviceSession:
    """From the upgrade to the end of the connection. Before HELLO it has no device.

    All methods run in the loop and none waits; answers that come after the connection ended are dropped here, and what
    they committed stands.
    """

    __slots__ = (
        "__weakref__",
        "_door",
        "channel",
        "check_at",
        "connection",
        "contact",
        "cursors",
        "device",
        "epoch",
        "instance",
        "listening",
        "message_bytes_max",
        "number",
        "released",
        "renewed_at",
        "session_epoch",
        "state",
        "token_ends_ms",
        "told",
    )

    def __init__(self, door: WsDoor, connection: WsConnection, number: int, now: float) -> None:
        """`number` is unique in this process: what keeps the order of its SENDs."""
        self._door = door
        self.connection = connection
        self.number = number
        # The rule counts the contract's 10 s from the opening: an operator's shorter time is a head start.
        head_start_s = HELLO_TIMEOUT_S - door.config.hello_timeout_s
        self.state = ServerSession(opened_at=now - head_start_s, heartbeat_s=door.config.heartbeat_s)
        self.device: DeviceId | None = None
        self.channel = b""  # the device's wake channel
        self.instance: bytes | None = None  # the client's process, as HELLO names it
        self.session_epoch = 0  # whose turn it is (DESIGN, "One session per device")
        self.message_bytes_max = MAX_FRAME_BYTES_BEFORE_HELLO  # the largest message that may come next
        self.epoch = b""  # of the database's history that positions of this session belong to
        self.cursors: DeviceCursors | None = None
        self.token_ends_ms = 0
        self.released = 0  # window slots that the newest frame freed
        self.listening = False  # wakes of the device reach this process
        self.contact = False  # asked for something since the last sweep
        self.renewed_at = now  # the sign of life that the lease was last renewed for
        self.told: dict[str, float] | None = None  # events told lately: kind to monotonic seconds
        self.check_at = 0.0  # the second in which the wheel looks at this session next

    def __repr__(self) -> str:
        return f"<DeviceSession {self.number} {self.state.phase.value}>"

    # Frames in (MessageHandler)

    def take(self, data: bytes) -> bool:
        """Serve one message. False: too much is in flight, and with the process's budget exhausted that is anything."""
        state, door = self.state, self._door
        size = len(data)
        if not state.may_serve(size) or (door.budget.exceeded and state.in_flight):
            return False
        try:
            frame = decode_client_frame(data, hello_seen=state.hello_seen)
            self.released = state.receive(frame, size, door.now())
        except MailboxError as error:
            self.refuse(error)
            return True
        kind = type(frame)
        if kind is Hello:
            self.message_bytes_max = MAX_FRAME_BYTES
        door.handlers[kind](self, frame, size)
        return True

    def text_message(self) -> None:
        self.refuse(malformed("text messages are not part of it"))

    def written(self, check_at: float) -> None:
        self._door.schedule(self, check_at)

    def writable(self) -> None:
        self._door.delivery.pump(self)

    def lost(self) -> None:
        self.state.closed()
        self._door.session_ended(self)

    # Answers out

    def send(self, frame: ServerFrame) -> None:
        self.connection.send(encode_server_frame(frame))

    def answer_error(self, error: MailboxError, *, ref: int | None = None, cmid: bytes | None = None) -> str:
        """ERROR for one request; the session goes on, unless the error is one that ends it. Returns the request id."""
        request_id = new_request_id()
        self._door.metrics.errors.labels(code=error.code.value).inc()
        if error.code is ErrorCode.INTERNAL:
            log.error("a request failed", request_id=request_id)
        self.connection.send(encode_error(error, request_id, ref=ref, cmid=cmid))
        return request_id

    def refuse(self, error: MailboxError) -> None:
        """ERROR without a request to name, and the close that the error asks for, if any."""
        close = self.state.close_for(error, self._door.come_back.after_ms())
        if close is None:
            self.answer_error(error)
        else:
            self.end(close)

    def tell(self, *events: dict[str, object]) -> None:
        """PUSH_EVENTS."""
        if events:
            self.send(PushEvents(events))

    def go_away(self, reason: str) -> None:
        """GOAWAY with a come-back time of this client's own."""
        self.send(GoAway(self._door.come_back.after_ms(), reason))

    def end(self, close: Close) -> None:
        """Close as the rules say, with an ERROR frame first where they give one."""
        if close.error is not None and self.connection.is_open:
            self.answer_error(close.error)
        self.close(close.code, close.reason)

    def close(self, code: int, reason: str = "") -> None:
        if self.connection.is_open:
            self._door.metrics.closes.labels(code=str(code)).inc()
            self.connection.close(code, reason)

    def close_come_back(self, code: int) -> None:
        """Close with 4429 or 4503 and this client's come-back time."""
        self.close(code, come_back_reason(self._door.come_back.after_ms()))

    def schedule(self) -> None:
        """Deadlines changed: have the wheel look."""
        self._door.schedule(self, self.state.next_deadline())

    def answered(self) -> None:
        """Some request in flight is answered: messages that were held back may go on."""
        connection = self.connection
        if connection.held_back:
            connection.go_on()

    # Time

    def check(self, now: float) -> float:
        """Do what time asks for and give the second at which to look again; 0: never again."""
        connection = self.connection
        code, again = connection.check(now)
        if code:
            self.close(code)
            return now + 1
        state = self.state
        if state.phase is Phase.CLOSED:
            return again
        # What is not read because of us tells nothing of the client: on a slow link it may wait behind a large batch.
        heard_at = now if connection.reading_paused else connection.heard_at
        if heard_at > state.heard_at:
            state.heard_at = heard_at
        while (due := state.due(now)) is not None:
            self._act(due)
            if due.kind in _ENDS:
                return now + 1
        deadline = state.next_deadline()
        return min(deadline, again) if again else deadline

    def _act(self, due: Due) -> None:
        match due.kind:
            case DueKind.PING:
                self.connection.ping()
            case DueKind.REAUTH_SOON:
                self.tell({"kind": "reauth_soon", "before": self.token_ends_ms})
                self.go_away("reauth")
            case DueKind.UNJUDGED:
                self.refuse(MailboxError(ErrorCode.UNAVAILABLE, retry_after_ms=1_000))
            case DueKind.CLOSE:
                self.end(due.close or _INTERNAL_CLOSES)
