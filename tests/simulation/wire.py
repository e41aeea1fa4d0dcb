"""One TCP connection: bytes both ways, in order, in pieces of any size, until it breaks at some byte.

What is above it (HTTP upgrade, WebSocket frames) is real code on both ends, so that a cut leaves half a frame behind.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from tests.simulation.schedule import Schedule
from tests.simulation.weather import Weather

PIECES_MAX: Final = 4

# Says at which byte of a write the connection breaks, None for none. It is asked with the write's length.
BreakAt = Callable[[int], int | None]


class Lane:
    """One direction of a wire. `take` gets the bytes, `ended` is called once, after the last of them."""

    def __init__(self, wire: Wire, break_at: BreakAt) -> None:
        self.take: Callable[[bytes], None] = lambda _data: None
        self.ended: Callable[[], None] = lambda: None
        self._wire = wire
        self._break_at = break_at
        self._sent = 0
        self._arrived = 0
        self._limit: int | None = None  # no byte past it arrives
        self._arrives_at = 0
        self._over = False

    def write(self, data: bytes) -> None:
        if self._limit is not None or self._over or not data:
            return
        at = self._break_at(len(data))
        self._sent += len(data)
        for piece in self._wire.pieces(data):
            self._later(lambda piece=piece: self._arrive(piece))  # type: ignore[misc]
        if at is not None:
            self._limit = self._sent - len(data) + at
            self._wire.break_now()

    def finish(self) -> None:
        """Nothing more comes from this side."""
        self._later(self.end)

    def break_somewhere(self, random: Random) -> None:
        """Of what is under way, a part of any length still arrives."""
        if self._limit is None:
            self._limit = random.randint(self._arrived, self._sent)

    def end(self) -> None:
        if not self._over:
            self._over = True
            self.ended()

    def _arrive(self, data: bytes) -> None:
        if self._limit is not None:
            data = data[: max(0, self._limit - self._arrived)]
        if data and not self._over:
            self._arrived += len(data)
            self.take(data)

    def _later(self, call: Callable[[], None]) -> None:
        schedule = self._wire.schedule
        self._arrives_at = max(self._arrives_at, schedule.now + self._wire.latency())
        schedule.after(self._arrives_at - schedule.now, call)


class Wire:
    """Two lanes that break together."""

    def __init__(
        self, schedule: Schedule, weather: Callable[[], Weather], random: Random, to_server: BreakAt, to_client: BreakAt
    ) -> None:
        self.schedule = schedule
        self._weather = weather
        self._random = random
        self._broken = False
        self.to_server = Lane(self, to_server)
        self.to_client = Lane(self, to_client)

    def latency(self) -> int:
        return self._random.randint(0, self._weather().latency_max_ms)

    def pieces(self, data: bytes) -> list[bytes]:
        if len(data) < 2 or self._random.random() >= self._weather().pieces:
            return [data]
        cuts = sorted(self._random.randint(0, len(data)) for _ in range(self._random.randint(1, PIECES_MAX - 1)))
        return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def break_now(self, *, silent: bool | None = None) -> None:
        """Break both lanes here and now; the ends are told, unless it is silent."""
        if self._broken:
            return
        self._broken = True
        for lane in (self.to_server, self.to_client):
            lane.break_somewhere(self._random)
        if silent is None:
            silent = self._random.random() < self._weather().black_hole
        if not silent:
            self.to_server.finish()
            self.to_client.finish()
