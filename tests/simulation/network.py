"""The network of the simulation: it delays, drops, cuts in the middle, goes black, and blocks upgrades, all by seed."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import TYPE_CHECKING

from mailbox_client.engine_io import FrameReceived, SocketLost, SocketOpened
from protocol.client_session import ClientSession, ContractBroken
from protocol.codec import decode_server_frame, encode_client_frame
from protocol.errors import CloseCode
from protocol.frames import ClientFrame, Hello, Send
from tests.simulation.model_server import START_MS, Connection

if TYPE_CHECKING:
    from tests.simulation.world import SimClient, World


class Schedule:
    """Virtual time: what is due happens in order, and time jumps from one thing to the next."""

    def __init__(self) -> None:
        self.now = 0  # monotonic milliseconds
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    @property
    def server_ms(self) -> int:
        return START_MS + self.now

    def after(self, milliseconds: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + max(0, milliseconds), next(self._numbers), call))

    def run_until(self, end: int) -> None:
        while self._queue and self._queue[0][0] <= end:
            self.now, _, call = heapq.heappop(self._queue)
            call()
        self.now = end


@dataclass
class Weather:
    """How bad the network is now. Probabilities are per event."""

    latency_max_ms: int = 200
    cut: float = 0.0  # each message may be the one in which the connection breaks
    black_hole: float = 0.0  # of the breaks: nobody is told
    refused: float = 0.0  # an opening that fails
    blocked: bool = False  # a proxy that lets no upgrade through
    request_lost: float = 0.0  # an HTTP request that never arrives
    answer_lost: float = 0.0  # an HTTP request that is carried out, and nobody hears of it


CALM = Weather(latency_max_ms=20)


def storm(random: Random) -> Weather:
    """Weather for the bad part of a run."""
    return Weather(
        latency_max_ms=random.choice([5, 200, 3_000]),
        cut=random.choice([0.0, 0.01, 0.05, 0.2]),
        black_hole=random.choice([0.0, 0.3]),
        refused=random.choice([0.0, 0.1, 0.5]),
        blocked=random.random() < 0.15,
        request_lost=random.choice([0.0, 0.05, 0.3]),
        answer_lost=random.choice([0.0, 0.05, 0.3]),
    )


class SimSocket:
    """One WebSocket through the weather. Both ends are audited against the contract (`protocol.client_session`)."""

    def __init__(self, world: World, client: SimClient, number: int) -> None:
        self._world = world
        self._client = client
        self._number = number
        self._server: Connection | None = None
        self._broken = False  # nothing passes any more, in either direction
        self._told = False  # the client knows
        self._to_client_at = 0
        self._to_server_at = 0
        self._audit = ClientSession(opened_at=world.seconds)
        weather, random = world.weather, world.random
        if random.random() < weather.refused:
            kind = random.choice(["unreachable", "hangs", "busy"])
            if kind == "unreachable":
                self._later(lambda: self._tell(SocketLost(number, unreachable=True)))
            elif kind == "busy":
                self._later(lambda: self._tell(SocketLost(number, reconnect_after_ms=2_000, http_status=503)))
        elif weather.blocked:
            self._later(lambda: self._tell(SocketLost(number, http_status=403)))
        else:
            self._later(self._open)

    # -- the client's side

    def put(self, frame: ClientFrame) -> None:
        data = encode_client_frame(frame)
        try:
            self._audit.sending(frame, len(data), self._world.seconds)
        except ContractBroken as broken:
            self._world.fault(f"the client broke the contract: {broken}")
        if self._broken or self._may_break():
            return
        self._to_server_at = max(self._to_server_at, self._world.schedule.now + self._latency())
        self._world.schedule.after(self._to_server_at - self._world.schedule.now, lambda: self._at_server(frame, data))

    def leave(self, *, at_once: bool) -> None:
        """The client closes. What it had put still travels, unless the network is broken."""
        self._told = True
        if self._broken:
            return
        delay = max(0, self._to_server_at - self._world.schedule.now) + self._latency()
        if at_once and self._world.random.random() < 0.5:
            self._broken = True  # what was under way is lost
        self._world.schedule.after(delay, self._server_hears_end)

    def crash(self) -> None:
        """The client's process is gone."""
        self.leave(at_once=True)

    # -- the server's side

    def _open(self) -> None:
        self._server = Connection(self._world.server, self._from_server, self._closed_by_server)
        self._tell(SocketOpened(self._number))

    def _at_server(self, frame: ClientFrame, data: bytes) -> None:
        if self._broken or self._server is None:
            return
        if isinstance(frame, Send):
            self._world.send_arrives(self._client, frame, self._world.synced_at(self._client, self))
        self._server.receive(data)
        if isinstance(frame, Hello) and not self._server.ended:
            self._world.synced(self)

    def _from_server(self, data: bytes) -> None:
        if self._broken or self._may_break():
            return
        self._deliver(lambda: self._frame(data))

    def _closed_by_server(self, code: int | None, reason: str) -> None:
        if self._broken:
            return
        wait = 1_000 if code in (CloseCode.RATE_LIMITED, CloseCode.UNAVAILABLE) else None
        del reason
        self._deliver(lambda: self._tell(SocketLost(self._number, code, wait)))

    def _frame(self, data: bytes) -> None:
        frame = decode_server_frame(data)
        if frame is None or self._broken:
            return
        if not self._told:
            try:
                self._audit.receive(frame, self._world.seconds)
            except ContractBroken as broken:
                self._world.fault(f"the server broke the contract: {broken}")
        self._tell(FrameReceived(self._number, frame))

    def _deliver(self, call: Callable[[], None]) -> None:
        self._to_client_at = max(self._to_client_at, self._world.schedule.now + self._latency())
        self._world.schedule.after(self._to_client_at - self._world.schedule.now, call)

    # -- the weather

    def _may_break(self) -> bool:
        """Break here and now, in the middle of this message?"""
        if self._world.random.random() >= self._world.weather.cut:
            return False
        self.break_now(silent=self._world.random.random() < self._world.weather.black_hole)
        return True

    def break_now(self, *, silent: bool) -> None:
        self._broken = True
        if not silent:
            self._later(lambda: self._tell(SocketLost(self._number)))
            self._later(self._server_hears_end)

    def _server_hears_end(self) -> None:
        if self._server is not None and not self._server.ended:
            self._server.lost()

    def _tell(self, one: SocketOpened | SocketLost | FrameReceived) -> None:
        if self._told:
            return
        if isinstance(one, SocketLost):
            self._told = True
            self._broken = True
        self._client.step(one)

    def _latency(self) -> int:
        return self._world.latency()

    def _later(self, call: Callable[[], None]) -> None:
        self._world.schedule.after(self._latency(), call)
