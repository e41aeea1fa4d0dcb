"""A clock that is set while mail flows: the database's, then a gateway's, by an hour either way (libfaketime)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from loadtest.faults.fake_clock import FakeClock
from loadtest.faults.fault import Scene, fault
from loadtest.faults.postgres_cluster import value_of
from loadtest.faults.postgres_server import PostgresServer
from loadtest.faults.traffic import Load
from loadtest.faults.world import Service, WorldPlan

HOUR_S: Final = 3_600
STEP_S_MAX: Final = 10.0
_NOT_HERE: Final = "libfaketime is not installed"


class PostgresWithClock(PostgresServer):
    """Its time of day can be set while it runs, where libfaketime is installed."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.clock = FakeClock(directory.with_name("clock"))
        self.environment = self.clock.environment


async def _set_database_clock(scene: Scene, seconds: int) -> None:
    postgres = scene.world.owned_postgres
    if not isinstance(postgres, PostgresWithClock):
        raise TypeError("this fault needs its own plan's PostgreSQL")
    if not FakeClock.is_there():
        scene.facts["not_done"] = _NOT_HERE
        return
    await scene.any_moment()
    postgres.clock.step(seconds)
    await scene.for_s(2.0)  # it is seen within a second
    now_s = float(await value_of(postgres, "SELECT extract(epoch FROM clock_timestamp())::float8"))
    scene.facts["database_ahead_s"] = round(now_s - time.time())
    scene.check(abs(now_s - time.time() - seconds) < 60, "the database's clock was not moved")
    scene.facts["flowed_s"] = round(await scene.traffic.flowing(time.monotonic_ns(), within_s=STEP_S_MAX), 2)
    await scene.for_s(10.0)


@fault(
    "clock-database-ahead",
    needs=(Service.POSTGRES,),
    plan=WorldPlan(make_postgres=PostgresWithClock, alone=True),
)
async def clock_database_ahead(scene: Scene) -> None:
    """PostgreSQL's clock is set an hour ahead: positions and expiry follow it, clean-up by expiry stops and alarms."""
    await _set_database_clock(scene, HOUR_S)


@fault(
    "clock-database-behind",
    needs=(Service.POSTGRES,),
    plan=WorldPlan(make_postgres=PostgresWithClock, alone=True),
    load=Load(sleepers=4),
)
async def clock_database_behind(scene: Scene) -> None:
    """PostgreSQL's clock is set an hour back: positions rise on, one by one, and sleepers are woken all the same."""
    await _set_database_clock(scene, -HOUR_S)


async def _set_gateway_clock(scene: Scene, seconds: int) -> None:
    if not FakeClock.is_there():
        scene.facts["not_done"] = _NOT_HERE
        return
    gateway = scene.choice(scene.world.gateways)
    clock = FakeClock(scene.world.directory / f"clock-{gateway.name}")
    gateway.environment = clock.environment
    await gateway.restart()
    await scene.traffic.flowing(time.monotonic_ns(), within_s=STEP_S_MAX)
    clock.step(seconds)
    await scene.for_s(4.0)
    scene.facts["flowed_s"] = round(await scene.traffic.flowing(time.monotonic_ns(), within_s=STEP_S_MAX), 2)
    clock.step(0)
    await scene.for_s(4.0)
    scene.mended()
    await scene.traffic.flowing(time.monotonic_ns(), within_s=STEP_S_MAX)
    gateway.environment = {}
    await gateway.restart()


@fault("clock-gateway-ahead", needs=(Service.GATEWAY,))
async def clock_gateway_ahead(scene: Scene) -> None:
    """A gateway's clock is an hour ahead for a while: tokens seem to have ended, and clients sign in again."""
    await _set_gateway_clock(scene, HOUR_S)


@fault("clock-gateway-behind", needs=(Service.GATEWAY,))
async def clock_gateway_behind(scene: Scene) -> None:
    """A gateway's clock is an hour behind for a while."""
    await _set_gateway_clock(scene, -HOUR_S)
