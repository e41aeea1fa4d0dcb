"""A PostgreSQL that is there and cannot do its work: read-only, full, locked, held back by an endless transaction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import asyncpg

from loadtest.faults.fault import Scene, fault
from loadtest.faults.postgres_cluster import SmallDisk, execute, set_and_reload, until, value_of
from loadtest.faults.postgres_server import OWNER, PostgresServer
from loadtest.faults.probe import counted
from loadtest.faults.world import Service, WorldPlan

NEEDS: Final = (Service.POSTGRES, Service.GATEWAY)
_BACKENDS: Final = "FROM pg_stat_activity WHERE application_name LIKE 'mailboxd%'"


async def all_say(scene: Scene, what: str, *, within_s: float = 15.0) -> None:
    """Every gateway's readiness becomes this: it takes itself out of the balancer, and nothing else."""
    waiting = list(scene.world.gateways)
    end = time.monotonic() + within_s
    while waiting and time.monotonic() < end:
        await asyncio.sleep(0.1)
        waiting = [gateway for gateway in waiting if what not in (await gateway.get("/readyz"))[1]]
    scene.check(not waiting, f"{', '.join(one.name for one in waiting)} did not say {what!r} within {within_s:.0f} s")


async def refusals(scene: Scene, code: str) -> int:
    """How many requests all gateways have answered with this code since they started."""
    return await counted(scene, "errors_total", code)


@asynccontextmanager
async def told_unavailable(scene: Scene) -> AsyncIterator[None]:
    """Meanwhile gateways answer UNAVAILABLE, and nobody meets a bug."""
    unavailable, internal = await refusals(scene, "UNAVAILABLE"), await refusals(scene, "INTERNAL")
    yield
    scene.facts["unavailable"] = await refusals(scene, "UNAVAILABLE") - unavailable
    scene.check(scene.facts["unavailable"] > 0, "no request was told UNAVAILABLE")
    scene.check(await refusals(scene, "INTERNAL") == internal, "requests were answered with INTERNAL")


@fault("postgres-read-only", needs=NEEDS, recover_s_max=10.0)
async def postgres_read_only(scene: Scene) -> None:
    """PostgreSQL refuses every write for a while, as a demoted primary or one that an operator closed does."""
    postgres = scene.world.owned_postgres
    async with told_unavailable(scene):
        await set_and_reload(postgres, default_transaction_read_only="on")
        await all_say(scene, "database")
        await scene.for_s(4.0)
        await set_and_reload(postgres, default_transaction_read_only="off")


@fault("postgres-out-of-connections", needs=NEEDS, recover_s_max=10.0)
async def postgres_out_of_connections(scene: Scene) -> None:
    """All connections are dropped and no new one is granted, as when others have taken max_connections."""
    postgres = scene.world.owned_postgres
    async with told_unavailable(scene):
        await execute(
            postgres,
            f"ALTER ROLE {OWNER} CONNECTION LIMIT 0",
            f"SELECT pg_terminate_backend(pid) {_BACKENDS}",
        )
        await all_say(scene, "database")
        await scene.for_s(4.0)
        await execute(postgres, f"ALTER ROLE {OWNER} CONNECTION LIMIT -1")


@fault("postgres-few-connections", needs=NEEDS, recover_s_max=10.0)
async def postgres_few_connections(scene: Scene) -> None:
    """The processes get fewer connections than they would take: some of their work waits, none is lost."""
    postgres = scene.world.owned_postgres
    open_ = await value_of(postgres, f"SELECT count(*) {_BACKENDS}")
    granted = open_ // 2
    await execute(postgres, f"ALTER ROLE {OWNER} CONNECTION LIMIT {granted}")
    await execute(postgres, f"SELECT pg_terminate_backend(pid) {_BACKENDS}")
    await scene.for_s(6.0)
    scene.facts["connections"] = f"{granted} of {open_}"
    await execute(postgres, f"ALTER ROLE {OWNER} CONNECTION LIMIT -1")


@asynccontextmanager
async def holding(scene: Scene, *statements: str) -> AsyncIterator[asyncpg.Connection]:
    """A transaction of somebody else, open over the block and rolled back at its end."""
    connection = await scene.world.connect()
    transaction = connection.transaction()
    await transaction.start()
    try:
        for statement in statements:
            await connection.execute(statement)
        yield connection
    finally:
        await transaction.rollback()
        await connection.close()


@fault("postgres-rows-locked", needs=NEEDS, recover_s_max=10.0)
async def postgres_rows_locked(scene: Scene) -> None:
    """Somebody locks every mailbox for some seconds, then every owner: what needs them waits; nobody meets a bug."""
    internal = await refusals(scene, "INTERNAL")
    async with holding(scene, "SELECT FROM mailboxes FOR UPDATE"):
        await scene.for_s(6.0)
    async with holding(scene, "SELECT FROM mailbox_owners FOR UPDATE"):
        await scene.for_s(6.0)
    scene.check(await refusals(scene, "INTERNAL") == internal, "requests were answered with INTERNAL")


@fault("postgres-table-locked", needs=NEEDS, recover_s_max=10.0)
async def postgres_table_locked(scene: Scene) -> None:
    """Somebody locks the table of envelopes whole, as a careless schema change does: everything waits, then goes on."""
    async with holding(scene, "LOCK TABLE envelopes IN ACCESS EXCLUSIVE MODE"):
        await scene.for_s(8.0)


@fault(
    "postgres-long-transaction",
    needs=NEEDS,
    plan=WorldPlan(policy=(("acked_cleanup_s", "0"),)),
    messages=6_000,
    recover_s_max=10.0,
)
async def postgres_long_transaction(scene: Scene) -> None:
    """A report holds its snapshot for 75 s while mail comes and goes: dead rows stay until it ends, and go then."""
    postgres = scene.world.owned_postgres
    dead = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'envelopes'"
    report = await scene.world.connect()
    try:
        await report.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM envelopes")
        # Busy, not idle: what idles in a transaction is ended by idle_in_transaction_session_timeout.
        running = asyncio.create_task(report.execute("SELECT pg_sleep(75)"))
        took = await scene.traffic.flowing(time.monotonic_ns(), within_s=10.0)
        await running
        rows = await value_of(postgres, "SELECT count(*) FROM envelopes")
        await execute(postgres, "VACUUM envelopes")
        kept = await value_of(postgres, dead)
        scene.check(rows < kept, "clean-up did not go on beside the transaction")
        await report.execute("COMMIT")
    finally:
        await report.close()
    await execute(postgres, "VACUUM envelopes")
    left = await value_of(postgres, dead)
    scene.facts |= {"mail_flowed_s": round(took, 2), "rows": rows, "dead_rows_held": kept, "dead_rows_after": left}
    scene.check(kept > 10 * max(left, 1), "the dead rows did not go when the transaction ended")


@fault("postgres-idle-in-transaction", needs=NEEDS, recover_s_max=10.0, messages=3_000)
async def postgres_idle_in_transaction(scene: Scene) -> None:
    """Somebody locks all mailboxes and goes away: PostgreSQL ends it by idle_in_transaction_session_timeout (10 s)."""
    postgres = scene.world.owned_postgres
    connection = await scene.world.connect()
    try:
        await connection.execute("SET idle_in_transaction_session_timeout = '10s'")
        await connection.execute("BEGIN; SELECT FROM mailboxes FOR UPDATE")
        began = time.monotonic()
        await until(postgres, "SELECT count(*) = 0 FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'")
        scene.facts["held_s"] = round(time.monotonic() - began, 1)
        scene.check(9.0 < time.monotonic() - began < 20.0, "PostgreSQL did not end it in its time")
    finally:
        connection.terminate()


class PostgresOnSmallDisk(PostgresServer):
    """On a file system of its own (256 MB) that a fault fills; on the ordinary one without the right to mount."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, settings={"min_wal_size": "32MB", "max_wal_size": "64MB"})
        self.disk = SmallDisk(directory)
        self.is_small = False

    async def create(self) -> None:
        self.is_small = self.disk.mount()
        await super().create()

    async def close(self) -> None:
        await super().close()
        if self.is_small:
            self.disk.unmount()


@fault(
    "postgres-disk-full",
    needs=NEEDS,
    plan=WorldPlan(make_postgres=PostgresOnSmallDisk, alone=True),
    recover_s_max=30.0,
)
async def postgres_disk_full(scene: Scene) -> None:
    """The disk of PostgreSQL is full: UNAVAILABLE, and all goes on by itself once there is room."""
    postgres = scene.world.owned_postgres
    if not isinstance(postgres, PostgresOnSmallDisk) or not postgres.is_small:
        scene.facts["not_done"] = "a file system of its own could not be mounted: this needs root"
        return
    async with told_unavailable(scene):
        postgres.disk.fill()
        await scene.for_s(5.0)  # rows find no room: PostgreSQL refuses them and goes on
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            for _ in range(40):  # and now WAL finds none, which ends PostgreSQL
                await execute(postgres, "SELECT pg_switch_wal()", "SELECT pg_logical_emit_message(true, 'fill', '')")
        restarts = 0
        end = time.monotonic() + 8.0
        while time.monotonic() < end:
            restarts += _supervise(postgres)
            await asyncio.sleep(0.5)
        scene.facts |= {"free_bytes": postgres.disk.free_bytes, "postgres_restarted": restarts}
        postgres.disk.free()
        scene.mended()
        async with asyncio.timeout(60.0):
            while not await postgres.answers():
                _supervise(postgres)
                await asyncio.sleep(0.1)


def _supervise(postgres: PostgresServer) -> int:
    """Start it again if it has ended, as systemd would; 1 if so."""
    if postgres.process.is_running:
        return 0
    postgres.launch()
    return 1
