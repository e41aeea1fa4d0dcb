"""The network that can be broken: each way of breaking looks to both ends as the real thing does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import TypeVar

import pytest

from loadtest.faults.tcp_proxy import (
    BLACK_HOLE,
    CLIENTS_ARE_MUTE,
    CUT,
    HELD_BYTES_MAX,
    PASS,
    SERVER_IS_MUTE,
    Link,
    TcpProxy,
    reset,
)
from tests.support.waiting import eventually

T = TypeVar("T")
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Service:
    """A TCP service whose ends of connections the test holds."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[Ends] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []
        self.server: asyncio.Server

    def came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.arrived.put_nowait((reader, writer))

    async def start(self) -> tuple[str, int]:
        self.server = await asyncio.start_server(self.came, "127.0.0.1", 0)
        host, port = self.server.sockets[0].getsockname()
        return host, port

    def stop(self) -> None:
        self.server.close()
        for writer in self._writers:
            writer.transport.abort()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    yield service
    service.stop()


@pytest.fixture
async def proxy(service: Service) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(await service.start()) as proxy:
        yield proxy


class Pair:
    """One connection through the proxy, from both ends."""

    def __init__(self, client: Ends, server: Ends) -> None:
        self.from_server, self.to_server = client
        self.from_client, self.to_client = server

    async def speaks(self) -> None:
        self.to_server.write(b"ask")
        assert await within(self.from_client.readexactly(3)) == b"ask"
        self.to_client.write(b"answer")
        assert await within(self.from_server.readexactly(6)) == b"answer"


async def within(awaitable: Awaitable[T], seconds: float = 5.0) -> T:
    return await asyncio.wait_for(awaitable, seconds)


async def nothing_comes(reader: asyncio.StreamReader, seconds: float = 0.1) -> None:
    """Not even the end of the connection."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), seconds)


@pytest.fixture
async def pair(proxy: TcpProxy, service: Service) -> AsyncIterator[Pair]:
    client = await asyncio.open_connection("127.0.0.1", proxy.port)
    pair = Pair(client, await within(service.arrived.get()))
    await pair.speaks()
    yield pair
    pair.to_server.transport.abort()


async def test_a_good_link_carries_everything_and_the_end_of_each_direction(pair: Pair, proxy: TcpProxy) -> None:
    data = bytes(range(256)) * 4_096
    pair.to_server.write(data)
    pair.to_server.write_eof()
    assert await within(pair.from_client.read(-1)) == data
    pair.to_client.write(data)
    pair.to_client.write_eof()
    assert await within(pair.from_server.read(-1)) == data
    await eventually(lambda: proxy.connections == 0, what="both directions have ended")


async def test_a_cut_resets_both_ends_and_newcomers_until_it_is_mended(
    pair: Pair, proxy: TcpProxy, service: Service
) -> None:
    proxy.become(CUT)
    for reader in (pair.from_server, pair.from_client):
        with pytest.raises(ConnectionResetError):
            await within(reader.read(1))
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    with pytest.raises(ConnectionResetError):
        await within(reader.read(1))
    writer.close()
    assert service.arrived.empty()
    proxy.become(PASS)
    client = await asyncio.open_connection("127.0.0.1", proxy.port)
    await Pair(client, await within(service.arrived.get())).speaks()
    client[1].close()


async def test_a_reset_of_one_end_reaches_the_other_as_a_reset(pair: Pair) -> None:
    reset(pair.to_client)
    with pytest.raises(ConnectionResetError):
        await within(pair.from_server.read(1))


async def test_a_black_hole_takes_everything_says_nothing_and_gives_it_back(
    pair: Pair, proxy: TcpProxy, service: Service
) -> None:
    proxy.become(BLACK_HOLE)
    pair.to_server.write(b"ask")
    pair.to_client.write_eof()
    await nothing_comes(pair.from_client)
    await nothing_comes(pair.from_server)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)  # it connects, and hears nothing
    writer.write(b"anybody?")
    await nothing_comes(reader)
    assert service.arrived.empty()
    proxy.become(PASS)
    assert await within(pair.from_client.readexactly(3)) == b"ask"
    assert await within(pair.from_server.read(1)) == b""
    newcomer, _ = await within(service.arrived.get())
    assert await within(newcomer.readexactly(8)) == b"anybody?"
    writer.close()


@pytest.mark.parametrize("dead", [SERVER_IS_MUTE, CLIENTS_ARE_MUTE])
async def test_half_open_one_direction_works_and_the_other_hides_even_the_end(
    pair: Pair, proxy: TcpProxy, dead: Link
) -> None:
    proxy.become(dead)
    ends = [(pair.to_server, pair.from_client), (pair.to_client, pair.from_server)]
    (lives_in, lives_out), (dead_in, dead_out) = ends if dead is SERVER_IS_MUTE else reversed(ends)
    lives_in.write(b"heard")
    assert await within(lives_out.readexactly(5)) == b"heard"
    dead_in.write(b"unheard")
    dead_in.write_eof()
    await nothing_comes(dead_out)
    proxy.become(PASS)
    assert await within(dead_out.read(-1)) == b"unheard"


async def test_delayed_bytes_come_later_in_order_and_side_by_side(pair: Pair, proxy: TcpProxy) -> None:
    proxy.become(Link(delay_s=0.2))
    loop = asyncio.get_running_loop()
    before = loop.time()
    for number in range(20):
        pair.to_server.write(bytes([number]))
        await pair.to_server.drain()
    assert await within(pair.from_client.readexactly(20)) == bytes(range(20))
    assert 0.2 <= loop.time() - before < 3.5  # the delay of each, not of all one after another


async def test_a_throttle_carries_so_many_bytes_a_second(pair: Pair, proxy: TcpProxy) -> None:
    proxy.become(Link(bytes_per_s=100_000))
    loop = asyncio.get_running_loop()
    before = loop.time()
    pair.to_server.write(bytes(40_000))
    await within(pair.from_client.readexactly(40_000))
    assert loop.time() - before >= 0.35  # the last part's pause comes after it
    proxy.become(PASS)
    await pair.speaks()


async def test_what_is_held_back_is_bounded_and_its_sender_stops(pair: Pair, proxy: TcpProxy) -> None:
    proxy.become(BLACK_HOLE)
    kernel_max = 16 * 1_048_576  # what the buffers of both sockets may take, roughly
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 4 * kernel_max:
            pair.to_server.write(bytes(65_536))
            await asyncio.wait_for(pair.to_server.drain(), 0.3)
            sent += 65_536
    assert sent < HELD_BYTES_MAX + kernel_max


async def test_newcomers_are_taken_to_a_new_address_and_a_dead_one_resets_them(
    proxy: TcpProxy, service: Service, tmp_path: Path
) -> None:
    service.server.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    with pytest.raises(ConnectionResetError):
        await within(reader.read(1))
    writer.close()
    moved = Service()
    moved.server = await asyncio.start_unix_server(moved.came, str(tmp_path / "socket"))
    proxy.target = tmp_path / "socket"
    client = await asyncio.open_connection("127.0.0.1", proxy.port)
    await Pair(client, await within(moved.arrived.get())).speaks()
    client[1].close()
    moved.stop()
