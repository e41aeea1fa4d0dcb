"""The client as a state machine: inputs in, outputs out, one store transaction per step. No socket, clock or thread.

Whoever drives it (the asyncio client, a simulation) calls `step` with what happened and the monotonic time, and carries
out the outputs after `step` returned: by then everything they rely on is durable. If `step` raises, the engine is
thrown away and another one made from the store, as after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mailbox_client.engine_io import (
    Abandon,
    AckAnswered,
    Confirm,
    DeferMessages,
    Forget,
    FrameReceived,
    GetPage,
    HandOver,
    Input,
    MessagesWaiting,
    Notify,
    Output,
    Page,
    PostAck,
    PostSend,
    Prefer,
    PullAnswered,
    RequestFailed,
    Resend,
    RetryDeferred,
    ReturnMessages,
    SendAnswered,
    ServerTimeKnown,
    SocketLost,
    SocketOpened,
    Start,
    Stop,
    Submit,
    TakeMessages,
    Tick,
    TokenFailed,
    TokenGiven,
    Woke,
)
from mailbox_client.errors import StopReason
from mailbox_client.events import CaughtUp, Connected, Event, ServerNotice, StoreWasReset, Transport
from mailbox_client.incoming import Incoming
from mailbox_client.link import Link
from mailbox_client.local_store import LocalStore
from mailbox_client.outgoing import Outgoing
from mailbox_client.reading import Reading
from mailbox_client.settings import ClientSettings
from protocol.errors import ErrorCode, MailboxError
from protocol.frames import (
    AckResult,
    Entry,
    Error,
    GoAway,
    MailboxBatch,
    PullMailbox,
    PushEvents,
    SendAck,
    Welcome,
)
from protocol.ids import ClientMessageId


class Engine:
    """One device's client, complete but for the bytes.

    `random` gives numbers from [0, 1) for jitter, `instance` is random per process (WIRE, HELLO). `numbers` rise for
    ever and belong to the process, not to the engine: they tell requests and sockets apart, and are HELLO's `attempt`.
    `after_crash` says that this is the first engine of its process; one made anew within a process leaves it False.
    """

    def __init__(
        self,
        store: LocalStore,
        settings: ClientSettings,
        *,
        random: Callable[[], float],
        instance: bytes,
        numbers: Iterator[int],
        after_crash: bool,
    ) -> None:
        self._store = store
        self._settings = settings
        self._out: list[Output] = []
        self._numbers = numbers
        with store.transaction():
            self._outgoing = Outgoing(store, settings, random)
            self._incoming = Incoming(store, settings, numbers)
            self._reading = Reading(store, settings, numbers)
            if after_crash:
                self._notify(*self._incoming.after_crash())
            # A send whose echo was seen before the process ended needs no mailbox to be settled.
            self._notify(*self._outgoing.connection_lost())
        if store.was_reset:
            self._notify(StoreWasReset())
        self._link = Link(settings, random, numbers, instance, self._out, self)
        self._server_base: tuple[int, int] | None = None  # server time and monotonic time of one moment
        self._http_sends: dict[int, ClientMessageId] = {}
        self._acks_pause_until = 0

    # -- driving

    def step(self, now: int, inputs: Iterable[Input]) -> list[Output]:
        """Take in what happened and say what to do, all in one durable transaction."""
        with self._store.transaction():
            for one in inputs:
                self._take(now, one)
            self._give_out(now)
        outputs = self._out[:]
        self._out.clear()
        return outputs

    def next_due(self, now: int) -> int | None:
        """When a Tick is needed at the latest, if nothing else happens; None: never."""
        dues = [self._link.next_due(now)]
        if self._link.online:
            dues.append(self._outgoing.next_due(now))
        if self._acks_pause_until > now:
            dues.append(self._acks_pause_until)
        return min((due for due in dues if due is not None), default=None)

    @property
    def pending(self) -> int:
        """Sends without an outcome."""
        return len(self._outgoing)

    @property
    def caught_up(self) -> bool:
        """True while the mailbox has been read up to what it held when the present connection began."""
        return self._reading.caught_up

    def server_now(self, now: int) -> int | None:
        """The server's time as far as it is known in this process."""
        if self._server_base is None:
            return None
        server, monotonic = self._server_base
        return server + now - monotonic

    # -- inputs

    def _take(self, now: int, one: Input) -> None:
        link = self._link
        match one:
            case FrameReceived(socket, frame):
                if socket == link.socket and link.hears(frame):
                    self._frame(now, frame)
            case Submit(cmid, envelopes, echo):
                self._outgoing.submit(now, self.server_now(now), cmid, envelopes, echo)
            case Confirm(mids):
                self._incoming.confirm(mids)
            case TakeMessages(limit):
                self._out.append(HandOver(self._incoming.hand_over(limit)))
            case ReturnMessages(mids):
                self._incoming.give_back(mids)
            case DeferMessages(mids):
                self._notify(*self._incoming.defer(mids))
            case RetryDeferred():
                self._incoming.retry_deferred()
                self._reading.walk_soon()
            case Resend(cmid):
                self._outgoing.try_again(now, self.server_now(now), cmid)
            case Forget(cmid):
                self._outgoing.forget(cmid)
            case Tick():
                if self._outgoing.stalled(now) and link.online:
                    link.give_up(now)
                link.tick(now)
            case Start():
                link.start(now)
            case Stop():
                link.stop(StopReason.CLOSED)
            case Woke():
                link.woke(now)
            case Prefer(transport):
                link.prefer(now, transport)
            case TokenGiven(request, token, reauth_in_ms, server_now_ms):
                self._learn_time(now, server_now_ms)
                link.token_given(now, request, token, reauth_in_ms)
            case TokenFailed(request, error, stop):
                link.token_failed(now, request, error, stop)
            case SocketOpened(socket):
                link.socket_opened(now, socket, self._store.cursor())
            case SocketLost():
                link.socket_lost(now, one)
            case PullAnswered(request, page):
                self._page(now, request, page)
            case SendAnswered(request, duplicate, results):
                cmid_sent = self._http_sends.pop(request, None)
                self._reading.echoes_wait = False
                if cmid_sent is not None:
                    self._notify(*self._outgoing.answered(cmid_sent, duplicate, results))
            case AckAnswered(request):
                self._incoming.acked(request)
            case RequestFailed(request, error):
                self._request_failed(now, request, error)

    def _frame(self, now: int, frame: object) -> None:
        link = self._link
        link.frame_came()
        match frame:
            case MailboxBatch(ref, entries, cursor, more, caught_up):
                if ref is None:
                    self._take_in(now, entries, pushed=True)
                    self._store.set_cursor(cursor)
                    if caught_up:
                        self._reached_watermark(now)
                    else:
                        self._incoming.make_room()
                elif self._reading.is_walk_page(ref):
                    self._walked(now, entries, cursor, more)
            case SendAck(cmid, duplicate, results):
                self._notify(*self._outgoing.answered(cmid, duplicate, results))
            case AckResult(ref):
                self._incoming.acked(ref)
            case Error():
                self._error(now, frame)
            case Welcome():
                link.welcomed(now, frame)
                self._learn_time(now, frame.now)
            case PushEvents(events):
                for event in events:
                    self._push_event(now, event)
            case GoAway():
                link.goaway(now, frame)
            case _:
                pass  # PONG has done its work by coming

    def _error(self, now: int, error: Error) -> None:
        if error.cmid is not None:
            if error.code is ErrorCode.ECHO_BACKLOG_FULL:
                self._incoming.make_room(at_once=True)
            self._notify(*self._outgoing.failed(now, error.cmid, error.code, error.at, error.retry_after_ms))
        elif error.ref is not None and self._incoming.is_ack(error.ref):
            self._incoming.ack_failed(error.ref)
            self._acks_pause_until = now + max(error.retry_after_ms or 0, self._settings.retry_base_ms)
        elif error.ref is not None and self._reading.is_walk_page(error.ref):
            self._reading.walk_failed(self._known_now(now), error.retry_after_ms)
        elif error.code is ErrorCode.DEVICE_REVOKED:
            self._link.stop(StopReason.REVOKED)
        # Every other error without a reference is followed by the close code that says what to do.

    def _push_event(self, now: int, event: dict[str, object]) -> None:
        match event:
            case {"kind": "reauth_soon"}:
                self._link.reauth_soon()
            case {"kind": "reauthenticated", "reauth_before": int(reauth_before)}:
                self._link.reauthenticated(now, reauth_before - self._known_now(now))
            case {"kind": "prekeys_low", "left": int(left)}:
                self._notify(ServerNotice("prekeys_low", left))
            case {"kind": ("push_route_gone" | "mailbox_filling") as name}:
                self._notify(ServerNotice(str(name)))
            case _:
                pass  # unknown kinds are ignored (WIRE)

    # -- entries

    def _take_in(self, now: int, entries: tuple[Entry, ...], *, pushed: bool, walk: bool = False) -> None:
        for entry in entries:
            if entry.cmid is not None:
                self._notify(*self._outgoing.entry_seen(entry.cmid, entry.accepted_at))
        self._incoming.take_in(entries, self._known_now(now), pushed=pushed, walk=walk)

    def _reached_watermark(self, now: int) -> None:
        server_now = self._known_now(now)
        if self._reading.reached_watermark(server_now):
            self._notify(CaughtUp(self._link.transport))
            self._notify(*self._outgoing.reconciled(server_now))

    def _walked(self, now: int, entries: tuple[Entry, ...], cursor: str, more: bool) -> None:
        self._take_in(now, entries, pushed=False, walk=True)
        server_now = self._known_now(now)
        if self._reading.walk_page_came(cursor, more, server_now):
            self._incoming.retry_deferred()
            self._store.prune(server_now - self._settings.dedup_age_ms)

    # -- HTTP session

    def http_begins(self, now: int) -> None:
        self._reading.http_begins()
        self._acks_pause_until = 0

    def _page(self, now: int, request: int, page: Page) -> None:
        self._link.http_works(now)
        if self._reading.is_walk_page(request):
            self._walked(now, page.entries, page.cursor, page.more)
        elif self._reading.is_page(request):
            if self._reading.page_came(page):
                self._notify(Connected(Transport.HTTP, bool(page.entries)))
            self._take_in(now, page.entries, pushed=False)
            if page.caught_up:
                self._reached_watermark(now)

    def _request_failed(self, now: int, request: int, error: MailboxError | None) -> None:
        if request in self._http_sends:
            cmid = self._http_sends.pop(request)
            if error is not None and error.code not in (ErrorCode.UNAUTHENTICATED, ErrorCode.TOKEN_EXPIRED):
                self._reading.echoes_wait = error.code is ErrorCode.ECHO_BACKLOG_FULL
                self._notify(*self._outgoing.failed(now, cmid, error.code, error.at, error.retry_after_ms))
                return
        elif self._incoming.is_ack(request):
            self._incoming.ack_failed(request)
        elif self._reading.is_page(request):
            if self._reading.page_failed(error):
                return
        elif self._reading.is_walk_page(request):
            self._reading.walk_failed(self._known_now(now), error.retry_after_ms if error is not None else None)
        else:
            return
        self._link.http_failed(now, error)

    def connection_lost(self) -> None:
        abandoned = [*self._http_sends, *self._reading.connection_lost()]
        self._out.extend(Abandon(request) for request in abandoned)
        self._http_sends.clear()
        self._incoming.connection_lost()
        self._notify(*self._outgoing.connection_lost())

    # -- outputs

    def _give_out(self, now: int) -> None:
        link = self._link
        if link.has_socket:
            self._give_out_frames(now)
        elif link.online:
            self._give_out_requests(now)
        if self._incoming.waiting:
            self._out.append(MessagesWaiting())

    def _give_out_frames(self, now: int) -> None:
        link = self._link
        for defer in self._incoming.take_defers():
            link.put(now, defer)
        if now >= self._acks_pause_until:
            for ack in self._incoming.take_acks():
                link.put(now, ack)
        if link.online and link.welcome is not None:
            limits = link.welcome.limits
            sends, events = self._outgoing.take(now, limits, limits.sends_in_flight)
            self._notify(*events)
            for send in sends:
                link.put(now, send)
            if walk := self._reading.next_walk_page(self.server_now(now)):
                link.put(now, PullMailbox(*walk, self._settings.page_limit))
        link.leave_when_done(now, busy=self._outgoing.in_flight > 0 or self._incoming.acks_in_flight > 0)

    def _give_out_requests(self, now: int) -> None:
        link = self._link
        busy = self._http_sends or self._incoming.acks_in_flight
        if link.wants_socket(now):
            if not busy:
                link.try_socket(now)
            return  # nothing new until what is in flight is answered
        self._incoming.take_defers()  # no window here: a deferred entry is simply not acked
        if now >= self._acks_pause_until:
            for ref, mids in self._incoming.take_acks(in_flight_max=1):
                self._out.append(PostAck(ref, mids))
        if not self._http_sends:  # one at a time: that keeps their order
            sends, events = self._outgoing.take(now, None, 1)
            self._notify(*events)
            for send in sends:
                request = next(self._numbers)
                self._http_sends[request] = send.cmid
                self._out.append(PostSend(request, send))
        if walk := self._reading.next_walk_page(self.server_now(now)):
            request, cursor = walk
            self._out.append(GetPage(request, cursor, 0, None))
        slow = self._incoming.unconfirmed >= self._settings.unconfirmed_max
        if page := self._reading.next_page(app_is_slow=slow):
            self._out.append(page)

    # -- inside

    def _known_now(self, now: int) -> int:
        """The server's time where it must be known: a token tells it, and nothing comes before a token."""
        server_now = self.server_now(now)
        if server_now is None:
            raise AssertionError("something came from the server before it told its time")
        return server_now

    def _learn_time(self, now: int, server_now: int) -> None:
        first = self._server_base is None
        self._server_base = (server_now, now)
        if first:
            self._outgoing.server_time_learned(now, server_now)
            self._out.append(ServerTimeKnown(server_now))

    def _notify(self, *events: Event) -> None:
        self._out.extend(Notify(event) for event in events)
