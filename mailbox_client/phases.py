"""The phases of the connection and the ways between them: in to the server, out again, waiting for the next try."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Protocol

from mailbox_client.engine_io import Notify, Output
from mailbox_client.errors import StopReason
from mailbox_client.events import Disconnected, Stopped, Transport
from mailbox_client.next_try import NextTry
from mailbox_client.settings import ClientSettings
from mailbox_client.socket_plan import SocketPlan
from mailbox_client.token_plan import TokenPlan
from mailbox_client.transport_choice import TransportChoice
from protocol.frames import Welcome


class Phase(Enum):
    STOPPED = auto()
    WAITING = auto()
    TOKEN = auto()
    OPENING = auto()
    GREETING = auto()  # HELLO is out, WELCOME is not here
    ONLINE = auto()
    LEAVING = auto()  # after GOAWAY: only what is in flight is finished


class Listener(Protocol):
    def connection_lost(self) -> None:
        """Everything in flight is undecided from now on."""

    def http_begins(self, now: int) -> None:
        """HTTP is the way to the server now: pull, then send."""


class Phases:
    """Where the connection stands. Which way to take after what happened is the link's to say."""

    def __init__(
        self,
        settings: ClientSettings,
        random: Callable[[], float],
        numbers: Iterator[int],
        out: list[Output],
        listener: Listener,
    ) -> None:
        self._settings = settings
        self._out = out
        self._listener = listener
        self.phase = Phase.STOPPED
        self.transport = Transport.WEBSOCKET
        self.welcome: Welcome | None = None
        self._due = 0
        self._choice = TransportChoice(settings, random)
        self._socket = SocketPlan(numbers, out)
        self._tries = NextTry(settings, random)
        self._token = TokenPlan(random, numbers, out)

    @property
    def online(self) -> bool:
        return self.phase is Phase.ONLINE

    @property
    def socket(self) -> int:
        """The number of the latest socket."""
        return self._socket.number

    @property
    def has_socket(self) -> bool:
        """True if frames can be put on the socket."""
        return self.phase in (Phase.ONLINE, Phase.LEAVING) and self.transport is Transport.WEBSOCKET

    def stop(self, reason: StopReason) -> None:
        """End all trying. The socket is closed in good order unless the server closed it."""
        if self.phase is Phase.STOPPED:
            return
        self._drop()
        self.phase = Phase.STOPPED
        self._listener.connection_lost()
        self._out.append(Notify(Stopped(reason)))

    def _go_on(self, now: int) -> None:
        if self._token.usable(now) is None:
            self.phase = Phase.TOKEN
            self._due = now + self._settings.token_ms
            self._token.fetch()
        elif self._choice.is_http(now):
            self.phase = Phase.ONLINE
            self.transport = Transport.HTTP
            self._tries.online(now)
            self._listener.http_begins(now)
        else:
            self.phase = Phase.OPENING
            self.transport = Transport.WEBSOCKET
            self.welcome = None
            self._due = now + self._settings.open_ms
            self._socket.open()

    def _drop(self) -> None:
        if self.phase in (Phase.OPENING, Phase.GREETING) or self.has_socket:
            self._socket.close(at_once=False)
        self._token.give_up()

    def _restart(self, now: int) -> None:
        self._drop()
        self._listener.connection_lost()
        self._out.append(Notify(Disconnected(None, 0)))
        self._go_on(now)

    def _fail(self, now: int, code: int | None, retry_after_ms: int | None) -> None:
        self._wait(now, code, self._tries.failed(retry_after_ms))

    def _wait(self, now: int, code: int | None, wait_ms: int) -> None:
        self.phase = Phase.WAITING
        self._socket.heartbeat.heard()
        self._due = self._tries.earliest(now + wait_ms)
        self._listener.connection_lost()
        self._out.append(Notify(Disconnected(code, self._due - now)))
