"""One WebSocket connection as the client sees it: what it may send now, and whether the server keeps its side.

The mirror of `server_session`, also no await, no clock, no socket. What a client keeps beyond one connection (pending
sends, dedup, durable cursor) is the SDK's engine, not here. Memory is bounded by the window and the in-flight limits.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, assert_never

from protocol.frames import (
    Ack,
    AckResult,
    ClientFrame,
    Defer,
    Error,
    GoAway,
    Hello,
    MailboxBatch,
    Ping,
    Pong,
    PullMailbox,
    PushEvents,
    Reauth,
    Send,
    SendAck,
    ServerFrame,
    Welcome,
)
from protocol.ids import ClientMessageId, MessageId
from protocol.server_frames import ACKED

HEARTBEATS_MISSED: Final = 2
HEARTBEAT_GRACE_S: Final = 5.0


class ContractBroken(Exception):
    """The server sent, or this client was about to send, what the contract does not allow. A bug on one side."""


class ClientPhase(Enum):
    OPENING = "opening"  # nothing sent
    GREETING = "greeting"  # HELLO is out
    LIVE = "live"  # WELCOME is in
    LEAVING = "leaving"  # GOAWAY is in: finish what is in flight, then reconnect


class ClientSession:
    """One connection. Call `sending` for each frame before it goes out and `receive` for each frame that came in."""

    def __init__(self, *, opened_at: float) -> None:
        """`opened_at`: monotonic seconds."""
        self.phase = ClientPhase.OPENING
        self.welcome: Welcome | None = None
        self.goaway: GoAway | None = None
        self.caught_up = False
        self.cursor: str | None = None  # of the last pushed batch
        # More was pushed than the window holds, by what this session knows. Slots that expiry or an ACK over HTTP freed
        # are known to the server alone, so this accuses it only where neither happens.
        self.window_overrun = False
        self.sent_at = opened_at
        self.heard_at = opened_at
        self._hello: Hello | None = None
        self._sends: dict[ClientMessageId, tuple[int, tuple[MessageId, ...]]] = {}
        self._bytes_in_flight = 0
        self._acks: dict[int, int] = {}
        self._pulls: dict[int, int] = {}
        self._unacked: dict[MessageId, int] = {}
        self._unacked_bytes = 0

    # Out

    def may_send(self, size: int) -> bool:
        """Whether a SEND of `size` bytes would be served at once; beyond that it waits in the socket."""
        if self.welcome is None:
            return False
        limits = self.welcome.limits
        return len(self._sends) < limits.sends_in_flight and (
            not self._sends or self._bytes_in_flight + size <= limits.bytes_in_flight
        )

    def sending(self, frame: ClientFrame, size: int, now: float) -> None:
        """Take note of a frame that goes out. Raises ContractBroken where the server would close the connection."""
        if isinstance(frame, Hello) != (self.phase is ClientPhase.OPENING):
            raise ContractBroken("HELLO comes once, before every other frame")
        self.sent_at = now
        match frame:
            case Hello():
                self._hello = frame
                self.phase = ClientPhase.GREETING
            case Send():
                if frame.cmid in self._sends:
                    raise ContractBroken("this SEND is in flight already; its answer could not be told apart")
                self._sends[frame.cmid] = (size, tuple(envelope.mid for envelope in frame.envelopes))
                self._bytes_in_flight += size
            case Ack():
                self._unused(frame.ref)
                self._acks[frame.ref] = len(frame.mids)
                self._release(frame.mids)
            case Defer():
                self._release(frame.mids)
            case PullMailbox():
                self._unused(frame.ref)
                self._pulls[frame.ref] = frame.limit
            case Reauth() | Ping():
                pass
            case _:
                assert_never(frame)

    def _unused(self, ref: int) -> None:
        if ref in self._acks or ref in self._pulls:
            raise ContractBroken("this ref waits for an answer already")

    def _release(self, mids: tuple[MessageId, ...]) -> None:
        for mid in mids:
            self._unacked_bytes -= self._unacked.pop(mid, 0)

    def ping_at(self) -> float | None:
        """When something must go out at the latest, a PING if nothing else; None before WELCOME."""
        return None if self.welcome is None else self.sent_at + self.welcome.heartbeat_s

    def given_up_at(self) -> float | None:
        """When a server that stays silent is taken for gone; None before WELCOME."""
        if self.welcome is None:
            return None
        return self.heard_at + HEARTBEATS_MISSED * self.welcome.heartbeat_s + HEARTBEAT_GRACE_S

    # In

    def receive(self, frame: ServerFrame, now: float) -> None:
        """Take note of a frame that came in. Raises ContractBroken for what no server may send now.

        An answer to something that is not in flight is broken too: this session knows all it asked.
        """
        self.heard_at = now
        if self.welcome is None and not isinstance(frame, Welcome | Error | GoAway):
            raise ContractBroken("WELCOME comes before everything but ERROR and GOAWAY")
        match frame:
            case Welcome():
                if self.phase is not ClientPhase.GREETING or self.welcome is not None:
                    raise ContractBroken("WELCOME answers HELLO, once")
                self.welcome = frame
                self.phase = ClientPhase.LIVE
            case SendAck(cmid, _, results):
                size, mids = self._take_send(cmid)
                self._bytes_in_flight -= size
                if tuple(result.mid for result in results) != mids:
                    raise ContractBroken("SEND_ACK answers every envelope in the order sent")
            case AckResult(ref, results):
                if results != (ACKED,) * self._acks.pop(ref, -1):
                    raise ContractBroken("ACK_RESULT says acked for each id of an ACK in flight")
            case MailboxBatch(ref, entries):
                if ref is None:
                    self._pushed(frame)
                elif len(entries) > self._pulls.pop(ref, -1):
                    raise ContractBroken("a page answers a pull in flight and keeps its limit")
            case Error():
                self._failed(frame)
            case GoAway():
                self.goaway = frame
                if self.phase is ClientPhase.LIVE:
                    self.phase = ClientPhase.LEAVING
            case PushEvents() | Pong():
                pass
            case _:
                assert_never(frame)

    def _take_send(self, cmid: ClientMessageId) -> tuple[int, tuple[MessageId, ...]]:
        sent = self._sends.pop(cmid, None)
        if sent is None:
            raise ContractBroken("an answer to a SEND that is not in flight")
        return sent

    def _failed(self, error: Error) -> None:
        if error.cmid is not None:
            size, mids = self._take_send(error.cmid)
            self._bytes_in_flight -= size
            if error.at is not None and not set(error.at) <= set(range(len(mids))):
                raise ContractBroken("at names envelopes of the SEND")
        if error.ref is not None and self._acks.pop(error.ref, None) is None and self._pulls.pop(error.ref, -1) < 0:
            raise ContractBroken("an answer to a ref that is not in flight")

    def _pushed(self, batch: MailboxBatch) -> None:
        if self.caught_up and not batch.caught_up:
            raise ContractBroken("once caught up, every later pushed batch says so")
        if not batch.entries and (self.caught_up or not batch.caught_up):
            raise ContractBroken("an empty pushed batch only ever says caught_up for the first time")
        self.caught_up = batch.caught_up
        self.cursor = batch.cursor
        alone = not self._unacked
        for entry in batch.entries:
            if entry.mid in self._unacked:
                raise ContractBroken("an entry is pushed once in a session")
            size = len(entry.body or b"")
            self._unacked[entry.mid] = size
            self._unacked_bytes += size
        if self._hello is not None and not (alone and len(batch.entries) == 1):
            over = len(self._unacked) > self._hello.window_entries or self._unacked_bytes > self._hello.window_bytes
            self.window_overrun = self.window_overrun or over
