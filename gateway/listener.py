"""One port for both doors: the first bytes of a connection decide between `/v1/ws` and HTTP.

A connection that asks for something else than the WebSocket goes to the HTTP server as soon as that is clear. Balancers
reuse their connections, so an upgrade can also come as a later request on one that has carried HTTP before: the HTTP
server then hands the transport over (`UpgradeLater`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final, cast

import structlog
from aiohttp import HttpVersion11, web

from gateway.client_address import Network, client_address, is_trusted, peer_of
from gateway.connection_limits import ConnectionLimits
from gateway.http.connection import HttpConnection
from gateway.timer_wheel import TimerWheel
from gateway.upgrade import Accepted, Headers, Refused, UpgradeJudge
from gateway.ws_door import WsDoor
from protocol.errors import ErrorCode

HEAD_BYTES_MAX: Final = 16 * 1024
HEAD_S: Final = 10.0  # for the whole head of the first request
LINGER_S: Final = 2.0  # for a refused client to read its refusal

_WS_START: Final = b"GET /v1/ws"
_REQUEST_LINE: Final = re.compile(r"GET [!-~]+ HTTP/1\.1")
_FIELD: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t -~\x80-\xff]*)")

log = structlog.get_logger(__name__)


class Front:
    """What all new connections of a port share."""

    def __init__(
        self,
        *,
        http: Callable[[], HttpConnection],
        judge: UpgradeJudge,
        door: WsDoor,
        limits: ConnectionLimits,
        trusted_proxies: tuple[Network, ...],
        now: Callable[[], float],
    ) -> None:
        """`http` makes the protocol of one HTTP connection."""
        self.http = http
        self.judge = judge
        self.door = door
        self.limits = limits
        self.trusted_proxies = trusted_proxies
        self.now = now
        self.waiting: TimerWheel[FirstRequest] = TimerWheel(now())

    def __call__(self) -> FirstRequest:
        """The protocol of a new connection that the loop accepted."""
        return FirstRequest(self)

    def enter(self, peer: str, arrived: Callable[[], None]) -> FirstRequest:
        """The protocol of one that has come through the acceptor. `arrived` is called before it is counted here."""
        return FirstRequest(self, peer, arrived)

    def tick(self) -> None:
        """Once a second: drop those that did not get their first request out in time."""
        for connection in self.waiting.due(self.now()):
            connection.time_is_up()


class FirstRequest(asyncio.Protocol):
    """A connection whose door is not known yet."""

    __slots__ = ("_arrived", "_buffer", "_front", "_peer", "_refused", "_transport")

    def __init__(self, front: Front, peer: str = "", arrived: Callable[[], None] | None = None) -> None:
        self._front = front
        self._peer = peer
        self._arrived = arrived
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer = self._peer or peer_of(transport)
        if self._arrived is not None:
            self._arrived()
            self._arrived = None
        front = self._front
        front.limits.opened()
        if front.limits.overrun:
            self._transport.abort()
            return
        front.waiting.add(self, front.now() + HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._transport = None
            self._front.limits.closed()

    def time_is_up(self) -> None:
        """The head did not come in time, or the refusal was not read."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._refused:
            return
        self._buffer += data
        front = self._front
        if front.limits.full:
            self._refuse(front.judge.busy("full"))
        elif not self._is_websocket():
            self._to_http()
        elif (end := self._buffer.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)) >= 0:
            self._judge(end)
        elif len(self._buffer) >= HEAD_BYTES_MAX:
            self._to_http()  # which refuses long heads

    def _is_websocket(self) -> bool:
        """Whether it may still be the WebSocket's path, as far as it has come in."""
        line = self._buffer[: len(_WS_START) + 1]
        return _WS_START.startswith(line) or (line.startswith(_WS_START) and line[-1:] in b" ?")

    def _judge(self, end: int) -> None:
        transport, front = self._transport, self._front
        headers = parse_head(self._buffer[:end])
        if transport is None:
            return
        judged = None if headers is None else front.judge.judge(headers, self._peer)
        match judged:
            case None:
                self._to_http()
            case Refused():
                self._refuse(judged)
            case Accepted(answer, address):
                early = self._buffer[end + 4 :]
                self._release()
                transport.write(answer)
                front.door.take_over(transport, address, early)

    def _refuse(self, refused: Refused) -> None:
        """Answer and close. What still comes in is dropped, so that the answer is not destroyed on its way."""
        if self._transport is None:
            return
        self._refused = True
        self._buffer = b""
        self._transport.write(refused.to_bytes())
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._front.waiting.add(self, self._front.now() + LINGER_S)
        else:
            self._transport.close()

    def _to_http(self) -> None:
        transport, front = self._transport, self._front
        if transport is None:
            return
        address = ""  # behind a proxy one connection carries many clients: it is nobody's
        if not is_trusted(self._peer, front.trusted_proxies):
            address = client_address(self._peer, (), ())
            if not front.limits.take_address(address):
                self._refuse(front.judge.busy("address", ErrorCode.RATE_LIMITED))
                return
        early = self._buffer
        self._release()
        http = front.http()
        http.peer = self._peer
        relay = HttpRelay(http, front.limits, address)
        transport.set_protocol(relay)
        relay.connection_made(transport)
        relay.data_received(early)

    def _release(self) -> None:
        """The transport has another protocol from here on; it stays counted."""
        self._transport = None
        self._buffer = b""


class HttpRelay(asyncio.Protocol):
    """Stands before the HTTP server's protocol and counts the connection's end."""

    def __init__(self, http: asyncio.Protocol, limits: ConnectionLimits, address: str) -> None:
        self._http = http
        self._limits = limits
        self._address = address
        self._counted = bool(address)
        # The loop looks these up for every event: nothing stands in between but at the end.
        self.data_received = http.data_received  # type: ignore[method-assign]
        self.connection_made = http.connection_made  # type: ignore[method-assign]
        self.eof_received = http.eof_received  # type: ignore[method-assign]
        self.pause_writing = http.pause_writing  # type: ignore[method-assign]
        self.resume_writing = http.resume_writing  # type: ignore[method-assign]

    def connection_lost(self, exc: Exception | None) -> None:
        self.leave()
        self._limits.closed()
        self._http.connection_lost(exc)

    def leave(self) -> None:
        """The connection is no HTTP client's any more."""
        if self._counted:
            self._limits.give_back_address(self._address)
            self._counted = False

    def come_back(self) -> None:
        """It is one all the same: right after `leave`, while nobody else can have taken its place."""
        self._counted = bool(self._address) and self._limits.take_address(self._address)


class UpgradeLater:
    """Upgrades that come as a later request on an HTTP connection."""

    def __init__(self, judge: UpgradeJudge, door: WsDoor) -> None:
        self._judge = judge
        self._door = door

    def __call__(self, request: web.BaseRequest) -> web.StreamResponse | None:
        """The answer to a request for /v1/ws, None when it asks for no upgrade.

        After an accepted one the transport is the WebSocket's, the HTTP server believes that its connection was lost,
        and what is returned writes nothing.
        """
        transport, http = request.transport, cast(HttpConnection, request.protocol)
        if transport is None or request.method != "GET" or request.version != HttpVersion11:
            return None
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in request.raw_headers]
        relay = cast(HttpRelay, transport.get_protocol())
        relay.leave()  # its place at the address is the WebSocket's, or it gets it back
        judged = self._judge.judge(headers, http.peer)
        if judged is None:
            relay.come_back()
            return None
        if isinstance(judged, Refused):
            relay.come_back()
            response = web.Response(status=judged.status, headers=judged.headers, body=judged.body)
            response.force_close()
            return response
        early = _take_transport(http)
        transport.write(judged.answer)
        self._door.take_over(transport, judged.address, early)
        return _TakenOver(status=101)


def _take_transport(protocol: Any) -> bytes:
    """Make aiohttp let go of its transport; gives the bytes that came behind the request."""
    tail = _Tail()
    protocol.set_parser(tail)  # as its own WebSockets do: the rest of the stream belongs to somebody else
    protocol.transport = None  # so that it closes nothing
    protocol.connection_lost(None)
    return tail.data


class _Tail:
    """Receives what aiohttp had read ahead."""

    def __init__(self) -> None:
        self.data = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        """The end of aiohttp's part."""


class _TakenOver(web.Response):
    """Stands for an answer that was written already."""

    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None


def parse_head(head: bytes) -> Headers | None:
    """The headers of an HTTP/1.1 request whose head is complete, None when it is not one of plain form.

    Strict where requests could be read in two ways: no folded lines, no space before the colon, no other line ends,
    names of token characters and values without control characters (RFC 9110, 5.1, 5.5).
    """
    line, *fields = head.decode("latin-1").split("\r\n")
    if _REQUEST_LINE.fullmatch(line) is None:
        return None
    headers: list[tuple[str, str]] = []
    for field in fields:
        match = _FIELD.fullmatch(field)
        if match is None:
            return None
        headers.append((match[1].lower(), match[2].strip(" \t")))
    return headers
