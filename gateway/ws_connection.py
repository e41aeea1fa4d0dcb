"""One WebSocket: bytes to messages and back, on one transport. What the messages mean is the session's business.

No task, no timer, no future: the loop calls in, whatever is to be said gathers in a list, and one `write` takes it out.
The library's protocol object exists only while something out of the ordinary is in progress (a fragmented message, a
control frame, the closing handshake), so an idle connection holds next to nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from gateway.byte_budget import ByteBudget
from gateway.flush_queue import FlushQueue
from gateway.ws_frames import header, parse
from gateway.ws_library import TextMessage, UncommonFrames
from protocol.errors import CloseCode
from protocol.limits import SLOW_CONSUMER_S

WRITE_HIGH_BYTES: Final = 64 * 1024  # nothing is read from the mailbox, nor from the client, above this
WRITE_LOW_BYTES: Final = 16 * 1024
CLOSING_S: Final = 5.0  # how long the closing handshake may take
STALL_CHECK_S: Final = 5.0

_EMPTY_PING: Final = b"\x89\x00"

log = structlog.get_logger(__name__)


class MessageHandler(Protocol):
    """What a connection tells its session. None of these raises but by a bug, which closes with 1011."""

    @property
    def message_bytes_max(self) -> int:
        """The largest message that may come next."""
        ...

    def take(self, data: bytes) -> bool:
        """Serve one message; False: not now, it and everything behind it is to be held back."""
        ...

    def text_message(self) -> None:
        """A text message came, which the contract does not know."""
        ...

    def written(self, check_at: float) -> None:
        """Something was handed to the transport: have `check` called at that monotonic second."""
        ...

    def writable(self) -> None:
        """The transport took what it had: there is room for more."""
        ...

    def lost(self) -> None:
        """The connection is gone or closing; nothing comes in any more. Called once."""
        ...


class WsConnection(asyncio.Protocol):
    """One upgraded connection. Its life: `start`, messages, `close` by either side, `connection_lost`."""

    __slots__ = (
        "__weakref__",
        "_budget",
        "_closing_until",
        "_flush_queue",
        "_handing_over",
        "_held",
        "_inbox",
        "_library",
        "_needed",
        "_on_lost",
        "_out",
        "_partial",
        "_patient",
        "_paused",
        "_stalled_since",
        "_taken",
        "_written",
        "address",
        "heard_at",
        "session",
        "transport",
    )

    def __init__(
        self, flush_queue: FlushQueue, budget: ByteBudget, address: str, on_lost: Callable[[WsConnection], None]
    ) -> None:
        """`address`: the client's, as limits see it. `on_lost` is called once when the transport is gone."""
        self.transport: asyncio.Transport | None = None
        self.session: MessageHandler | None = None
        self.address = address
        self.heard_at = 0.0
        self._flush_queue = flush_queue
        self._budget = budget
        self._on_lost = on_lost
        self._out: list[bytes] | None = None
        self._patient = False  # nothing in `_out` asks to go out in this turn
        self._partial: bytearray | None = None  # the start of a frame
        self._needed = 0
        self._inbox: list[bytes] | None = None  # messages that the session does not take yet
        self._handing_over = False  # what was held back: an answer that comes at once must not begin it again
        self._held = 0  # bytes of ours in the budget
        self._library: UncommonFrames | None = None
        self._paused = False
        self._closing_until = 0.0  # monotonic; 0: open
        self._written = 0
        self._taken = 0
        self._stalled_since = 0.0

    def __repr__(self) -> str:
        return "<WsConnection>"

    # Life

    def start(self, transport: asyncio.Transport, session: MessageHandler, now: float) -> None:
        """Take over `transport`, right after the answer to the upgrade was written to it."""
        self.transport = transport
        self.session = session
        self.heard_at = now
        transport.set_protocol(self)
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._end()
        self._on_lost(self)

    def eof_received(self) -> bool:
        return False  # the transport closes itself: there is no half-closed WebSocket

    @property
    def is_open(self) -> bool:
        """False from the first close frame on, whoever sent it."""
        return self.transport is not None and not self._closing_until

    def close(self, code: int, reason: str = "") -> None:
        """Start the closing handshake after everything said so far. Later calls do nothing.

        What the client still sends is read and dropped until it closes: closing a socket with unread bytes would
        destroy the close frame on its way.
        """
        if not self.is_open:
            return
        library = self._engage()
        library.close(code, reason)
        partial = self._partial
        self._begin_closing()
        self._write_library(library)
        if partial is not None:
            self._received_closing(partial)
        self._resume()

    def abort(self) -> None:
        """Drop the connection without a word."""
        if self.transport is not None:
            self.transport.abort()

    def _begin_closing(self) -> None:
        self._closing_until = self._flush_queue.now() + CLOSING_S
        session, self.session = self.session, None
        self._drop_input()
        if session is not None:
            session.lost()

    def _end(self) -> None:
        self._closing_until = self._closing_until or 1.0
        self._out = None
        self._library = None
        session, self.session = self.session, None
        self._drop_input()
        if session is not None:
            session.lost()

    def _drop_input(self) -> None:
        self._partial = None
        self._inbox = None
        self._hold(0)
        self._budget.forget(self)

    # Out

    def send(self, message: bytes) -> None:
        """Queue one binary message; it goes out with the next flush. Nothing happens on a closing connection."""
        if self._closing_until:
            return
        out = self._out
        if out is None:
            self._out = [header(len(message)), message]
            self._flush_queue.add(self)
        else:
            out.append(header(len(message)))
            out.append(message)
            if self._patient:
                self._patient = False
                self._flush_queue.add(self)

    def send_patiently(self, message: bytes) -> None:
        """As `send`, for what nobody waits for: on a busy gateway it goes out with what is said next, or soon."""
        if self._closing_until:
            return
        out = self._out
        if out is None:
            self._out = [header(len(message)), message]
            self._patient = True
            self._flush_queue.add_patient(self)
        else:
            out.append(header(len(message)))
            out.append(message)

    def ping(self) -> None:
        """Ask for a sign of life."""
        if self.is_open:
            self._raw(_EMPTY_PING)

    def flush(self) -> None:
        """Hand everything queued to the transport, in one write."""
        out = self._out
        if out is None:
            return
        self._out = None
        self._patient = False
        transport = self.transport
        if transport is None:
            return
        self._write(transport, b"".join(out))
        if not self._stalled_since and self.session is not None:
            # From here on somebody looks whether the client takes it, until there is nothing left to take.
            self._stalled_since = self._flush_queue.now()
            self._taken = self._written - transport.get_write_buffer_size()
            self.session.written(self._stalled_since + STALL_CHECK_S)

    def _raw(self, data: bytes) -> None:
        self.flush()
        if self.transport is not None:
            self._write(self.transport, data)

    def _write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Never raises: whoever flushes many connections must not be stopped by one that is breaking."""
        self._written += len(data)
        try:
            transport.write(data)
        except (RuntimeError, OSError):  # closed, and connection_lost is still on its way
            transport.abort()

    @property
    def has_room(self) -> bool:
        """True while little enough is waiting to be sent that more may be fetched for this client."""
        transport = self.transport
        return (
            transport is not None and not self._closing_until and transport.get_write_buffer_size() < WRITE_HIGH_BYTES
        )

    def pause_writing(self) -> None:
        """Answers pile up: take no more requests from a client that does not read."""
        self._pause()

    def resume_writing(self) -> None:
        self.go_on()
        session = self.session
        if session is not None:
            session.writable()

    # In

    def data_received(self, data: bytes) -> None:
        try:
            self._received(data)
        except Exception:
            log.exception("a connection failed")
            self._fail()

    def _received(self, data: bytes | bytearray) -> None:
        self.heard_at = self._flush_queue.now()
        if self._closing_until:
            self._received_closing(data)
            return
        if self._partial is not None:
            self._partial += data
            if len(self._partial) < self._needed:
                self._account()
                return
            data, self._partial = self._partial, None
        while (session := self.session) is not None:
            limit = session.message_bytes_max
            messages, consumed, common, needed = parse(data, limit)
            for message in messages:
                self._take(message)
            rest = data[consumed:] if consumed else data
            if self._closing_until:  # one of them ended it
                self._received_closing(rest)
                return
            if common:
                if rest:
                    self._partial = bytearray(rest)
                    self._needed = needed
                break
            if session.message_bytes_max != limit:
                data = rest  # HELLO was among them: what follows it may be larger
                continue
            if needed > len(rest):
                self._partial = bytearray(rest)
                self._needed = needed
                break
            self._feed_library(rest[:needed] if needed else rest, limit)
            if not needed:
                break  # it does not go on after this
            data = rest[needed:]
        if self._held or self._partial is not None or self._inbox is not None or self._library is not None:
            self._account()

    def _take(self, message: bytes) -> None:
        session = self.session
        if session is None:
            return
        if self._inbox is not None:
            self._inbox.append(message)
        elif not session.take(message):
            self._inbox = [message]
            self._pause()

    def go_on(self) -> None:
        """The session may take more: hand over what was held back, then read again."""
        if self._handing_over:
            return  # further up the stack, where it goes on with the next message
        inbox, session = self._inbox, self.session
        if inbox is not None and session is not None:
            taken = 0
            self._handing_over = True
            try:
                for message in inbox:
                    if self.session is None or not session.take(message):
                        break
                    taken += 1
            finally:
                self._handing_over = False
            if self.session is None:
                return
            if taken < len(inbox):
                self._inbox = inbox[taken:]
                self._account()
                return
            self._inbox = None
            self._account()
        self._resume()

    def _pause(self) -> None:
        transport = self.transport
        if not self._paused and transport is not None and not transport.is_closing():
            self._paused = True
            transport.pause_reading()

    def _resume(self) -> None:
        """Read again, unless there is another reason not to."""
        transport = self.transport
        if not self._paused or transport is None or transport.is_closing():
            return
        if not self._closing_until:
            if self._inbox is not None or transport.get_write_buffer_size() >= WRITE_HIGH_BYTES:
                return
            if self._held and self._budget.exceeded:
                self._budget.wait(self)
                return
            self.heard_at = self._flush_queue.now()  # what it said meanwhile was ours to read
        self._paused = False
        transport.resume_reading()

    @property
    def reading_paused(self) -> bool:
        """True while nothing is read from the client, for reasons of ours."""
        return self._paused

    @property
    def held_back(self) -> bool:
        """True while messages wait for the session to take more."""
        return self._inbox is not None

    def budget_free(self) -> None:
        self.go_on()

    def _account(self) -> None:
        held = len(self._partial) if self._partial is not None else 0
        if self._inbox is not None:
            held += sum([len(message) for message in self._inbox])
        if self._library is not None:
            held += self._library.held_bytes
        self._hold(held)
        if held and self._budget.exceeded and not self._closing_until:
            # Who holds nothing is read on: small whole requests get through while others fill the budget.
            self._pause()
            self._budget.wait(self)

    def _hold(self, size: int) -> None:
        change, self._held = size - self._held, size
        if change > 0:
            self._budget.take(change)
        elif change < 0:
            self._budget.give_back(-change)

    @property
    def held_bytes(self) -> int:
        """Bytes that came in and are not a request yet."""
        return self._held

    # The uncommon

    def _engage(self) -> UncommonFrames:
        if self._library is None:
            self._library = UncommonFrames()
        return self._library

    def _feed_library(self, frame: bytes | bytearray, message_bytes_max: int) -> None:
        """One whole frame, or the start of one that will not be accepted."""
        library = self._engage()
        try:
            for message in library.feed(frame, message_bytes_max):
                self._take(message)
        except TextMessage:
            if self.session is not None:
                self.session.text_message()
        if self._closing_until:
            return
        if library.ended:
            self._begin_closing()
        self._write_library(library)
        if self._closing_until:
            self._resume()  # it may have been held back: its end would not be heard before the closing time is over
        if library.idle:
            self._library = None

    def _received_closing(self, data: bytes | bytearray) -> None:
        library = self._library
        if library is not None:
            library.feed_closing(data)
            self._write_library(library)

    def _write_library(self, library: UncommonFrames) -> None:
        """What the library has to say goes out behind what was queued before it."""
        self.flush()
        for data in library.to_send():
            transport = self.transport
            if transport is None:
                return
            if data:
                self._write(transport, data)
            elif library.both_closed:
                transport.close()
            elif transport.can_write_eof():
                transport.write_eof()  # the library reads nothing more from this client; it may still read us

    def _fail(self) -> None:
        try:
            self.close(CloseCode.SERVER_FAULT)
        except Exception:
            log.exception("a failed connection could not be closed")
            self.abort()

    # Time

    def check(self, now: float) -> tuple[int, float]:
        """Look at what time asks for: the code to close with (0: none) and when to look again (0: no wish).

        A client that took no bytes for SLOW_CONSUMER_S while there are some for it is too slow.
        """
        transport = self.transport
        if transport is None:
            return 0, 0.0
        if self._closing_until:
            if now >= self._closing_until:
                transport.abort()
                return 0, 0.0
            return 0, self._closing_until
        waiting = transport.get_write_buffer_size()
        if not waiting or not self._stalled_since:
            self._stalled_since = 0.0
            return 0, 0.0
        taken = self._written - waiting
        if taken != self._taken:
            self._taken = taken
            self._stalled_since = now
        elif now - self._stalled_since >= SLOW_CONSUMER_S:
            return CloseCode.TOO_SLOW, 0.0
        return 0, now + STALL_CHECK_S
