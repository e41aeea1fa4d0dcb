"""The demo's network really loses answers and really breaks connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from mailboxd.demo.network import Relay


@asynccontextmanager
async def an_echo_server(heard: list[bytes]) -> AsyncIterator[str]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1_000):
            heard.append(data)
            writer.write(data)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


async def connected(relay: Relay) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urlsplit(relay.url)
    return await asyncio.open_connection(address.hostname, address.port)


async def test_it_carries_bytes_both_ways() -> None:
    async with an_echo_server([]) as url, Relay(url) as relay:
        reader, writer = await connected(relay)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()


async def test_a_cut_breaks_the_connection_and_a_new_one_works() -> None:
    async with an_echo_server([]) as url, Relay(url) as relay:
        reader, writer = await connected(relay)
        writer.write(b"before")
        await reader.readexactly(6)
        relay.cut()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        reader, writer = await connected(relay)
        writer.write(b"after")
        assert await reader.readexactly(5) == b"after"
        writer.close()


async def test_lost_answers_never_come_though_the_question_arrived() -> None:
    heard: list[bytes] = []
    async with an_echo_server(heard) as url, Relay(url) as relay:
        reader, writer = await connected(relay)
        writer.write(b"known")
        await reader.readexactly(5)
        relay.lose_answers()
        writer.write(b"asked")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(1), timeout=0.2)
        assert heard == [b"known", b"asked"]
        relay.cut()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


async def test_without_a_server_the_device_sees_its_connection_end() -> None:
    async with an_echo_server([]) as url:
        pass
    async with Relay(url) as relay:
        reader, writer = await connected(relay)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
