"""A session over HTTP alone: pages instead of pushes, one send at a time, ACKs by POST."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mailbox_client.arrivals import Arrivals
from mailbox_client.engine_io import Abandon, GetPage, Output, Page, PostAck, PostSend
from mailbox_client.events import Connected, Transport
from mailbox_client.incoming import Incoming
from mailbox_client.link import Link
from mailbox_client.outgoing import Outgoing
from mailbox_client.reading import CURSOR_REFUSED, Reading
from mailbox_client.server_time import ServerTime
from mailbox_client.settings import ClientSettings
from protocol.errors import ErrorCode, MailboxError
from protocol.frames import SendResult
from protocol.ids import ClientMessageId


class HttpSession:
    """Asks for what the session needs next and takes in the answers.

    A request without an answer ends the session, as a lost connection does: what it wrote is looked for in the mailbox
    before it is sent again.
    """

    def __init__(
        self,
        settings: ClientSettings,
        numbers: Iterator[int],
        out: list[Output],
        link: Link,
        outgoing: Outgoing,
        incoming: Incoming,
        reading: Reading,
        arrivals: Arrivals,
        time: ServerTime,
        notify: Callable[..., None],
    ) -> None:
        self._settings = settings
        self._numbers = numbers
        self._out = out
        self._link = link
        self._outgoing = outgoing
        self._incoming = incoming
        self._reading = reading
        self._arrivals = arrivals
        self._time = time
        self._notify = notify
        self._sends: dict[int, ClientMessageId] = {}  # by request

    # -- answers

    def page_came(self, now: int, request: int, page: Page) -> None:
        self._link.http_works(now)
        if self._reading.is_walk_page(request):
            self._arrivals.walked(now, page.entries, page.cursor, page.more)
        elif self._reading.is_page(request):
            if self._reading.page_came(page):
                self._notify(Connected(Transport.HTTP, bool(page.entries)))
            self._arrivals.take_in(now, page.entries, pushed=False)
            if page.caught_up:
                self._arrivals.reached_watermark(now, Transport.HTTP)

    def send_answered(self, request: int, duplicate: bool, results: Sequence[SendResult]) -> None:
        cmid = self._sends.pop(request, None)
        self._reading.echoes_wait = False
        if cmid is not None:
            self._notify(*self._outgoing.answered(cmid, duplicate, results))

    def failed(self, now: int, request: int, error: MailboxError | None) -> None:
        """A refusal concerns its request; no answer, or none to be trusted, ends the session."""
        if request in self._sends:
            cmid = self._sends.pop(request)
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
            code, retry_after_ms = (error.code, error.retry_after_ms) if error is not None else (None, None)
            self._reading.walk_failed(self._time.known(now), code, retry_after_ms)
            if code is ErrorCode.RATE_LIMITED or code in CURSOR_REFUSED:
                return
        else:
            return
        self._link.http_failed(now, error)

    def lost(self) -> None:
        """The session is over: no answer is waited for any more."""
        self._out.extend(Abandon(request) for request in self._sends)
        self._sends.clear()

    # -- requests

    def give_out(self, now: int) -> None:
        link, incoming, reading = self._link, self._incoming, self._reading
        if link.wants_socket(now):
            if not self._sends and not incoming.acks_in_flight:
                link.try_socket(now)
            return  # nothing new until what is in flight is answered
        incoming.take_defers()  # no window here: a deferred entry is simply not acked
        for ref, mids in incoming.take_acks(in_flight_max=1):
            self._out.append(PostAck(ref, mids))
        if not self._sends:  # one at a time: that keeps their order
            sends, events = self._outgoing.take(now, None, 1)
            self._notify(*events)
            for send in sends:
                request = next(self._numbers)
                self._sends[request] = send.cmid
                self._out.append(PostSend(request, send))
        if walk := reading.next_walk_page(self._time.at(now)):
            request, cursor = walk
            self._out.append(GetPage(request, cursor, 0, None))
        if page := reading.next_page(app_is_slow=incoming.unconfirmed >= self._settings.unconfirmed_max):
            self._out.append(page)
