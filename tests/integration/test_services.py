"""The tests' own services."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import asyncpg
import redis.asyncio

from tests.support.directories import servers_directory
from tests.support.services import set_clock_offset


async def test_each_test_has_a_database_of_its_own(database: str, new_database: Callable[[], str]) -> None:
    other = new_database()
    assert other != database
    for dsn in (database, other):
        connection = await asyncpg.connect(dsn)
        assert await connection.fetchval("SELECT count(*) FROM instances") == 1
        assert await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
        await connection.execute("DELETE FROM instances")
        await connection.close()


async def test_the_database_clock_moves_for_every_connection_at_once(database: str) -> None:
    one, other = await asyncpg.connect(database), await asyncpg.connect(database)
    ahead = "SELECT extract(epoch FROM mailboxd_now() - clock_timestamp())::float8"
    assert abs(await other.fetchval(ahead)) < 1
    await set_clock_offset(one, 86_400.0)
    assert abs(await other.fetchval(ahead) - 86_400) < 1
    await set_clock_offset(one, 0)
    assert abs(await other.fetchval(ahead)) < 1
    await one.close()
    await other.close()


async def test_each_test_has_an_empty_redis(redis_url: str) -> None:
    client = redis.asyncio.from_url(redis_url)
    assert await client.dbsize() == 0
    await client.set("left", "behind")
    await client.aclose()


def test_what_a_killed_run_left_is_removed_by_the_next_one() -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    mine = servers_directory()
    left = mine.with_name(f"mailboxd-test-{gone.pid}-left")
    left.mkdir()
    other = servers_directory()
    assert not left.exists()
    assert mine.exists()
    for directory in (mine, other):
        directory.rmdir()
