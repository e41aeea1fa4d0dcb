"""The life of the connection: token, WebSocket, HTTP instead, backoff, heartbeat, GOAWAY, REAUTH (WIRE's close codes).

It decides when and how to be connected and knows nothing of sends or messages. One connection exists at a time; its
loss is told to the listener before anything else happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from mailbox_client.engine_io import Notify, Output, SocketLost
from mailbox_client.errors import StopReason
from mailbox_client.events import Connected, Transport
from mailbox_client.phases import Listener, Phase, Phases
from mailbox_client.settings import ClientSettings
from protocol.errors import CloseCode, ErrorCode, MailboxError
from protocol.frames import ClientFrame, Error, GoAway, Hello, Reauth, ServerFrame, Welcome

HTTP_STATUS_WAIT: Final = (429, 503)

_FINAL: Final = {
    CloseCode.REVOKED: StopReason.REVOKED,
    CloseCode.REPLACED: StopReason.REPLACED,
    CloseCode.MALFORMED: StopReason.FAULT,
    CloseCode.TOO_BIG: StopReason.FAULT,
}


class Link(Phases):
    """The connection of one device, as a plan: calls say what happened, outputs say what to do."""

    def __init__(
        self,
        settings: ClientSettings,
        random: Callable[[], float],
        numbers: Iterator[int],
        instance: bytes,
        out: list[Output],
        listener: Listener,
    ) -> None:
        super().__init__(settings, random, numbers, out, listener)
        self._instance = instance

    def hears(self, frame: ServerFrame) -> bool:
        """True if this frame counts now: one left over from a connection given up must not pass for a living one."""
        if self.phase is Phase.GREETING:
            return isinstance(frame, Welcome | Error | GoAway)
        return self.has_socket and not isinstance(frame, Welcome)

    # -- the app

    def start(self, now: int) -> None:
        if self.phase is Phase.STOPPED:
            self._tries.begin_anew()
            self._go_on(now)

    def woke(self, now: int) -> None:
        match self.phase:
            case Phase.WAITING:
                self._due = self._tries.earliest(now)
                self.tick(now)
            case Phase.ONLINE if self.transport is Transport.WEBSOCKET:
                self._socket.ping(now, self._settings.pong_after_sleep_ms)
            case Phase.ONLINE:
                self._restart(now)  # a poll that slept may hang for ever
            case _:
                pass

    def prefer(self, now: int, transport: Transport | None) -> None:
        self._choice.prefer(transport)
        wrong = transport is not None and transport is not self.transport
        if wrong and self.phase in (Phase.OPENING, Phase.GREETING, Phase.ONLINE, Phase.LEAVING):
            self._restart(now)

    # -- token

    def token_given(self, now: int, request: int, token: str, reauth_in_ms: int) -> None:
        if not self._token.answered(request):
            return
        self._token.keep(now, token, reauth_in_ms)
        self._tries.token_came()
        if self.phase is Phase.TOKEN:
            self._go_on(now)
        elif self.has_socket:
            self.put(now, Reauth(token))

    def token_failed(self, now: int, request: int, error: MailboxError | None, stop: StopReason | None) -> None:
        if self._token.answered(request):
            self._without_token(now, error, stop)

    def _without_token(self, now: int, error: MailboxError | None, stop: StopReason | None) -> None:
        if stop is None:
            stop = self._tries.token_refused(error.code if error is not None else None)
        if stop is not None:
            self.stop(stop)
        elif self.phase is Phase.TOKEN:
            self._fail(now, None, error.retry_after_ms if error is not None else None)
        else:
            self._token.renew_at(now + self._tries.backoff())

    def reauthenticated(self, now: int, reauth_in_ms: int) -> None:
        self._token.renew_before(now, reauth_in_ms)

    def reauth_soon(self) -> None:
        self._token.fetch()

    # -- socket

    def socket_opened(self, now: int, socket: int, cursor: str | None) -> None:
        token = self._token.usable(now)
        if socket != self.socket or self.phase is not Phase.OPENING:
            return
        if token is None:  # it took so long to open that the token is over
            self._restart(now)
            return
        self.phase = Phase.GREETING
        self._due = now + self._settings.welcome_ms
        self._socket.put(
            now,
            Hello(
                token,
                cursor,
                self._settings.window_entries,
                self._settings.window_bytes,
                self._instance,
                socket,
                self._settings.client_name,
            ),
        )

    def welcomed(self, now: int, welcome: Welcome) -> None:
        self.phase = Phase.ONLINE
        self.welcome = welcome
        self._tries.online(now)
        self._choice.socket_works()
        self._socket.heartbeat.heartbeat_s = welcome.heartbeat_s
        self._token.renew_before(now, welcome.reauth_before - welcome.now)
        self._out.append(Notify(Connected(Transport.WEBSOCKET, welcome.pending)))

    def goaway(self, now: int, frame: GoAway) -> None:
        self._tries.come_back_at(now + frame.reconnect_after_ms)
        if self.phase is Phase.ONLINE:
            self.phase = Phase.LEAVING
            self._due = now + self._settings.leave_ms

    def socket_lost(self, now: int, lost: SocketLost) -> None:
        if lost.socket != self.socket or self.phase in (Phase.STOPPED, Phase.WAITING, Phase.TOKEN):
            return
        early = self.phase in (Phase.OPENING, Phase.GREETING)
        leaving = self.phase is Phase.LEAVING
        reason = _FINAL.get(lost.code) if lost.code is not None else None
        self.phase = Phase.WAITING
        if reason is not None:
            self.stop(reason)
        elif lost.reconnect_after_ms is not None:
            self._tries.come_back_at(now + lost.reconnect_after_ms)
            self._wait(now, lost.code, lost.reconnect_after_ms)
        elif leaving:
            self._wait(now, lost.code, 0)
        elif lost.code == CloseCode.UNAUTHENTICATED:
            self._token.drop()
            self._wait(now, lost.code, self._tries.token_not_taken())
        elif lost.code in (CloseCode.NORMAL, CloseCode.GOING_AWAY, CloseCode.RESTART) and not early:
            self._wait(now, lost.code, self._tries.backoff())
        else:
            if early and not lost.unreachable and lost.http_status not in HTTP_STATUS_WAIT:
                self._choice.socket_failed(now)
            if early and self._choice.is_http(now):
                self._wait(now, lost.code, 0)  # HTTP has not been tried yet
            else:
                self._fail(now, lost.code, None)

    def frame_came(self) -> None:
        """Any frame proves the connection."""
        self._socket.heartbeat.heard()

    def put(self, now: int, frame: ClientFrame) -> None:
        """Put a frame on the socket, if there is one."""
        if self.has_socket:
            self._socket.put(now, frame)

    # -- HTTP

    def http_failed(self, now: int, error: MailboxError | None) -> None:
        """A request of the HTTP session failed in a way that ends the session: reconcile before the next resend."""
        if self.transport is not Transport.HTTP or self.phase is not Phase.ONLINE:
            return
        code = error.code if error is not None else None
        if code is ErrorCode.DEVICE_REVOKED:
            self.stop(StopReason.REVOKED)
            return
        if code in (ErrorCode.UNAUTHENTICATED, ErrorCode.TOKEN_EXPIRED):
            self._token.drop()
            self._wait(now, None, self._tries.token_not_taken())
            return
        self._fail(now, None, error.retry_after_ms if error is not None else None)

    def http_works(self, now: int) -> None:
        self._tries.still_online(now)

    def wants_socket(self, now: int) -> bool:
        """True if HTTP is in use and it is time to try a WebSocket again."""
        return self.online and self.transport is Transport.HTTP and self._choice.wants_socket(now)

    def try_socket(self, now: int) -> None:
        """Leave HTTP for a try. The caller has nothing in flight."""
        self._restart(now)

    # -- the clock

    def tick(self, now: int) -> None:
        if self.has_socket and self._socket.heartbeat.is_dead(now):
            self._abort(now)
            return
        match self.phase:
            case Phase.WAITING if now >= self._due:
                self._go_on(now)
            case Phase.TOKEN if now >= self._due:
                self._token.give_up()
                self._without_token(now, None, None)
            case Phase.OPENING | Phase.GREETING if now >= self._due:
                self._abort(now)
            case Phase.ONLINE:
                self._tries.still_online(now)
                self._token.renew_when_due(now)
                if self.transport is Transport.WEBSOCKET and now >= self._socket.heartbeat.ping_due:
                    self._socket.ping(now, self._settings.pong_ms)
            case _:
                pass

    def give_up(self, now: int) -> None:
        """The connection looks alive and answers nothing: replace it."""
        if self.has_socket:
            self._abort(now)
        else:
            self._fail(now, None, None)

    def leave_when_done(self, now: int, *, busy: bool) -> None:
        """After GOAWAY: go as soon as nothing is in flight, or when the time for it is over."""
        if self.phase is Phase.LEAVING and (not busy or now >= self._due):
            self._drop()
            self._wait(now, None, 0)

    def next_due(self, now: int) -> int | None:
        match self.phase:
            case Phase.STOPPED:
                return None
            case Phase.ONLINE:
                heartbeat = self._socket.heartbeat
                dues = [self._token.next_due(), heartbeat.pong_due, self._tries.stable_at()]
                if self.transport is Transport.WEBSOCKET:
                    dues.append(heartbeat.ping_due)
                else:
                    dues.append(self._choice.next_try(now))
                return min((due for due in dues if due is not None), default=None)
            case _:
                return self._due

    # -- inside

    def _abort(self, now: int) -> None:
        """Give the socket up as lost."""
        self._socket.close(at_once=True)
        self.socket_lost(now, SocketLost(self.socket))
