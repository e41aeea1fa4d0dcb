"""The server's time as far as this process knows it: learned from answers, carried on by the monotonic clock."""

from __future__ import annotations


class ServerTime:
    """Whatever the device's own clock says or does, it takes no part in this."""

    def __init__(self) -> None:
        self._base: tuple[int, int] | None = None  # server time and monotonic time of one moment

    def learn(self, now: int, server_now: int) -> bool:
        """Take the newest word of the server; True if it is the first."""
        first = self._base is None
        self._base = server_now, now
        return first

    def at(self, now: int) -> int | None:
        if self._base is None:
            return None
        server, monotonic = self._base
        return server + now - monotonic

    def known(self, now: int) -> int:
        """The server's time where it must be known: a token tells it, and nothing comes before a token."""
        server_now = self.at(now)
        if server_now is None:
            raise AssertionError("something came from the server before it told its time")
        return server_now
