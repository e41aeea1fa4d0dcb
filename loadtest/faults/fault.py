"""What a fault is: a coroutine that breaks something in a world while traffic runs, registered under a name.

    @fault("kill-gateway", short=True, needs=(Service.GATEWAY,))
    async def kill_gateway(scene: Scene) -> None:
        \"\"\"A gateway dies at a random moment and is started again.\"\"\"
        gateway = scene.choice(scene.world.gateways)
        await scene.any_moment()
        await gateway.kill()
        await gateway.start()

When it returns, everything must be mended: the time to recover counts from then (or from `scene.mended()`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from loadtest.faults.traffic import Load, Traffic
from loadtest.faults.world import Service, World, WorldPlan

T = TypeVar("T")


@dataclass(slots=True)
class Scene:
    """What a fault gets to work with."""

    world: World
    traffic: Traffic
    random: random.Random
    facts: dict[str, Any] = field(default_factory=dict)  # for the report: what was hit, what was measured
    problems: list[str] = field(default_factory=list)  # promises that the fault itself found broken
    histories: list[dict[str, Any]] = field(default_factory=list)
    mended_ns: int = 0

    def choice(self, among: Sequence[T]) -> T:
        return self.random.choice(among)

    async def any_moment(self, at_most_s: float = 1.5) -> None:
        """Wait for a random while: the fault comes at no particular moment."""
        await asyncio.sleep(self.random.uniform(0.0, at_most_s))

    async def for_s(self, seconds: float) -> None:
        """How long the fault lasts."""
        await asyncio.sleep(seconds)

    def mended(self) -> None:
        """From here on the world is whole again; what comes after in the fault takes no part in recovering."""
        self.mended_ns = time.monotonic_ns()

    def add_history(self, judged: dict[str, Any]) -> None:
        """Count what clients of the fault's own did, as `loadtest.run.told` gives it; whatever is wrong is a breach."""
        self.histories.append(judged["verdict"])
        if not judged["ok"]:
            wrong = {
                key: judged[key] for key in ("lost", "duplicated", "out_of_order", "refusals", "disconnects", "drained")
            }
            self.problems.append(f"the fault's own clients: {wrong}")

    def check(self, holds: bool, promise: str) -> None:
        """Note a broken promise that only this fault can see."""
        if not holds:
            self.problems.append(promise)


Act = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One registered fault. `recover_s_max` is the stated time until mail flows for every client again."""

    name: str
    act: Act
    about: str
    short: bool
    needs: frozenset[Service]
    plan: WorldPlan
    load: Load
    messages: int
    recover_s_max: float
    refusals: frozenset[str]
    rounds: int
    undisturbed: bool


FAULTS: Final[dict[str, Fault]] = {}


def fault(
    name: str,
    *,
    short: bool = False,
    needs: Collection[Service] = (),
    plan: WorldPlan | None = None,
    load: Load | None = None,
    messages: int = 1_500,
    recover_s_max: float = 30.0,
    refusals: Collection[str] = (),
    rounds: int = 1,
    undisturbed: bool = False,
) -> Callable[[Act], Act]:
    """Register a fault.

    `short`: in the selection of `make test`. `needs`: what must be the kit's own, since it is hit. `messages`: entries
    accepted before the traffic ends (a third of it in the short selection). `refusals`: codes that may come. `rounds`:
    how often the act is done in one run of traffic (once in the short selection). `undisturbed`: it measures times, and
    nothing else may run beside it.
    """

    def register(act: Act) -> Act:
        if name in FAULTS:
            raise ValueError(f"two faults are called {name}")
        FAULTS[name] = Fault(
            name=name,
            act=act,
            about=" ".join((act.__doc__ or "").split()),
            short=short,
            needs=frozenset(needs),
            plan=plan or WorldPlan(),
            load=load or Load(),
            messages=messages,
            recover_s_max=recover_s_max,
            refusals=frozenset(refusals),
            rounds=rounds,
            undisturbed=undisturbed,
        )
        return act

    return register
