"""The client as a state machine: inputs in, outputs out, one store transaction per step. No socket, clock or thread.

Whoever drives it (the asyncio client, a simulation) calls `step` with what happened and the monotonic time, and carries
out the outputs after `step` returned: by then everything they rely on is durable. If `step` raises, the engine is
thrown away and another one made from the store, as after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mailbox_client.arrivals import Arrivals
from mailbox_client.engine_io import (
    Abandon,
    AckAnswered,
    Confirm,
    DeferMessages,
    Forget,
    FrameReceived,
    HandOver,
    Input,
    MessagesWaiting,
    Notify,
    Output,
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
from mailbox_client.events import Event, StoreWasReset
from mailbox_client.http_session import HttpSession
from mailbox_client.incoming import Incoming
from mailbox_client.link import Link
from mailbox_client.local_store import LocalStore
from mailbox_client.outgoing import Outgoing
from mailbox_client.reading import Reading
from mailbox_client.server_time import ServerTime
from mailbox_client.settings import ClientSettings
from mailbox_client.socket_session import SocketSession


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
        self._time = ServerTime()
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
        parts = self._outgoing, self._incoming, self._reading
        self._arrivals = Arrivals(store, settings, *parts, self._time, self._notify)
        self._http = HttpSession(
            settings, numbers, self._out, self._link, *parts, self._arrivals, self._time, self._notify
        )
        self._socket = SocketSession(
            store, settings, self._link, *parts, self._arrivals, self._time, self._notify, self._learn_time
        )

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
            dues += [self._outgoing.next_due(now), self._walk_due(now)]
        if self._socket.acks_pause_until > now:
            dues.append(self._socket.acks_pause_until)
        return min((due for due in dues if due is not None), default=None)

    def _walk_due(self, now: int) -> int | None:
        walk_at, server_now = self._reading.walk_due_at, self.server_now(now)
        if walk_at is None or server_now is None or self._link.wants_socket(now):
            return None
        return now + max(0, walk_at - server_now)

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
        return self._time.at(now)

    # -- inputs

    def _take(self, now: int, one: Input) -> None:
        link = self._link
        match one:
            case FrameReceived(socket, frame):
                if socket == link.socket and link.hears(frame):
                    self._socket.frame_came(now, frame)
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
                self._http.page_came(now, request, page)
            case SendAnswered(request, duplicate, results):
                self._http.send_answered(request, duplicate, results)
            case AckAnswered(request):
                self._incoming.acked(request)
            case RequestFailed(request, error):
                self._http.failed(now, request, error)

    # -- what the link tells

    def http_begins(self, now: int) -> None:
        self._reading.http_begins()
        self._socket.acks_pause_until = 0

    def connection_lost(self) -> None:
        self._http.lost()
        self._out.extend(Abandon(request) for request in self._reading.connection_lost())
        self._incoming.connection_lost()
        self._notify(*self._outgoing.connection_lost())

    # -- outputs

    def _give_out(self, now: int) -> None:
        link = self._link
        if link.has_socket:
            self._socket.give_out(now)
        elif link.online:
            self._http.give_out(now)
        if self._incoming.waiting:
            self._out.append(MessagesWaiting())

    # -- inside

    def _learn_time(self, now: int, server_now: int) -> None:
        if self._time.learn(now, server_now):
            self._outgoing.server_time_learned(now, server_now)
            self._out.append(ServerTimeKnown(server_now))

    def _notify(self, *events: Event) -> None:
        self._out.extend(Notify(event) for event in events)
