"""What an operator watches of PostgreSQL: lock waits, old transactions, standbys, room (seed 001, section 5)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from runtime.metrics import Metrics
from runtime.supervise import Progress
from store.database_health import read_health
from store.postgres import Postgres
from tests.support.clock import FakeClock
from tests.support.waiting import eventually
from worker.database_watch import ROUND_SECONDS, DatabaseWatch


@pytest.fixture
async def postgres(database: str) -> AsyncIterator[Postgres]:
    pool = Postgres(database)
    await pool.open()
    yield pool
    await pool.close()


async def test_adr001_5_a_lock_wait_and_its_holder_are_seen(database: str, postgres: Postgres) -> None:
    quiet = await read_health(postgres)
    assert (quiet.lock_waits, quiet.lock_wait_oldest_s, quiet.standbys) == (0, 0, 0)
    assert quiet.database_bytes > 1_000_000
    holder, waiter = await asyncpg.connect(database), await asyncpg.connect(database)
    async with holder.transaction():
        await holder.execute("LOCK TABLE instances")
        waiting = asyncio.create_task(waiter.execute("SELECT 1 FROM instances"))

        async def one_waits() -> bool:
            health = await read_health(postgres)
            return health.lock_waits == 1 and health.lock_wait_oldest_s > 0 and health.transaction_oldest_s > 0

        await eventually(one_waits, what="the wait is seen")
    await waiting
    assert (await read_health(postgres)).lock_waits == 0
    await holder.close()
    await waiter.close()


async def test_adr001_5_an_unknown_lag_is_not_shown_as_none(postgres: Postgres) -> None:
    health = await read_health(postgres)
    assert (health.replication_lag_s, health.replication_lag_bytes) == (None, None)


async def test_the_gauges_follow(postgres: Postgres, clock: FakeClock, tmp_path: Path) -> None:
    metrics = Metrics()
    watch = DatabaseWatch(postgres, metrics, clock, directories=[tmp_path, tmp_path / "not there"])
    progress = Progress(clock)
    running = asyncio.create_task(watch.run(progress))
    await eventually(lambda: progress.turns == 1)
    shown = dict(re.findall(r"^mailboxd_(\w+) (\S+)$", metrics.expose()[0].decode(), re.MULTILINE))
    assert float(shown["database_size_bytes"]) > 1_000_000
    assert float(shown["database_lock_waits"]) == 0
    assert shown["database_replication_lag_seconds"] == "NaN"
    assert float(shown["disk_free_bytes"]) > 0
    await clock.advance(ROUND_SECONDS)
    await eventually(lambda: progress.turns == 2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_without_the_database_it_goes_on_and_keeps_what_it_knew(
    postgres: Postgres, clock: FakeClock, tmp_path: Path
) -> None:
    metrics = Metrics()
    progress = Progress(clock)
    running = asyncio.create_task(DatabaseWatch(postgres, metrics, clock, directories=[]).run(progress))
    await eventually(lambda: progress.turns == 1)
    before = metrics.registry.get_sample_value("mailboxd_database_size_bytes")
    await postgres.close()
    await clock.advance(ROUND_SECONDS)
    await eventually(lambda: progress.turns == 2)
    assert metrics.registry.get_sample_value("mailboxd_database_size_bytes") == before
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
