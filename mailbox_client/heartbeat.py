"""Signs of life on one WebSocket: when the client owes one, and when the server does."""

from __future__ import annotations

from typing import Final

PING_SHARE: Final = 0.6  # of heartbeat_s: a lost ping leaves time for another
HEARTBEAT_DEFAULT_S: Final = 45


class Heartbeat:
    """All durations by the monotonic clock, in milliseconds."""

    def __init__(self) -> None:
        self.heartbeat_s = HEARTBEAT_DEFAULT_S
        self._last_put = 0
        self._pong_due: int | None = None
        self._pings = 0

    @property
    def pong_due(self) -> int | None:
        """When the connection counts as dead, if nothing comes."""
        return self._pong_due

    @property
    def ping_due(self) -> int:
        return self._last_put + int(self.heartbeat_s * 1000 * PING_SHARE)

    def put(self, now: int) -> None:
        """A frame went out: the server hears from us."""
        self._last_put = now

    def ping(self, now: int, pong_ms: int) -> int:
        """The number of a ping that is answered within that time, or the connection is dead. An earlier due stays."""
        self._pings += 1
        due = now + pong_ms
        self._pong_due = due if self._pong_due is None else min(due, self._pong_due)
        return self._pings

    def heard(self) -> None:
        """Any frame proves the connection. Also said of a new one."""
        self._pong_due = None

    def is_dead(self, now: int) -> bool:
        return self._pong_due is not None and now >= self._pong_due
