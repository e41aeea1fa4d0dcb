"""Failover: the primary dies, its synchronous standby is promoted, and nobody touches anything else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from loadtest.faults.fault import Scene, fault
from loadtest.faults.postgres_cluster import (
    PRIMARY_SETTINGS,
    multi_host_dsn,
    promote,
    set_and_reload,
    synchronous_standby_of,
    value_of,
)
from loadtest.faults.postgres_server import PostgresServer
from loadtest.faults.probe import Probe, counted
from loadtest.faults.world import Service, WorldPlan
from protocol.errors import ErrorCode

NEEDS: Final = (Service.POSTGRES, Service.GATEWAY)


class PostgresPair(PostgresServer):
    """A primary with its synchronous standby. Servers are told both addresses; the kit speaks to the primary."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, settings=PRIMARY_SETTINGS)
        self.standby: PostgresServer | None = None
        self._addresses: tuple[PostgresServer, ...] = ()

    @property
    def dsn(self) -> str:
        return multi_host_dsn(*self._addresses) if self._addresses else super().dsn

    async def create(self) -> None:
        await super().create()
        standby = await synchronous_standby_of(self, self.directory.with_name("standby"))
        first = PostgresServer(self.directory, port=self.port)
        first.password = self.password
        self.standby, self._addresses = standby, (first, standby)

    async def fail_over(self) -> None:
        """The primary is dead: promote the standby and be it from now on."""
        if self.standby is None:
            raise RuntimeError("the standby was promoted already")
        standby, self.standby = self.standby, None
        await promote(standby)
        self.process, self.port, self.data, self.directory = (
            standby.process, standby.port, standby.data, standby.directory,
        )  # fmt: skip

    async def close(self) -> None:
        await super().close()
        if self.standby is not None:
            await self.standby.process.stop()


def _pair(scene: Scene) -> PostgresPair:
    postgres = scene.world.owned_postgres
    if not isinstance(postgres, PostgresPair):
        raise TypeError("this fault needs its own plan's PostgreSQL")
    return postgres


@fault(
    "failover",
    needs=NEEDS,
    plan=WorldPlan(make_postgres=PostgresPair, alone=True),
    messages=3_000,
    recover_s_max=45.0,
)
async def failover(scene: Scene) -> None:
    """The primary is killed and its synchronous standby promoted; processes find it by the second host of their DSN."""
    pair = _pair(scene)
    async with Probe(scene) as probe:
        await probe.send_to(probe)
        cursor = await probe.cursor()
        timeline = await value_of(pair, "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)")
        moved = await counted(scene, "websocket_closes_total", "1012")
        await scene.any_moment()
        await pair.process.kill()
        await scene.for_s(2.0)  # what notices a dead primary takes its time, too
        await pair.fail_over()
        scene.mended()
        recovered = await scene.traffic.flowing(time.monotonic_ns(), within_s=45.0)
        new = await value_of(pair, "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)")
        scene.check(timeline != new, "the standby kept the old timeline")
        scene.check(await probe.refusal_of(cursor) is ErrorCode.CURSOR_INVALID, "a cursor of before was not refused")
        again = await probe.pull()
        scene.check(len(again) == 1, "what was confirmed before the failover is not there")
        scene.check(await probe.refusal_of(await probe.cursor()) is None, "cursors are refused more than once")
        await probe.ack(again)
    moved = await counted(scene, "websocket_closes_total", "1012") - moved
    scene.facts |= {"sessions_moved": moved, "writes_after_promotion_s": round(recovered, 2)}
    scene.check(moved > 0, "no session was told to come again")


@fault(
    "standby-lost",
    needs=NEEDS,
    plan=WorldPlan(make_postgres=PostgresPair, alone=True),
    recover_s_max=30.0,
)
async def standby_lost(scene: Scene) -> None:
    """The synchronous standby dies: commits wait for it, until it is back or the operator goes on without."""
    pair = _pair(scene)
    standby = pair.standby
    if standby is None:
        raise RuntimeError("the plan's standby is gone")
    await standby.process.kill()
    await scene.for_s(8.0)
    if scene.choice((True, False)):
        scene.facts["ended_by"] = "the standby's return"
        await standby.start()
    else:
        scene.facts["ended_by"] = "synchronous_standby_names = ''"
        await set_and_reload(pair, synchronous_standby_names="")
