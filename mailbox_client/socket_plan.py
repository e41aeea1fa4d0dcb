"""The WebSocket in use, as a plan: its number, what is put on it, and its signs of life."""

from __future__ import annotations

from collections.abc import Iterator

from mailbox_client.engine_io import CloseSocket, OpenSocket, Output, PutFrame
from mailbox_client.heartbeat import Heartbeat
from protocol.frames import ClientFrame, Ping


class SocketPlan:
    """One socket at a time. Whether there is one to put frames on, the link knows."""

    def __init__(self, numbers: Iterator[int], out: list[Output]) -> None:
        self._numbers = numbers
        self._out = out
        self.number = 0
        self.heartbeat = Heartbeat()

    def open(self) -> None:
        self.heartbeat.heard()
        self.number = next(self._numbers)
        self._out.append(OpenSocket(self.number))

    def put(self, now: int, frame: ClientFrame) -> None:
        self.heartbeat.put(now)
        self._out.append(PutFrame(self.number, frame))

    def ping(self, now: int, pong_ms: int) -> None:
        self.put(now, Ping(self.heartbeat.ping(now, pong_ms)))

    def close(self, *, at_once: bool) -> None:
        self._out.append(CloseSocket(self.number, at_once))
