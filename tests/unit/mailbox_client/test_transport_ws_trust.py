"""A socket of an app that brings no TLS settings of its own trusts whom its machine trusts, and nobody else."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve

from loadtest.certificate import self_signed
from mailbox_client.engine_io import FrameReceived, SocketLost, SocketOpened
from mailbox_client.transport_ws import SUBPROTOCOL, SocketAdapter


@asynccontextmanager
async def told_first(directory: Path) -> AsyncIterator[tuple[Path, asyncio.Future[SocketOpened | SocketLost]]]:
    """A server's certificate, and what is told first about a socket that is opened to it without settings."""
    certificate, key = self_signed(directory / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    told: asyncio.Future[SocketOpened | SocketLost] = asyncio.get_running_loop().create_future()

    async def report(one: SocketOpened | SocketLost | FrameReceived) -> None:
        if not told.done() and not isinstance(one, FrameReceived):
            told.set_result(one)

    async def wait_for_end(connection: ServerConnection) -> None:
        await connection.wait_closed()

    async with serve(wait_for_end, "127.0.0.1", 0, subprotocols=[SUBPROTOCOL], ssl=context) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        socket = SocketAdapter(7, f"https://127.0.0.1:{port}", report, tls=None, open_timeout_s=5.0)
        try:
            yield certificate, told
        finally:
            await socket.drop()


async def test_a_certificate_that_the_machine_trusts_opens_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with told_first(tmp_path) as (certificate, told), asyncio.timeout(10):
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))  # OpenSSL's own way to say whom a machine trusts
        assert await told == SocketOpened(7)


async def test_a_certificate_that_nobody_vouches_for_does_not(tmp_path: Path) -> None:
    async with told_first(tmp_path) as (_certificate, told), asyncio.timeout(10):
        assert isinstance(await told, SocketLost)
