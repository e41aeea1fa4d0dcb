"""Reading a pipe beside an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from mailboxd.byte_source import pieces


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as source, os.fdopen(writing, "wb", buffering=0) as sink:
        yield source, sink


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 35])
async def test_a_file_comes_in_pieces_of_one_size_and_a_rest(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as source:
        read = [piece async for piece in pieces(source, 10)]
    assert b"".join(read) == content
    assert all(len(piece) == 10 for piece in read[:-1])
    assert b"" not in read


async def test_the_loop_goes_on_while_a_pipe_is_silent(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    source, sink = pipe
    reading = pieces(source, 4)
    first = asyncio.create_task(anext(reading))
    sink.write(b"ab")
    await asyncio.sleep(0)
    assert not first.done()
    sink.write(b"cdef")
    assert await first == b"abcd"
    sink.close()
    assert [piece async for piece in reading] == [b"ef"]


async def test_an_error_of_the_source_is_raised(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    _source, sink = pipe
    with pytest.raises(OSError, match="Bad file descriptor"):
        await anext(pieces(sink, 4))  # it can only be written to
