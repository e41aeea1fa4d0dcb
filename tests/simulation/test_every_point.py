"""One short conversation, broken at every single point: at each byte of each connection, at each step of each process.

The worlds of `test_simulation` break at points of chance; here none is left out.
"""

from __future__ import annotations

import multiprocessing
from typing import Any, Final

import pytest

from mailbox_client.engine_io import DeferMessages, TakeMessages, Woke
from tests.simulation.device import SimDevice
from tests.simulation.weather import CALM
from tests.simulation.world import World

SEED: Final = 11
TO_SERVER: Final = "to the server"
TO_CLIENT: Final = "to the client"
TOLD, SILENT = False, True


class Conversation:
    """Two devices that write to each other, over a WebSocket; something happens to the first one once."""

    def __init__(self) -> None:
        world = self.world = World(SEED)
        world.weather = CALM
        world.crashes = world.store_faults = world.refusals = 0.0
        world.standstills = world.server_restores = world.phone_restores = world.doubles = False
        world.devices = world.devices[:2]
        world.wire_breaks = self._breaks
        world.dies_at = self._dies
        world.history.order_is_kept = True
        self.alice, self.bob = world.devices
        self.bytes = {TO_SERVER: 0, TO_CLIENT: 0}  # of Alice's connections so far
        self.points: list[str] = []  # of Alice's processes so far
        self._lane = ""
        self._at = -1
        self._silent = TOLD
        self._dies_at_point = -1

    def break_at(self, lane: str, at: int, *, silent: bool) -> Conversation:
        """Break Alice's connection behind that many bytes."""
        self._lane, self._at, self._silent = lane, at, silent
        return self

    def die_at(self, point: int) -> Conversation:
        self._dies_at_point = point
        return self

    def play(self) -> dict[str, Any]:
        world, alice, bob = self.world, self.alice, self.bob
        world.begin()
        for act in (
            lambda: alice.send(1),
            lambda: bob.send(2),
            lambda: alice.send(2),
            lambda: alice.step(TakeMessages(2)),
            lambda: alice.settle_first(),
            lambda: alice.step(Woke()),
            lambda: bob.send(2),
            lambda: alice.step(TakeMessages(2)),
            lambda: alice.settle_first(DeferMessages),
            lambda: alice.send(1),
        ):
            world.schedule.run_until(world.schedule.now + 300)
            act()
        world.schedule.run_until(world.schedule.now + 300)
        return world.end()

    def _breaks(self, device: SimDevice, lane: str, size: int) -> int | None:
        if device is not self.alice:
            return None
        before = self.bytes[lane]
        self.bytes[lane] += size
        if lane != self._lane or not before <= self._at < before + size:
            return None
        self.world.weather.black_hole = 1.0 if self._silent else 0.0
        self.world.schedule.after(0, lambda: setattr(self.world.weather, "black_hole", 0.0))
        return self._at - before

    def _dies(self, device: SimDevice, point: str) -> bool:
        if device is not self.alice:
            return False
        self.points.append(point)
        return len(self.points) - 1 == self._dies_at_point


def broken_at(point: tuple[str, int, bool]) -> tuple[tuple[str, int, bool], dict[str, Any]]:
    lane, at, silent = point
    return point, Conversation().break_at(lane, at, silent=silent).play()


def died_at(point: int) -> dict[str, Any]:
    return Conversation().die_at(point).play()


def undisturbed() -> Conversation:
    conversation = Conversation()
    verdict = conversation.play()
    assert verdict["ok"], verdict
    assert verdict["handed"] >= 8
    return conversation


def every_byte(silent: bool, stride: int = 1) -> list[tuple[str, int, bool]]:
    whole = undisturbed().bytes
    return [(lane, at, silent) for lane in (TO_SERVER, TO_CLIENT) for at in range(0, whole[lane], stride)]


def faults_of(points: list[tuple[str, int, bool]]) -> list[Any]:
    with multiprocessing.get_context("spawn").Pool(2) as processes:
        verdicts = processes.map(broken_at, points, chunksize=50)
    return [(point, verdict["faults"]) for point, verdict in verdicts if not verdict["ok"]]


def test_a_cut_behind_every_fifth_byte_of_a_conversation_loses_and_doubles_nothing() -> None:
    points = every_byte(TOLD, stride=5)
    assert len(points) > 1_000
    assert not faults_of(points)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("silent", [TOLD, SILENT], ids=["cut", "black hole"])
def test_a_break_behind_every_byte_of_a_conversation_loses_and_doubles_nothing(silent: bool) -> None:
    assert not faults_of(every_byte(silent))


def test_a_crash_before_every_step_and_every_output_loses_and_doubles_nothing() -> None:
    points = undisturbed().points
    assert {"before the step is kept", "before output 0", "before output 1"} <= set(points)
    bad = [(points[at], verdict["faults"]) for at in range(len(points)) if not (verdict := died_at(at))["ok"]]
    assert not bad
