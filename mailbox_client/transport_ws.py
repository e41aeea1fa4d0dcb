"""The WebSocket door: frames in and out of one socket, no policy. Compression stays off: bodies are ciphertext."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from mailbox_client.addresses import socket_url
from mailbox_client.engine_io import FrameReceived, SocketLost, SocketOpened
from protocol.codec import decode_server_frame, encode_client_frame
from protocol.errors import CloseCode, MailboxError
from protocol.frames import ClientFrame
from protocol.limits import MAX_FRAME_BYTES

SUBPROTOCOL: Final = Subprotocol("mailboxd.v1")
CLOSE_TIMEOUT_S: Final = 3.0
Report = Callable[[SocketOpened | SocketLost | FrameReceived], Awaitable[None]]


class SocketAdapter:
    """One WebSocket from its opening to its end. `report` is awaited for what happens: a full inbox slows reading.

    Exactly one SocketLost is reported, unless `drop` came first; after it, nothing.
    """

    def __init__(
        self, number: int, url: str, report: Report, *, tls: ssl.SSLContext | None, open_timeout_s: float
    ) -> None:
        self._number = number
        self._url = socket_url(url)
        self._report = report
        self._tls = tls
        self._open_timeout_s = open_timeout_s
        self._connection: ClientConnection | None = None
        self._outbox: list[bytes] = []
        self._bell = asyncio.Event()
        self._closing = False
        self._reader = asyncio.create_task(self._run(), name=f"mailbox-socket-{number}")

    def put(self, frame: ClientFrame) -> None:
        """Queue a frame. The engine bounds what is unanswered, and so what can queue here."""
        self._outbox.append(encode_client_frame(frame))
        self._bell.set()

    async def close(self) -> None:
        """Send what is queued, close in good order, wait for at most 3 s. Nothing is reported any more."""
        self._closing = True
        connection = self._connection
        try:
            if connection is not None:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._flush(connection)
                    await connection.close()
        except (TimeoutError, ConnectionClosed):
            pass
        finally:
            await self.drop()

    async def drop(self) -> None:
        """Cut the connection without a word. Nothing is reported any more."""
        self._closing = True
        if self._connection is not None:
            self._connection.transport.abort()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    def cut(self) -> None:
        """Cut the connection without a word, as a lost network would; the loss is reported."""
        if self._connection is not None:
            self._connection.transport.abort()

    async def _run(self) -> None:
        try:
            lost = await self._session()
        except Exception as error:
            # A bug: it must be heard of, and the engine goes on as after any other loss.
            failure = {"message": "a mailbox socket failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(failure)
            lost = SocketLost(self._number)
        if not self._closing:
            await self._report(lost)

    async def _session(self) -> SocketLost:
        number = self._number
        try:
            connection = await connect(
                self._url,
                subprotocols=[SUBPROTOCOL],
                compression=None,
                max_size=MAX_FRAME_BYTES,
                ping_interval=None,  # the engine's own PING proves more: the server's event loop answers it
                open_timeout=self._open_timeout_s,
                close_timeout=CLOSE_TIMEOUT_S,
                ssl=(self._tls or True) if self._url.startswith("wss:") else None,  # True: what this machine trusts
                proxy=None,
            )
        except (InvalidHandshake, EOFError, OSError) as error:
            return loss_of(number, error)
        self._connection = connection
        writer = asyncio.create_task(self._write(connection), name=f"mailbox-socket-{number}-writer")
        try:
            if connection.subprotocol != SUBPROTOCOL:
                return SocketLost(number)  # something in between speaks WebSocket, and it is not the server
            await self._report(SocketOpened(number))
            while True:
                message = await connection.recv()
                if isinstance(message, str):
                    return SocketLost(number)
                frame = decode_server_frame(message)
                if frame is not None:
                    await self._report(FrameReceived(number, frame))
        except (ConnectionClosed, MailboxError) as error:
            return loss_of(number, error)
        finally:
            writer.cancel()
            connection.transport.abort()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, connection: ClientConnection) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            try:
                await self._flush(connection)
            except ConnectionClosed:
                return  # the reader reports it

    async def _flush(self, connection: ClientConnection) -> None:
        while self._outbox:
            frames, self._outbox = self._outbox, []
            for frame in frames:
                await connection.send(frame)


def loss_of(number: int, error: BaseException) -> SocketLost:
    """What the end of a WebSocket, or of the try to open one, says about what to do next."""
    match error:
        case ConnectionClosed():
            return _closed(number, error)
        case InvalidStatus():
            return _refused(number, error)
        case TimeoutError() | InvalidHandshake() | EOFError():
            return SocketLost(number)  # something answered, or kept silent, and it was no WebSocket
        case OSError():
            return SocketLost(number, unreachable=True)
        case _:
            return SocketLost(number)  # no frame of this contract: as good as lost


def _refused(number: int, error: InvalidStatus) -> SocketLost:
    header = error.response.headers.get("Retry-After", "")
    wait_ms = int(header) * 1000 if header.isascii() and header.isdigit() else None
    return SocketLost(number, reconnect_after_ms=wait_ms, http_status=error.response.status_code)


def _closed(number: int, closed: ConnectionClosed) -> SocketLost:
    if closed.rcvd is None:
        return SocketLost(number)
    wait_ms = None
    if closed.rcvd.code in (CloseCode.RATE_LIMITED, CloseCode.UNAVAILABLE):
        try:
            reason = json.loads(closed.rcvd.reason)
            wait_ms = max(0, int(reason["reconnect_after_ms"]))
        except (ValueError, KeyError, TypeError):
            pass  # without its come-back time the ordinary backoff holds
    return SocketLost(number, closed.rcvd.code, wait_ms)
