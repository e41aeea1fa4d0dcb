"""A network that can be broken: a TCP relay before one service, whose link is changed while traffic runs.

What is held back is never dropped: as with real TCP, bytes wait for the link (in bounded buffers, so that senders stop
in time) and go on when it heals. Only keepalives are answered here. What a real network does is one of these:

    cut         both ends get a reset now, and newcomers get one, until the link is mended
    black hole  nothing passes in either direction and nobody is told; newcomers connect and hear nothing
    half open   one direction is dead, ends of connections included; the other one works
    delay       every byte comes later, in order
    throttle    so many bytes a second in each direction of each connection
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

CHUNK_BYTES: Final = 16_384
HELD_BYTES_MAX: Final = 262_144  # of each direction of each connection, beside what the kernel's buffers take
CONNECT_S: Final = 5.0
THROTTLE_STEP_S: Final = 0.05
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER with no time

Address = tuple[str, int] | Path  # a Unix socket by its path


@dataclass(frozen=True, slots=True)
class Link:
    """How the network is now; the default is a good one. `to_server`, `to_client`: that direction carries anything."""

    to_server: bool = True
    to_client: bool = True
    cut: bool = False
    delay_s: float = 0.0
    bytes_per_s: float | None = None


PASS: Final = Link()
CUT: Final = Link(cut=True)
BLACK_HOLE: Final = Link(to_server=False, to_client=False)
SERVER_IS_MUTE: Final = Link(to_client=False)  # half open: what clients send arrives, and no answer comes back
CLIENTS_ARE_MUTE: Final = Link(to_server=False)


class TcpProxy:
    """`async with TcpProxy(address) as proxy`: relays 127.0.0.1:`proxy.port` to the address."""

    def __init__(self, target: Address) -> None:
        self.target = target  # may be changed: newcomers are taken to the new one
        self.port = 0
        self.accepted = 0
        self._link = PASS
        self._changed = asyncio.Event()  # set and replaced at every change of the link
        self._server: asyncio.Server | None = None
        self._relays: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def link(self) -> Link:
        return self._link

    @property
    def connections(self) -> int:
        """Those whose client's end is open here."""
        return len(self._relays)

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", port, limit=CHUNK_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Reset all connections and stop listening."""
        if self._server is not None:
            self._server.close()
        self.reset_all()
        if self._relays:
            await asyncio.wait(self._relays)
        if self._server is not None:
            await self._server.wait_closed()

    def become(self, link: Link) -> None:
        """From now on the network is like this, for connections that exist and for new ones."""
        self._link = link
        self._changed.set()
        self._changed = asyncio.Event()
        if link.cut:
            self.reset_all()

    def reset_all(self) -> None:
        """Both ends of every connection get a reset; newcomers are served as the link says."""
        for relay in self._relays:
            relay.cancel()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    # inside

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._link.cut:
            reset(writer)
            return
        relay = asyncio.create_task(self._relay(reader, writer), name="relay")
        self._relays[relay] = writer
        relay.add_done_callback(self._ended)

    def _ended(self, relay: asyncio.Task[None]) -> None:
        del self._relays[relay]
        if not relay.cancelled() and (error := relay.exception()) is not None:
            raise error  # told by the loop's handler: a bug of this file

    async def until(self, holds: Callable[[Link], bool]) -> None:
        """Wait for a link of which this is true."""
        while not holds(self._link):
            await self._changed.wait()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until both directions have ended; a reset of one end goes on to the other one as such."""
        upstream: asyncio.StreamWriter | None = None
        clean = False
        try:
            await self.until(lambda link: link.to_server and link.to_client)  # a handshake needs both
            from_server, upstream = await self._connect()
            there = _Direction(self, reader, upstream, to_server=True)
            back = _Direction(self, from_server, writer, to_server=False)
            async with asyncio.TaskGroup() as directions:
                for direction in (there, back):
                    directions.create_task(direction.take())
                    directions.create_task(direction.give())
            clean = not (there.was_reset or back.was_reset)
        except (OSError, TimeoutError):
            pass  # the service cannot be reached: a reset says so
        finally:
            for end in (writer, upstream):
                if end is not None and clean:
                    end.close()
                elif end is not None:
                    reset(end)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(CONNECT_S):
            if isinstance(self.target, Path):
                return await asyncio.open_unix_connection(str(self.target), limit=CHUNK_BYTES)
            return await asyncio.open_connection(*self.target, limit=CHUNK_BYTES)


class _Direction:
    """One way of one connection: `take` reads ahead within bounds, `give` writes when the link lets it."""

    def __init__(
        self, proxy: TcpProxy, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, to_server: bool
    ) -> None:
        self.was_reset = False
        self._proxy = proxy
        self._source = source
        self._target = target
        self._to_server = to_server
        self._held: deque[tuple[float, bytes | None]] = deque()  # when it is due; b"": the end, None: a reset
        self._held_bytes = 0
        self._moved = asyncio.Event()  # something was taken, or room was made
        self._broken = False  # the target is gone: what is held has nowhere to go

    async def take(self) -> None:
        now = asyncio.get_running_loop().time
        data: bytes | None = b"first"
        while data and not self._broken:
            while self._held_bytes >= HELD_BYTES_MAX and not self._broken:
                await self._wait()
            try:
                data = await self._source.read(CHUNK_BYTES)
            except OSError:
                data = None
            self._held.append((now() + self._proxy.link.delay_s, data))
            self._held_bytes += len(data or b"")
            self._moved.set()

    async def give(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            while not self._held:
                await self._wait()
            due, data = self._held.popleft()
            if due > now():
                await asyncio.sleep(due - now())
            await self._proxy.until(self._carries)
            try:
                await self._write(data)
            except OSError:
                self._broken = True  # the other direction reads the reset, and tells it
                self._moved.set()
                return
            self._held_bytes -= len(data or b"")
            self._moved.set()
            if not data:
                return

    def _carries(self, link: Link) -> bool:
        return link.to_server if self._to_server else link.to_client

    async def _write(self, data: bytes | None) -> None:
        if data is None:
            self.was_reset = True
            reset(self._target)
        elif not data:
            with suppress(NotImplementedError):
                self._target.write_eof()
        else:
            view = memoryview(data)
            while view:
                rate = self._proxy.link.bytes_per_s
                part = view if rate is None else view[: max(1, int(rate * THROTTLE_STEP_S))]
                self._target.write(bytes(part))
                await self._target.drain()
                if rate is not None:
                    await asyncio.sleep(len(part) / rate)
                view = view[len(part) :]

    async def _wait(self) -> None:
        self._moved.clear()
        await self._moved.wait()


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST instead of FIN."""
    with suppress(OSError, AttributeError):  # gone already, or a Unix socket
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
