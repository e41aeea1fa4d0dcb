"""Storm and drain: thousands of connected devices lose one of two gateways and come back at the other one."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any, Final, NamedTuple

from loadtest.accounts import Account, register
from loadtest.descriptors import allow_descriptors
from loadtest.faults.connections import connections_by_process, over_the_pool
from loadtest.faults.fault import Scene, fault
from loadtest.faults.process import WorldFailed
from loadtest.faults.traffic import Load
from loadtest.faults.world import Role, Service, WorldPlan
from loadtest.recorder import Recorder
from loadtest.run import told
from loadtest.scenarios.paced import pace
from loadtest.swarm import Device, Swarm, SwarmFailed, Traffic

DEVICES: Final = 5_000
SENDING: Final = 50
RATE_PER_S: Final = 100
BODY_BYTES: Final = 256
BACK_S_MAX: Final = 60.0
PER_SECOND_MAX: Final = 1_000  # twice the budget of handshakes of the gateway that stays
OPENING: Final = 100  # at once
BACKOFF_BASE_S: Final = 0.5
BACKOFF_CAP_S: Final = 20.0
REGISTER_CHUNK: Final = 500

# The budget of handshakes is the default one here: it is what spreads a storm.
PLAN: Final = WorldPlan(gateway_settings=(("heartbeat_s", "20"),), policy=(("handshakes_per_second", "500"),))
FEW: Final = Load(clients=2, pause_s=0.1)


class Return(NamedTuple):
    """How one device came back: at which moment, after how many seconds, and after how many it had been told to."""

    at: float
    after_s: float
    told_s: float | None


class Crowd(Swarm):
    """Devices that know several gateways and come back as the contract says: at the time told, else with jitter."""

    def __init__(self, accounts: Sequence[Account], gateways: Sequence[Role], traffic: Traffic, chance: Any) -> None:
        super().__init__(accounts, [("127.0.0.1", role.port) for role in gateways], traffic, Recorder())
        self.back: dict[int, Return] = {}
        self.tries = 0
        self._chance = chance
        self._here: dict[int, Device] = {}
        self._coming: dict[int, asyncio.Task[None]] = {}
        self._gate = asyncio.Semaphore(OPENING)
        self.on_lost = self._lost

    def leave_out(self, port: int) -> None:
        """Nobody connects to this gateway from now on, as a balancer would arrange it."""
        self._endpoints = [endpoint for endpoint in self._endpoints if endpoint[1] != port]

    async def arrive(self) -> None:
        """Connect all."""
        for index in range(len(self.accounts)):
            self._coming[index] = asyncio.create_task(self._come(index, None, first=True), name=f"come-{index}")
        await self.all_here(BACK_S_MAX * 3)

    async def all_here(self, within_s: float) -> None:
        """Return when every device is connected and caught up; SwarmFailed when not in time."""
        end = perf_counter() + within_s
        while self._coming or len(self._here) < len(self.accounts):
            if perf_counter() > end:
                raise SwarmFailed(f"{len(self._coming)} of {len(self.accounts)} devices were not back in {within_s} s")
            await asyncio.sleep(0.02)
        self.devices = list(self._here.values())

    def at(self, port: int) -> int:
        """How many are connected to that gateway."""
        peers = (device.transport.get_extra_info("peername") for device in self._here.values() if device.transport)
        return sum(1 for peer in peers if peer and peer[1] == port)

    def senders_here(self, count: int) -> list[Device]:
        """Those of the first `count` devices that are connected."""
        return [device for index, device in self._here.items() if index < count]

    async def leave(self) -> None:
        """End every connection and every try."""
        for task in self._coming.values():
            task.cancel()
        await asyncio.gather(*self._coming.values(), return_exceptions=True)
        self.close()
        while any(device.transport is not None for device in self._here.values()):
            await asyncio.sleep(0.01)

    def _lost(self, device: Device) -> None:
        index = device.index
        if self._here.get(index) is device:
            del self._here[index]
            self._coming[index] = asyncio.create_task(self._come(index, device.come_back_s), name=f"come-{index}")

    async def _come(self, index: int, told_s: float | None, *, first: bool = False) -> None:
        began, wait_s, attempt = perf_counter(), told_s, 0
        while True:
            if not first:
                ceiling = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2**attempt)
                await asyncio.sleep(self._chance.uniform(0, ceiling) if wait_s is None else wait_s)
            first, wait_s = False, None
            attempt += 1
            self.tries += 1
            async with self._gate:
                try:
                    device = await self.open(index)
                except OSError:
                    continue
                try:
                    await device.ready
                except SwarmFailed:
                    wait_s = device.come_back_s
                    continue
            self._here[index] = device
            now = perf_counter()
            self.back[index] = Return(now, now - began, told_s)
            del self._coming[index]
            return


async def _accounts(scene: Scene) -> list[Account]:
    """The crowd's devices: registered once a world."""
    known: list[Account] = scene.world.shared.setdefault("crowd", [])
    while len(known) < DEVICES:
        url = scene.choice(scene.world.urls)
        known += await register(url, min(REGISTER_CHUNK, DEVICES - len(known)))
    return known


async def _watch_connections(scene: Scene, most: Counter[str]) -> None:
    while True:
        for name, count in (await connections_by_process(scene.world)).items():
            most[name] = max(most[name], count)
        await asyncio.sleep(0.25)


async def _one_goes(scene: Scene, go: Callable[[Role], Awaitable[object]]) -> None:
    """Everybody is connected and mail flows; one gateway goes by `go`; all must be back at the other one in time."""
    allow_descriptors(DEVICES)
    world = scene.world
    senders = range(SENDING)
    traffic = Traffic(payload_bytes=BODY_BYTES, senders=senders, recipients=range(DEVICES))
    crowd = Crowd(await _accounts(scene), world.gateways, traffic, random.Random(scene.random.randrange(10**9)))
    most: Counter[str] = Counter()
    watching = asyncio.create_task(_watch_connections(scene, most), name="watch-connections")
    try:
        await crowd.arrive()
        going = scene.choice(world.gateways)
        crowd.back.clear()
        affected = crowd.at(going.port)
        crowd.leave_out(going.port)
        pacing = asyncio.create_task(_keep_sending(crowd), name="pace")
        await scene.for_s(2.0)
        began = perf_counter()
        gone = asyncio.create_task(_ignore_result(go(going)), name="go")
        await asyncio.sleep(0.1)
        while len(crowd.back) < affected and perf_counter() - began < BACK_S_MAX + 30:
            await asyncio.sleep(0.02)
        await crowd.all_here(BACK_S_MAX)
        back_s = perf_counter() - began
        await gone
        await scene.for_s(2.0)
        pacing.cancel()
        await asyncio.wait((pacing,))
        drained = await crowd.drain(60.0)
        scene.add_history(told(crowd.recorder, drained=drained, refusals=crowd.refusals, disconnects={}))
        scene.check(back_s <= BACK_S_MAX, f"all were back after {back_s:.0f} s, later than {BACK_S_MAX:.0f} s")
        _check_spread(scene, crowd)
        scene.problems += over_the_pool(most, world)
        scene.facts |= {"devices": DEVICES, "lost their gateway": affected, "all back in s": round(back_s, 2)}
        scene.facts |= {"tries": crowd.tries, "most connections to PostgreSQL": dict(most)}
    except SwarmFailed as error:
        raise WorldFailed(str(error)) from error
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await crowd.leave()
    await going.start()


async def _ignore_result(call: Awaitable[object]) -> None:
    await call


async def _keep_sending(crowd: Crowd) -> None:
    """Mail from whoever of the senders is connected."""
    while True:
        part = asyncio.create_task(pace(crowd, RATE_PER_S, crowd.senders_here(SENDING)), name="pace-part")
        try:
            await asyncio.sleep(1.0)
        finally:
            part.cancel()
            await asyncio.wait((part,))


def _check_spread(scene: Scene, crowd: Crowd) -> None:
    """Who was told a time came at that time and not before; nobody's coming made a crowd of the others'."""
    returns = list(crowd.back.values())
    seconds = Counter(int(one.at) for one in returns)
    most = max(seconds.values(), default=0)
    scene.facts |= {"came over seconds": len(seconds), "most in one second": most}
    scene.check(most <= PER_SECOND_MAX, f"{most} devices came back within one second")
    told_ = [(one.after_s, one.told_s) for one in returns if one.told_s is not None]
    scene.facts["told when to come back"] = len(told_)
    if told_:
        early = sum(1 for after_s, told_s in told_ if after_s < told_s - 0.05)
        scene.check(not early, f"{early} devices were back before the time that they were told")
        late = sorted(after_s - told_s for after_s, told_s in told_)
        scene.facts["later than told in s, p99"] = round(late[int(len(late) * 0.99)], 2)


@fault("storm-drain", needs=(Service.GATEWAY,), plan=PLAN, load=FEW, messages=1, undisturbed=True)
async def storm_drain(scene: Scene) -> None:
    """5,000 devices on two gateways, and one is drained by SIGTERM: all are back at the other one within 60 s."""
    await _one_goes(scene, lambda gateway: gateway.process.stop())


@fault("storm-kill", needs=(Service.GATEWAY,), plan=PLAN, load=FEW, messages=1, undisturbed=True)
async def storm_kill(scene: Scene) -> None:
    """5,000 devices on two gateways, and one is killed: all are back at the other one within 60 s."""
    await _one_goes(scene, lambda gateway: gateway.kill())
