"""Ports on this machine: which are free, and whether somebody answers there that it is ready."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import ExitStack
from typing import Final

from mailboxd.terminal import CommandError

_ANSWER_TIMEOUT_S: Final = 2.0


def choose_ports(host: str, first: int, count: int, option: str) -> tuple[int, ...]:
    """`first`, `first + 1`, … checked to be free; with `first` 0 any free ones. CommandError names the port in use."""
    wanted = range(first, first + count) if first else (0,) * count
    chosen = []
    with ExitStack() as held:  # all at once, so that none is given twice
        for port in wanted:
            listener = held.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, port))
            except OSError as error:
                wrong = "--host" if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror) else option
                raise CommandError(
                    f"cannot listen on {host}:{port} ({error.strerror}); choose another {wrong}"
                ) from None
            except OverflowError:
                raise CommandError(f"{port} is not a port; choose another {option}") from None
            chosen.append(listener.getsockname()[1])
    return tuple(chosen)


async def answers_ready(host: str, port: int) -> bool:
    """Whether GET /readyz answers 200 there within two seconds."""
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"GET /readyz HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
                status_line = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return False
    return status_line.split(b" ")[1:2] == [b"200"]
