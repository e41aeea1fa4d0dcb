"""PING: a sign of life that the client can see answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.frames import Ping, Pong

if TYPE_CHECKING:
    from gateway.session import DeviceSession


class PingHandler:
    """PONG with the same `t`."""

    def websocket(self, session: DeviceSession, frame: Ping, _size: int) -> None:
        session.send(Pong(frame.t))
