"""Reading a file or pipe beside an event loop: a pipe that is slow must not stop what else goes on."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from typing import BinaryIO, Final

AHEAD: Final = 4  # pieces read and not yet taken


async def pieces(source: BinaryIO, size: int) -> AsyncGenerator[bytes, None]:
    """The bytes of `source` in pieces of `size`, the last one shorter and never empty. Raises OSError.

    A thread of its own reads, by the bare file descriptor: it may hang in a read when the program wants to end, and
    must hold nothing then that the end needs.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError | None] = asyncio.Queue(AHEAD)
    descriptor = source.fileno()

    def put(piece: bytes | OSError | None) -> None:
        asyncio.run_coroutine_threadsafe(queue.put(piece), loop).result()

    def read_all() -> None:
        try:
            piece = bytearray()
            while data := os.read(descriptor, size - len(piece)):
                piece += data
                if len(piece) == size:
                    put(bytes(piece))
                    piece.clear()
            if piece:
                put(bytes(piece))
            put(None)
        except OSError as error:
            put(error)
        except (RuntimeError, asyncio.CancelledError):
            pass  # the loop has ended: nobody wants any more

    threading.Thread(target=read_all, name="mailboxd-source", daemon=True).start()
    while (piece := await queue.get()) is not None:
        if isinstance(piece, OSError):
            raise piece
        yield piece
