"""Processes that die or stand still at random moments, alone and in pairs: SIGKILL, SIGSTOP and SIGCONT."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import combinations
from typing import Final, Protocol

from loadtest.faults.fault import Scene, fault
from loadtest.faults.traffic import Load
from loadtest.faults.world import Service, WorldFailed

EVERYTHING: Final = frozenset(Service)
WITH_SLEEPERS: Final = Load(sleepers=4)


class Part(Protocol):
    """What can be hit."""

    async def kill(self) -> None: ...
    async def start(self) -> None: ...
    def freeze(self) -> None: ...
    def cont(self) -> None: ...


PARTS: Final[Mapping[str, Callable[[Scene], Part]]] = {
    "gateway": lambda scene: scene.choice(scene.world.gateways),
    "worker": lambda scene: scene.choice(scene.world.workers),
    "postgres": lambda scene: scene.world.owned_postgres,
    "valkey": lambda scene: scene.world.owned_valkey,
}
# For how long a part stands still: the upper ends lie above what its callers wait for an answer.
STANDSTILL_S: Final[Mapping[str, tuple[float, float]]] = {
    "gateway": (1.0, 15.0),
    "worker": (1.0, 8.0),
    "postgres": (1.0, 8.0),
    "valkey": (1.0, 12.0),
}
STARTS_MAX: Final = 20
RESTART_S: Final = 1.0  # as RestartSec of the service in docs/operations.md
_IN_SHORT: Final = ("kill-gateway", "kill-worker", "kill-postgres", "kill-valkey", "freeze-worker")


async def die(scene: Scene, name: str) -> None:
    """SIGKILL, and starts from a moment later on, as a supervisor would."""
    part = PARTS[name](scene)
    await part.kill()
    await scene.any_moment()
    for attempt in range(STARTS_MAX):
        try:
            await part.start()
            return
        except WorldFailed:  # it ended at its start: what it needs is away, too
            if attempt == STARTS_MAX - 1:
                raise
            await part.kill()
            await asyncio.sleep(RESTART_S)


async def stand_still(scene: Scene, name: str) -> None:
    """SIGSTOP to the process and its children, SIGCONT some seconds later."""
    part = PARTS[name](scene)
    part.freeze()
    await scene.for_s(scene.random.uniform(*STANDSTILL_S[name]))
    part.cont()


Way = Callable[[Scene, str], Awaitable[None]]
WAYS: Final[Mapping[str, tuple[Way, str]]] = {
    "kill": (die, "is killed and started again a moment later"),
    "freeze": (stand_still, "stands still for seconds and goes on"),
}


def _alone(way: str, name: str) -> None:
    async def act(scene: Scene) -> None:
        await scene.any_moment()
        await WAYS[way][0](scene, name)

    act.__doc__ = f"One {name} {WAYS[way][1]}."
    fault(f"{way}-{name}", short=f"{way}-{name}" in _IN_SHORT, needs=EVERYTHING, load=WITH_SLEEPERS, rounds=3)(act)


def _together(one: str, other: str) -> None:
    async def act(scene: Scene) -> None:
        async def hit(name: str) -> str:
            await scene.any_moment(0.5)
            way = scene.choice(sorted(WAYS))
            await WAYS[way][0](scene, name)
            return f"{way} {name}"

        scene.facts.setdefault("hits", []).append(await asyncio.gather(hit(one), hit(other)))

    act.__doc__ = f"One {one} and one {other} are killed or stand still, each at its own moment, overlapping."
    fault(f"pair-{one}-{other}", needs=EVERYTHING, load=WITH_SLEEPERS, rounds=3)(act)


for _name in PARTS:
    _alone("kill", _name)


@fault("shutdown-postgres-immediately", needs=EVERYTHING, load=WITH_SLEEPERS, rounds=3)
async def postgres_immediate(scene: Scene) -> None:
    """PostgreSQL is shut down without a checkpoint (SIGQUIT) and recovers at its start."""
    await scene.any_moment()
    await scene.world.owned_postgres.shut_down_immediately()
    await scene.any_moment()
    await scene.world.owned_postgres.start()


for _name in PARTS:
    _alone("freeze", _name)
for _pair in combinations(PARTS, 2):
    _together(*_pair)


@fault("kill-clients", short=True, load=Load(sleepers=4, disturbed=True), rounds=12)
async def kill_clients(scene: Scene) -> None:
    """Clients die at random moments, cut their connections, go to HTTP and back; the sleepers' process dies, too."""
    await scene.any_moment(0.8)
    victim = scene.choice(scene.traffic.clients)
    await victim.kill()
    victim.start()
    if scene.traffic.sleepers is not None and not scene.random.randrange(3):
        await scene.traffic.sleepers.kill()
        scene.traffic.sleepers.start()


@fault("kill-anything", needs=EVERYTHING, load=Load(sleepers=4, disturbed=True), rounds=2, messages=4_000)
async def kill_anything(scene: Scene) -> None:
    """For a while everything is killed again and again: clients, gateways, worker, PostgreSQL, Valkey."""

    async def clients() -> None:
        for _ in range(12):
            await scene.any_moment(1.2)
            victim = scene.choice(scene.traffic.clients)
            await victim.kill()
            victim.start()

    async def servers() -> None:
        for _ in range(4):
            await scene.any_moment(2.0)
            await die(scene, scene.choice(sorted(PARTS)))

    await asyncio.gather(clients(), servers())


@fault("senders-fall-silent", load=Load(sleepers=8), rounds=6)
async def senders_fall_silent(scene: Scene) -> None:
    """All senders stand still at once: what lies with sleeping devices must be pushed, since no mail comes after it."""
    for client in scene.traffic.clients:
        client.process.freeze()
    try:
        forgotten = await scene.traffic.not_woken()
        scene.check(not forgotten, f"{forgotten} messages lay with devices that were not woken for them")
    finally:
        for client in scene.traffic.clients:
            client.process.cont()
    await scene.any_moment()


@fault("client-clocks-ahead", load=Load(ttl_s=600, clock_offset_s=3_600))
async def client_clocks_ahead(scene: Scene) -> None:
    """Every second client's clock is an hour ahead, and mail lives ten minutes: nothing goes by a client's clock."""
    await scene.any_moment()


@fault("client-clocks-behind", load=Load(ttl_s=600, clock_offset_s=-3_600))
async def client_clocks_behind(scene: Scene) -> None:
    """Every second client's clock is an hour behind."""
    await scene.any_moment()
