"""One budget of inbound bytes for the whole process: what is being put together, and what waits for its answer."""

from __future__ import annotations

from typing import Final, Protocol

_LOW_SHARE: Final = 0.75


class Reader(Protocol):
    """Whoever takes bytes in."""

    def budget_free(self) -> None:
        """Reading may go on. Never raises."""
        ...


class ByteBudget:
    """Counts, never refuses: whoever finds it exceeded stops reading and is told when there is room again.

    So it can be exceeded by what is in the sockets' read buffers, one read a connection.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._low = int(bytes_max * _LOW_SHARE)
        self.used = 0
        self._waiting: dict[Reader, None] = {}

    @property
    def exceeded(self) -> bool:
        return self.used > self.bytes_max

    @property
    def waiting(self) -> int:
        """How many have stopped reading."""
        return len(self._waiting)

    def take(self, size: int) -> None:
        self.used += size

    def give_back(self, size: int) -> None:
        self.used -= size
        if self._waiting and self.used <= self._low:
            waiting, self._waiting = self._waiting, {}
            for reader in waiting:
                reader.budget_free()

    def wait(self, reader: Reader) -> None:
        """Call `reader.budget_free` once there is room."""
        self._waiting[reader] = None

    def forget(self, reader: Reader) -> None:
        self._waiting.pop(reader, None)
