"""A network that the demo can break: a relay on loopback between one device and the server."""

from __future__ import annotations

import asyncio
from typing import Final, Self
from urllib.parse import urlsplit

_CHUNK_BYTES: Final = 65_536


class Relay:
    """`async with Relay(server_url) as network`: the device connects to `network.url`."""

    def __init__(self, server_url: str) -> None:
        parts = urlsplit(server_url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._answers = asyncio.Event()
        self._answers.set()

    @property
    def url(self) -> str:
        if self._server is None:
            raise RuntimeError("the relay is not running")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    def lose_answers(self) -> None:
        """From now on what the server says stays on the way; what the device says still arrives."""
        self._answers.clear()

    def cut(self) -> None:
        """Every connection breaks in the middle of whatever it was doing, without a goodbye; new ones work."""
        for writer in self._writers:
            writer.transport.abort()
        self._answers.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._connections.add(task)
        try:
            there, back = await asyncio.open_connection(*self._target)
            self._writers |= {writer, back}
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._carry(reader, back, hold=False))
                    both.create_task(self._carry(there, writer, hold=True))
            except* OSError:
                pass  # one end broke: so does the other
            finally:
                self._writers -= {writer, back}
                back.transport.abort()
        except OSError:
            pass  # the server cannot be reached: the device sees its connection end
        finally:
            writer.transport.abort()
            self._connections.discard(task)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, hold: bool) -> None:
        while chunk := await source.read(_CHUNK_BYTES):
            if hold:
                await self._answers.wait()
            target.write(chunk)
            await target.drain()
        raise ConnectionResetError("end of stream")
