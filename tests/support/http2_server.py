"""A real HTTP/2 server with ALPN over TLS, as APNs is one: frames by the h2 library, answers by the test."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events

from loadtest.certificate import self_signed, trusting


@dataclass(frozen=True)
class Request:
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.headers[":path"]


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass
class Http2Server:
    """`answer(request)` gives the reply, or None to say nothing; `connections` counts the accepted ones."""

    url: str
    client_tls: ssl.SSLContext
    requests: list[Request] = field(default_factory=list)
    answer: Callable[[Request], Reply | None] = lambda _request: Reply()
    go_away_after: int = 1_000_000  # requests of one connection; then GOAWAY, as the real one does now and then
    connections: int = 0


class _Connection(asyncio.Protocol):
    def __init__(self, server: Http2Server) -> None:
        self._server = server
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self._open: dict[int, tuple[dict[str, str], bytearray]] = {}
        self._served = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        assert transport.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        self._transport = transport
        self._server.connections += 1
        self._h2.initiate_connection()
        self._flush()

    def data_received(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            match event:
                case h2.events.RequestReceived(stream_id=int() as stream):
                    headers: Any = event.headers
                    self._open[stream] = (dict(headers), bytearray())
                case h2.events.DataReceived(stream_id=int() as stream):
                    self._open[stream][1].extend(event.data)
                    self._h2.acknowledge_received_data(event.flow_controlled_length, stream)
                case h2.events.StreamEnded(stream_id=int() as stream):
                    self._reply(stream)
                case h2.events.StreamReset(stream_id=int() as stream):
                    self._open.pop(stream, None)
        self._flush()

    def _reply(self, stream: int) -> None:
        headers, body = self._open.pop(stream)
        request = Request(headers, bytes(body))
        self._server.requests.append(request)
        self._served += 1
        reply = self._server.answer(request)
        if reply is None:
            return
        self._h2.send_headers(stream, [(":status", str(reply.status)), *reply.headers], end_stream=not reply.body)
        for start in range(0, len(reply.body), 16_384):
            part = reply.body[start : start + 16_384]
            self._h2.send_data(stream, part, end_stream=start + len(part) == len(reply.body))
        if self._served >= self._server.go_away_after:
            self._h2.close_connection()

    def _flush(self) -> None:
        if data := self._h2.data_to_send():
            self._transport.write(data)


@asynccontextmanager
async def http2_server(directory: Path) -> AsyncIterator[Http2Server]:
    """On a free loopback port with a certificate that only `client_tls` trusts."""
    server_tls, client_tls = _contexts(directory)
    made = Http2Server("", client_tls)
    listening = await asyncio.get_running_loop().create_server(
        lambda: _Connection(made), "127.0.0.1", 0, ssl=server_tls
    )
    made.url = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        listening.close()


def _contexts(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    certificate, key = self_signed(directory)
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(certificate, key)
    server_tls.set_alpn_protocols(["h2"])
    return server_tls, trusting(certificate)
