"""One engine on a bench: a test plays the server frame by frame and moves the clock by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TypeVar

from mailbox_client.engine import Engine
from mailbox_client.engine_io import (
    Confirm,
    FetchToken,
    FrameReceived,
    GetPage,
    HandOver,
    Input,
    Notify,
    OpenSocket,
    Output,
    Page,
    PullAnswered,
    PutFrame,
    SocketLost,
    SocketOpened,
    Start,
    Submit,
    TakeMessages,
    Tick,
    TokenGiven,
)
from mailbox_client.events import Event
from mailbox_client.local_store import LocalStore, StoredMessage
from mailbox_client.local_store.memory import MemoryStore
from mailbox_client.phases import Phase
from mailbox_client.settings import ClientSettings
from protocol.errors import ErrorCode
from protocol.frames import (
    Ack,
    AckResult,
    ClientFrame,
    Entry,
    Error,
    MailboxBatch,
    Send,
    SendAck,
    SendEnvelope,
    SendResult,
    ServerFrame,
    Welcome,
)
from protocol.ids import ClientMessageId
from protocol.limits import WireLimits
from tests.support.client_values import NOW_MS, WEEK_MS, envelope

LIMITS = WireLimits(4 * 1024 * 1024, 65_536, 60, 604_800, 604_800)
Wanted = TypeVar("Wanted")


class EngineBench:
    """Keeps all outputs since the last look, and says them by kind."""

    def __init__(
        self, store: LocalStore | None = None, *, settings: ClientSettings | None = None, random: float = 0.5
    ) -> None:
        self.store = store or MemoryStore()
        self.settings = settings or ClientSettings()
        self.now = 1_000_000
        self.server_ahead = NOW_MS - self.now
        self.outputs: list[Output] = []
        self._random = random
        self._numbers = count(1)
        self.engine = self._make(after_crash=True)

    def _make(self, *, after_crash: bool) -> Engine:
        return Engine(
            self.store,
            self.settings,
            random=lambda: self._random,
            instance=b"i" * 16,
            numbers=self._numbers,
            after_crash=after_crash,
        )

    def crash(self) -> None:
        """The process ends without a word and another one starts."""
        self.outputs.clear()
        self._numbers = count(1)
        self.engine = self._make(after_crash=True)

    def lose_engine(self) -> None:
        """The store failed: an engine is made anew in the same process."""
        self.outputs.clear()
        self.engine = self._make(after_crash=False)

    @property
    def server_now(self) -> int:
        return self.now + self.server_ahead

    # -- inputs

    def give(self, *inputs: Input) -> list[Output]:
        outputs = self.engine.step(self.now, inputs)
        self.outputs += outputs
        return outputs

    def frame(self, frame: ServerFrame) -> list[Output]:
        return self.give(FrameReceived(self.socket, frame))

    def advance(self, milliseconds: int) -> None:
        """Let time pass, with a tick whenever the engine asks for one."""
        end = self.now + milliseconds
        while (due := self.engine.next_due(self.now)) is not None and due <= end:
            self.now = max(due, self.now + 1)
            self.give(Tick())
        self.now = max(end, self.now)
        self.give(Tick())

    # -- outputs

    def take(self, kind: type[Wanted]) -> list[Wanted]:
        """The outputs of one kind since the last look, removed."""
        found = [output for output in self.outputs if isinstance(output, kind)]
        self.outputs = [output for output in self.outputs if not isinstance(output, kind)]
        return found

    def frames(self, kind: type[Wanted]) -> list[Wanted]:
        """The frames of one kind put since the last look, removed."""
        found = [output for output in self.outputs if isinstance(output, PutFrame) and isinstance(output.frame, kind)]
        self.outputs = [output for output in self.outputs if output not in found]
        return [output.frame for output in found if isinstance(output.frame, kind)]

    def all_frames(self) -> list[ClientFrame]:
        return [put.frame for put in self.take(PutFrame)]

    def events(self, kind: type[Wanted] | None = None) -> list[Wanted]:
        told = [notify.event for notify in self.take(Notify)]
        wanted: type = kind or Event
        return [event for event in told if isinstance(event, wanted)]

    @property
    def socket(self) -> int:
        return self.engine._link.socket

    # -- the ordinary way in

    def token(self) -> None:
        for fetch in self.take(FetchToken):
            self.give(TokenGiven(fetch.request, "token", 840_000, self.server_now))

    def open(self, *, watermark: str = "watermark", pending: bool = False, start: bool = True) -> None:
        """Start, get a token, open the socket, be welcomed: the mailbox is not read yet."""
        if start:
            self.give(Start())
        while self.phase is not Phase.OPENING:
            self.token()
            if self.phase is not Phase.OPENING:
                self._to_next_due()
        self.take(OpenSocket)
        self.give(SocketOpened(self.socket))
        self.frame(Welcome("session", self.server_now, 45, self.server_now + 840_000, LIMITS, watermark, pending))

    def push(self, *entries: Entry, caught_up: bool = True, more: bool = False, cursor: str = "cursor") -> None:
        self.frame(MailboxBatch(None, entries, cursor, more, caught_up))

    def live(self) -> None:
        self.open()
        self.push()

    def lose(self) -> None:
        """The connection breaks; the backoff is waited for."""
        self.give(SocketLost(self.socket))
        while self.phase is Phase.WAITING:
            self._to_next_due()

    def reopen(self) -> None:
        """Be welcomed again, as soon as the next try is made: the mailbox is not read yet."""
        self.open(start=False)

    def _to_next_due(self) -> None:
        due = self.engine.next_due(self.now)
        assert due is not None, "the engine waits for nothing"
        self.now = max(due, self.now)
        self.give(Tick())

    @property
    def phase(self) -> Phase:
        return self.engine._link.phase

    # -- shorthands

    def submit(self, cmid: ClientMessageId, *envelopes: SendEnvelope, echo: bool = True) -> None:
        self.give(Submit(cmid, envelopes or (envelope(),), echo))

    def sent(self) -> list[ClientMessageId]:
        return [send.cmid for send in self.frames(Send)]

    def confirm_send(self, send: Send, *, duplicate: bool = False) -> None:
        results = tuple(SendResult(one.mid, self.server_now, self.server_now + WEEK_MS) for one in send.envelopes)
        self.frame(SendAck(send.cmid, duplicate, results))

    def refuse(
        self, cmid: ClientMessageId, code: ErrorCode, *, at: Sequence[int] | None = None, after_ms: int | None = None
    ) -> None:
        refused = tuple(at) if at is not None else None
        self.frame(Error(code, "no", False, "request", cmid=cmid, at=refused, retry_after_ms=after_ms))

    def hand_over(self, limit: int = 100) -> list[StoredMessage]:
        self.give(TakeMessages(limit))
        return [message for handed in self.take(HandOver) for message in handed.messages]

    def confirm(self, *messages: StoredMessage) -> None:
        self.give(Confirm(tuple(message.entry.mid for message in messages)))

    def answer_acks(self) -> list[bytes]:
        """Answer all ACKs on the wire; gives the ids that they named."""
        acks = self.frames(Ack)
        for ack in acks:
            self.frame(AckResult(ack.ref, ("acked",) * len(ack.mids)))
        return [mid for ack in acks for mid in ack.mids]

    def page(
        self,
        *entries: Entry,
        cursor: str = "cursor",
        more: bool = False,
        watermark: str = "watermark",
        caught_up: bool = True,
    ) -> GetPage:
        """Answer the one page that is asked for; gives what was asked."""
        (asked,) = self.take(GetPage)
        self.give(PullAnswered(asked.request, Page(entries, cursor, more, watermark, caught_up)))
        return asked
