"""What stands between a new connection and its first request: the PROXY header, the TLS handshake.

A port with neither is served by the loop alone. Here the sockets are accepted by hand, since the PROXY header comes
before TLS begins. Who does not get through in time is dropped without an answer, and until then counts like everybody
else: whoever opens connections and never speaks must not be able to hold all files of the process.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from gateway.client_address import Network, client_address, is_trusted
from gateway.connection_limits import ConnectionLimits
from gateway.listener import Front
from gateway.metrics import GatewayMetrics
from gateway.proxy_header import HEADER_BYTES_MAX, BadProxyHeader, parse_proxy_header
from gateway.tls import TlsIdentity
from runtime.setting_types import ListenAddress

PROXY_HEADER_S: Final = 5.0
TLS_HANDSHAKE_S: Final = 10.0
NO_FILES_PAUSE_S: Final = 1.0
_ACCEPTED_AT_ONCE: Final = 100
_NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = structlog.get_logger(__name__)


class Acceptor:
    """The listening sockets of one port, from `listen` to `close`."""

    def __init__(
        self,
        front: Front,
        *,
        limits: ConnectionLimits,
        tls: TlsIdentity | None,
        proxy_header_from: Sequence[Network],
        connections_per_address: Callable[[], int],
        metrics: GatewayMetrics,
    ) -> None:
        """`proxy_header_from`: whose connections must begin with a PROXY header; nobody else's may.

        `connections_per_address`: how many of one address may be on their way in at the same time, 0 for any number.
        """
        self._front = front
        self._limits = limits
        self._tls = tls
        self._proxies = proxy_header_from
        self._connections_per_address = connections_per_address
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._entering: set[asyncio.Task[None]] = set()
        self._by_address: Counter[str] = Counter()

    async def listen(self, address: ListenAddress, backlog: int) -> ListenAddress:
        """Accept from here on; returns where. Raises OSError when the address cannot be had."""
        found = await self._loop.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, where in dict.fromkeys(found):
            listening = socket.socket(family, socket.SOCK_STREAM)
            self._sockets.append(listening)
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(where)
            listening.listen(backlog)
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)
        return ListenAddress(*self._sockets[0].getsockname()[:2])

    async def close(self) -> None:
        """Accept nobody any more and drop those on their way in. Connections that are in are not touched."""
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()
        for task in self._entering:
            task.cancel()
        if self._entering:
            await asyncio.wait(self._entering)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, where = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _NO_FILES:
                    return  # that connection broke before it was ours (accept(2))
                log.error("no connection can be accepted for a moment", reason=error.strerror)
                self._loop.remove_reader(listening)
                self._loop.call_later(NO_FILES_PAUSE_S, self._accept_again, listening)
                return
            accepted.setblocking(False)
            if self._limits.overrun:
                accepted.close()
                continue
            self._limits.opened()
            task = self._loop.create_task(self._enter(accepted, str(where[0])), name="entering")
            self._entering.add(task)
            task.add_done_callback(self._entering.discard)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    async def _enter(self, accepted: socket.socket, peer: str) -> None:
        """Take one connection to its first request, or drop it."""
        address = ""
        inside = False

        def arrived() -> None:
            """It is an ordinary connection now and counts as one."""
            nonlocal inside
            inside = True
            self._limits.closed()
            self._gone(address)

        try:
            if is_trusted(peer, self._proxies):
                async with asyncio.timeout(PROXY_HEADER_S):
                    peer = await self._read_proxy_header(accepted) or peer
            address = self._count(peer)
            await self._loop.connect_accepted_socket(
                lambda: self._front.enter(peer, arrived),
                accepted,
                ssl=None if self._tls is None else self._tls.context,
                ssl_handshake_timeout=None if self._tls is None else TLS_HANDSHAKE_S,
            )
        except BadProxyHeader:
            self._metrics.refused.labels(reason="proxy_header").inc()
        except ConnectionRefusedError:
            self._metrics.refused.labels(reason="address").inc()
        except ConnectionResetError:
            pass  # it left by itself, as health checks do
        except OSError:  # ssl.SSLError and both time-outs among them: it speaks no TLS, or is too slow
            self._metrics.refused.labels(reason="entering").inc()
        finally:
            if not inside:
                accepted.close()
                self._limits.closed()
                self._gone(address)

    def _count(self, peer: str) -> str:
        """Remember that one more of this address is on its way in. Raises ConnectionError when there are too many."""
        if is_trusted(peer, self._front.trusted_proxies):
            return ""
        address = client_address(peer, (), ())
        limit = self._connections_per_address()
        if limit and self._by_address[address] >= limit and not self._limits.is_exempt(address):
            raise ConnectionRefusedError
        self._by_address[address] += 1
        return address

    def _gone(self, address: str) -> None:
        if address:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    async def _read_proxy_header(self, accepted: socket.socket) -> str | None:
        """The client that the header names. Not a byte behind the header is read."""
        taken = b""
        while True:
            try:
                coming = accepted.recv(HEADER_BYTES_MAX, socket.MSG_PEEK)
            except (BlockingIOError, InterruptedError):
                await self._readable(accepted)
                continue
            if not coming:
                raise BadProxyHeader("the connection ended")
            header = parse_proxy_header(taken + coming)
            own = len(coming) if header is None else header.length - len(taken)
            taken += accepted.recv(own)
            if header is not None:
                return header.client

    async def _readable(self, accepted: socket.socket) -> None:
        readable = asyncio.Event()
        self._loop.add_reader(accepted, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(accepted)
