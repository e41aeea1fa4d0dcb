"""Upgrades under traffic: old and new processes side by side, and a migration that is killed at each statement."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Final

import asyncpg

from loadtest.faults.fault import Scene, fault
from loadtest.faults.next_release import FUNCTIONS, make_next_release
from loadtest.faults.postgres_cluster import execute, set_and_reload, value_of
from loadtest.faults.postgres_server import OWNER, SUPERUSER, PostgresServer
from loadtest.faults.process import Process
from loadtest.faults.traffic import Load
from loadtest.faults.world import ROOT, Service, WorldFailed, WorldPlan

NEEDS: Final = (Service.POSTGRES, Service.GATEWAY)
FLOW_S_MAX: Final = 15.0
STATEMENTS_MAX: Final = 400
FEW: Final = Load(clients=2, pause_s=0.05)  # it lasts for minutes, and a migration is slow beside full traffic
_POLL_S: Final = 0.02


class PostgresThatCounts(PostgresServer):
    """It counts the calls of every function."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, settings={"track_functions": "all"})


async def _calls(postgres: PostgresServer, version: int) -> int:
    names = [f"{name}_v{version}" for name in FUNCTIONS]
    await execute(postgres, "SELECT pg_stat_force_next_flush()")
    return int(
        await value_of(
            postgres,
            "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname = ANY($1::text[])",
            names,
        )
    )


@fault(
    "rolling-upgrade",
    needs=NEEDS,
    plan=WorldPlan(make_postgres=PostgresThatCounts, alone=True),
    messages=4_000,
    recover_s_max=15.0,
)
async def rolling_upgrade(scene: Scene) -> None:
    """A next release's migration under traffic, then its processes one by one, an old one started in between."""
    world, postgres = scene.world, scene.world.owned_postgres

    async def flows() -> None:
        await scene.traffic.flowing(time.monotonic_ns(), within_s=FLOW_S_MAX)

    tree = make_next_release(world.directory / "next")
    await world.mailboxd("migrate", "apply", tree=tree)
    await flows()  # the previous release's code on the new schema
    first, *others = world.gateways
    first.tree = tree
    await first.restart()
    await flows()
    for gateway in others:
        await gateway.restart()  # the previous release once more: it also starts on the new schema
        await flows()
    before = await _calls(postgres, 1), await _calls(postgres, 2)
    await flows()
    await scene.for_s(2.0)
    both = [
        after - then for after, then in zip((await _calls(postgres, 1), await _calls(postgres, 2)), before, strict=True)
    ]
    scene.facts["calls_side_by_side"] = both
    scene.check(min(both) > 0, "old and new functions were not in use beside each other")
    for role in (*others, *world.workers):
        role.tree = tree
        await role.restart()
        await flows()


_STOP_AT: Final = """
CREATE SCHEMA kit;
CREATE SEQUENCE kit.statement;
CREATE TABLE kit.stop (at bigint);
INSERT INTO kit.stop VALUES (0);
CREATE FUNCTION kit.stand_still() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF nextval('kit.statement') = (SELECT at FROM kit.stop) THEN PERFORM pg_sleep(300); END IF;
END $$;
CREATE EVENT TRIGGER stand_still ON ddl_command_end EXECUTE FUNCTION kit.stand_still();
"""


class _Migrated:
    """A second database of the same cluster, in which a migration stands still behind a statement of our choice."""

    name = "migrated"

    def __init__(self, scene: Scene) -> None:
        self._world = scene.world
        self._postgres = scene.world.owned_postgres
        self._process = Process("migrate", scene.world.directory / "migrate.log")
        self._kit: asyncpg.Connection

    @property
    def dsn(self) -> str:
        return self._postgres.dsn_of(database=self.name)

    async def create(self) -> None:
        # A server process notices by itself that its client is gone, also in the middle of a statement.
        await set_and_reload(self._postgres, client_connection_check_interval="100ms")
        await execute(self._postgres, f"CREATE DATABASE {self.name} OWNER {OWNER}")
        self._kit = await asyncpg.connect(self._postgres.dsn_of(role=SUPERUSER, database=self.name))
        await self._kit.execute(_STOP_AT)

    async def run(self, stop_at: int) -> bool:
        """Migrate, and kill it behind that statement; True when it came to its end before."""
        await self._kit.execute("UPDATE kit.stop SET at = $1", stop_at)
        await self._kit.execute("SELECT setval('kit.statement', 1, false)")
        environment = self._world.environment | {"MAILBOXD_POSTGRES_DSN": self.dsn}
        self._process.spawn([sys.executable, "-m", "mailboxd", "migrate", "apply"], environment, cwd=ROOT)
        while self._process.is_running and not await self._stands_still():
            await asyncio.sleep(_POLL_S)
        if not self._process.is_running:
            if self._process.returncode:
                raise WorldFailed(f"migrate apply failed:\n{self._process.last_words()}")
            return True
        await self._process.kill()
        async with asyncio.timeout(10.0):
            while await self._stands_still():
                await asyncio.sleep(_POLL_S)
        return False

    async def applied(self) -> int:
        """How many migrations are applied. None may stand half done."""
        if not await self._kit.fetchval("SELECT to_regclass('public.schema_migrations') IS NOT NULL"):
            return 0
        rows = await self._kit.fetch("SELECT state, count(*) AS n FROM public.schema_migrations GROUP BY 1")
        return {row["state"]: int(row["n"]) for row in rows}.get("applied", 0)

    async def schema(self, database: str) -> str:
        """As pg_dump writes it, without the session's own random key."""
        dsn = self._postgres.dsn_of(role=SUPERUSER, database=database)
        dump = await self._postgres.run("pg_dump", "--schema-only", "--schema=public", "-d", dsn)
        return "\n".join(line for line in dump.splitlines() if not line.startswith("\\"))

    async def close(self) -> None:
        await self._kit.close()
        await self._process.kill()
        await execute(self._postgres, f"DROP DATABASE {self.name} WITH (FORCE)")

    async def _stands_still(self) -> bool:
        return bool(
            await self._kit.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
            )
        )


@fault("migration-killed", needs=(Service.POSTGRES,), load=FEW, recover_s_max=10.0)
async def migration_killed(scene: Scene) -> None:
    """`mailboxd migrate apply` is killed behind each of its statements in turn and run again, beside the traffic."""
    migrated = _Migrated(scene)
    await migrated.create()
    try:
        kills, applied, stop_at = 0, 0, 1
        while not await migrated.run(stop_at):
            kills += 1
            now = await migrated.applied()
            # Behind a migration that was committed, the next run begins with the statements of the one after it.
            stop_at = 2 if now > applied else stop_at + 1
            applied = now
            scene.check(kills < STATEMENTS_MAX, "it never came to its end")
        scene.facts |= {"kills": kills, "migrations": await migrated.applied()}
        scene.check(kills > 20, "it was hardly ever killed")
        same = await migrated.schema(migrated.name) == await migrated.schema("mailboxd")
        scene.check(same, "the schema is not that of a migration without interruptions")
    finally:
        await migrated.close()
