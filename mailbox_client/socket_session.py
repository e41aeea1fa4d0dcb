"""A session over a WebSocket: the server's frames taken in, and what the session sends next."""

from __future__ import annotations

from collections.abc import Callable

from mailbox_client.arrivals import Arrivals
from mailbox_client.errors import StopReason
from mailbox_client.events import ServerNotice
from mailbox_client.incoming import Incoming
from mailbox_client.link import Link
from mailbox_client.local_store import LocalStore
from mailbox_client.outgoing import Outgoing
from mailbox_client.reading import Reading
from mailbox_client.server_time import ServerTime
from mailbox_client.settings import ClientSettings
from protocol.errors import ErrorCode
from protocol.frames import AckResult, Error, GoAway, MailboxBatch, PullMailbox, PushEvents, SendAck, Welcome


class SocketSession:
    """Entries are pushed, and sends and ACKs go out side by side, as far as WELCOME's limits let.

    The frames are those of a connection that counts: who calls asked `Link.hears` first.
    """

    def __init__(
        self,
        store: LocalStore,
        settings: ClientSettings,
        link: Link,
        outgoing: Outgoing,
        incoming: Incoming,
        reading: Reading,
        arrivals: Arrivals,
        time: ServerTime,
        notify: Callable[..., None],
        learn_time: Callable[[int, int], None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._link = link
        self._outgoing = outgoing
        self._incoming = incoming
        self._reading = reading
        self._arrivals = arrivals
        self._time = time
        self._notify = notify
        self._learn_time = learn_time
        self.acks_pause_until = 0  # the server refused an ACK: its entries are acked again, not before then

    # -- frames

    def frame_came(self, now: int, frame: object) -> None:
        link = self._link
        link.frame_came()
        match frame:
            case MailboxBatch(ref, entries, cursor, more, caught_up):
                if ref is None:
                    self._arrivals.take_in(now, entries, pushed=True)
                    self._store.set_cursor(cursor)
                    if caught_up:
                        self._arrivals.reached_watermark(now, link.transport)
                    else:
                        self._incoming.make_room()
                elif self._reading.is_walk_page(ref):
                    self._arrivals.walked(now, entries, cursor, more)
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
            self.acks_pause_until = now + max(error.retry_after_ms or 0, self._settings.retry_base_ms)
        elif error.ref is not None and self._reading.is_walk_page(error.ref):
            self._reading.walk_failed(self._time.known(now), error.code, error.retry_after_ms)
        elif error.code is ErrorCode.DEVICE_REVOKED:
            self._link.stop(StopReason.REVOKED)
        # Every other error without a reference is followed by the close code that says what to do.

    def _push_event(self, now: int, event: dict[str, object]) -> None:
        match event:
            case {"kind": "reauth_soon"}:
                self._link.reauth_soon()
            case {"kind": "reauthenticated", "reauth_before": int(reauth_before)}:
                self._link.reauthenticated(now, reauth_before - self._time.known(now))
            case {"kind": "prekeys_low", "left": int(left)}:
                self._notify(ServerNotice("prekeys_low", left))
            case {"kind": ("push_route_gone" | "mailbox_filling") as name}:
                self._notify(ServerNotice(str(name)))
            case _:
                pass  # unknown kinds are ignored (WIRE)

    # -- what goes out

    def give_out(self, now: int) -> None:
        link = self._link
        for defer in self._incoming.take_defers():
            link.put(now, defer)
        if now >= self.acks_pause_until:
            for ack in self._incoming.take_acks():
                link.put(now, ack)
        if link.online and link.welcome is not None:
            limits = link.welcome.limits
            sends, events = self._outgoing.take(now, limits, limits.sends_in_flight)
            self._notify(*events)
            for send in sends:
                link.put(now, send)
            if walk := self._reading.next_walk_page(self._time.at(now)):
                link.put(now, PullMailbox(*walk, self._settings.page_limit))
        link.leave_when_done(now, busy=self._outgoing.in_flight > 0 or self._incoming.acks_in_flight > 0)
