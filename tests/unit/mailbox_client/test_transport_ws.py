"""One socket against servers that do every wrong thing: what is told to the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from mailbox_client.addresses import socket_url
from mailbox_client.engine_io import FrameReceived, SocketLost, SocketOpened
from mailbox_client.transport_ws import SUBPROTOCOL, SocketAdapter
from protocol.codec import decode_client_frame, encode_server_frame
from protocol.frames import Ping, Pong
from tests.support.http_stub import answering

Handler = Callable[[ServerConnection], Awaitable[None]]
Told = SocketOpened | SocketLost | FrameReceived


class Reports:
    """What one adapter told."""

    def __init__(self) -> None:
        self.all: list[Told] = []
        self._bell = asyncio.Event()

    async def __call__(self, one: Told) -> None:
        self.all.append(one)
        self._bell.set()

    async def until(self, count: int) -> list[Told]:
        async with asyncio.timeout(10):
            while len(self.all) < count:
                self._bell.clear()
                await self._bell.wait()
        return self.all


@asynccontextmanager
async def adapter(url: str, *, open_timeout_s: float = 5.0) -> AsyncIterator[tuple[SocketAdapter, Reports]]:
    reports = Reports()
    socket = SocketAdapter(7, url, reports, tls=None, open_timeout_s=open_timeout_s)
    try:
        yield socket, reports
    finally:
        await socket.drop()


@asynccontextmanager
async def server(handler: Handler, **how: object) -> AsyncIterator[str]:
    options = {"subprotocols": [SUBPROTOCOL], "compression": None, **how}
    async with serve(handler, "127.0.0.1", 0, **options) as running:  # type: ignore[arg-type]
        yield f"http://127.0.0.1:{next(iter(running.sockets)).getsockname()[1]}"


async def told_by(handler: Handler, **how: object) -> list[Told]:
    """All that is told about a socket to such a server, until it is lost."""
    async with server(handler, **how) as url, adapter(url) as (_socket, reports):
        await reports.until(1)
        while not isinstance(reports.all[-1], SocketLost):
            await reports.until(len(reports.all) + 1)
        return reports.all


def test_the_address_of_the_socket_follows_from_that_of_the_http_door() -> None:
    assert socket_url("https://host.example/") == "wss://host.example/v1/ws"
    assert socket_url("http://127.0.0.1:8080") == "ws://127.0.0.1:8080/v1/ws"
    with pytest.raises(ValueError, match="http"):
        socket_url("host.example")


async def test_frames_go_both_ways_and_unknown_ones_are_passed_over() -> None:
    async def echo(connection: ServerConnection) -> None:
        assert connection.request is not None
        assert connection.request.path == "/v1/ws"
        assert "Sec-WebSocket-Extensions" not in connection.request.headers
        message = await connection.recv()
        assert isinstance(message, bytes)
        frame = decode_client_frame(message)
        assert isinstance(frame, Ping)
        await connection.send(b"\x92\x63\x80")  # [99, {}]
        await connection.send(encode_server_frame(Pong(frame.t)))
        await connection.wait_closed()

    async with server(echo) as url, adapter(url) as (socket, reports):
        await reports.until(1)
        socket.put(Ping(5))
        assert await reports.until(2) == [SocketOpened(7), FrameReceived(7, Pong(5))]


async def test_a_clean_close_sends_what_was_queued_first() -> None:
    got: list[bytes] = []

    async def collect(connection: ServerConnection) -> None:
        async for message in connection:
            assert isinstance(message, bytes)
            got.append(message)

    async with server(collect) as url, adapter(url) as (socket, reports):
        await reports.until(1)
        for number in range(50):
            socket.put(Ping(number))
        await socket.close()
        assert reports.all == [SocketOpened(7)], "nothing is told any more"
    assert len(got) == 50


@pytest.mark.parametrize(
    ("code", "reason", "lost"),
    [
        (4409, "replaced", SocketLost(7, 4409)),
        (4429, '{"reconnect_after_ms": 1500}', SocketLost(7, 4429, 1_500)),
        (4503, '{"reconnect_after_ms": 0}', SocketLost(7, 4503, 0)),
        (4503, "no json", SocketLost(7, 4503)),
        (4503, "[]", SocketLost(7, 4503)),
        (1000, '{"reconnect_after_ms": 1500}', SocketLost(7, 1000)),
        (1012, "", SocketLost(7, 1012)),
    ],
)
async def test_a_close_is_told_with_its_code_and_its_come_back_time(code: int, reason: str, lost: SocketLost) -> None:
    async def close(connection: ServerConnection) -> None:
        await connection.close(code, reason)

    assert await told_by(close) == [SocketOpened(7), lost]


async def test_a_connection_that_breaks_is_told_without_a_code() -> None:
    async def cut(connection: ServerConnection) -> None:
        connection.transport.abort()

    assert (await told_by(cut))[-1] == SocketLost(7)


async def test_a_cut_of_our_own_is_told_as_a_loss() -> None:
    async def wait(connection: ServerConnection) -> None:
        await connection.wait_closed()

    async with server(wait) as url, adapter(url) as (socket, reports):
        await reports.until(1)
        socket.cut()
        assert await reports.until(2) == [SocketOpened(7), SocketLost(7)]


@pytest.mark.parametrize("message", ["text", b"", b"\xc1", b"\x92\x42\x80"], ids=["text", "empty", "garbage", "hollow"])
async def test_what_is_no_frame_ends_the_connection(message: str | bytes) -> None:
    async def send(connection: ServerConnection) -> None:
        await connection.send(message)
        await connection.wait_closed()

    assert await told_by(send) == [SocketOpened(7), SocketLost(7)]


async def test_a_message_beyond_the_frame_limit_ends_the_connection() -> None:
    async def send(connection: ServerConnection) -> None:
        await connection.send(bytes(4 * 1024 * 1024 + 1))
        await connection.wait_closed()

    assert (await told_by(send))[-1] == SocketLost(7)


async def test_a_server_without_the_subprotocol_is_not_ours() -> None:
    async def wait(connection: ServerConnection) -> None:
        await connection.wait_closed()

    assert await told_by(wait, subprotocols=None) == [SocketLost(7)]


@pytest.mark.parametrize(
    ("status", "headers", "lost"),
    [
        (403, {}, SocketLost(7, http_status=403)),
        (503, {"Retry-After": "3"}, SocketLost(7, reconnect_after_ms=3_000, http_status=503)),
        (429, {"Retry-After": "soon"}, SocketLost(7, http_status=429)),
    ],
)
async def test_a_refused_upgrade_is_told_with_its_status(
    status: int, headers: dict[str, str], lost: SocketLost
) -> None:
    async def never(_connection: ServerConnection) -> None:
        pytest.fail("it was refused")

    def refuse(_connection: ServerConnection, _request: Request) -> Response:
        return Response(status, "refused", Headers(headers), b"")

    assert await told_by(never, process_request=refuse) == [lost]


async def test_a_host_that_cannot_be_reached_is_told_as_such() -> None:
    async with server(lambda connection: connection.wait_closed()) as url:
        pass
    async with adapter(url) as (_socket, reports):
        assert await reports.until(1) == [SocketLost(7, unreachable=True)]


async def test_something_that_speaks_no_http_is_told_as_a_loss() -> None:
    async with (
        answering(b"SSH-2.0-OpenSSH\r\n") as port,
        adapter(f"http://127.0.0.1:{port}") as (_socket, reports),
    ):
        assert await reports.until(1) == [SocketLost(7)]


async def test_a_server_that_never_answers_is_given_up() -> None:
    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(silence, "127.0.0.1", 0)
    async with silent:
        port = silent.sockets[0].getsockname()[1]
        async with adapter(f"http://127.0.0.1:{port}", open_timeout_s=0.2) as (_socket, reports):
            assert await reports.until(1) == [SocketLost(7)]


async def test_a_bug_is_heard_of_and_the_engine_goes_on_as_after_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    heard: list[object] = []
    monkeypatch.setattr("mailbox_client.transport_ws.connect", broken)
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: heard.append(context["exception"]))
    async with adapter("http://127.0.0.1:1") as (_socket, reports):
        assert await reports.until(1) == [SocketLost(7)]
    assert [str(error) for error in heard] == ["a bug"]
