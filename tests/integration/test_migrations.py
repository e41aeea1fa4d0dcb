"""Migrations on real PostgreSQL: whole or not at all, one at a time, repeatable, and the way back is exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest

from migrations import runner
from migrations.files import Migration, parse, read_all
from migrations.runner import MigrationError
from tests.golden.write_schema import GOLDEN, current_schema
from tests.support.blocking import BlockingRunner
from tests.support.catalog import schema_text
from tests.support.debian_postgres import require_debian_postgres
from tests.support.waiting import eventually


def migration(version: str, apply: str, rollback: str = "SELECT 1;", *, transaction: bool = True) -> Migration:
    predecessor = "none" if version == "0001" else f"{int(version) - 1:04d}"
    head = f"-- version: {version}\n-- predecessor: {predecessor}\n-- summary: s\n-- compatibility: c\n"
    head += "" if transaction else "-- transaction: none\n"
    text = f"{head}\n-- migrate: apply\n{apply}\n-- migrate: rollback\n{rollback}\n"
    return parse(f"{version}_test.sql", text.encode())


TABLE = migration("0001", "CREATE TABLE t (a bigint);", "DROP TABLE t;")


async def fetchval(dsn: str, sql: str, *arguments: Any) -> Any:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(sql, *arguments)
    finally:
        await connection.close()


async def has_table(dsn: str, name: str = "t") -> bool:
    return await fetchval(dsn, "SELECT to_regclass($1) IS NOT NULL", f"public.{name}")


# -- the project's own migrations


async def test_adr001_5_the_schema_is_the_golden_one(empty_database: str) -> None:
    assert await current_schema(empty_database) == GOLDEN.read_text(), "run `make golden` and look at the difference"


@pytest.mark.parametrize("version", [step.version for step in read_all()])
async def test_adr001_5_each_rollback_leaves_what_the_predecessor_left(empty_database: str, version: str) -> None:
    before = f"{int(version) - 1:04d}"
    if before != "0000":
        await runner.apply(empty_database, before)
    earlier = await schema_text(empty_database, without_records=True)
    await runner.apply(empty_database, version)
    applied = await schema_text(empty_database)
    assert await runner.rollback(empty_database, steps=1) == [version]
    assert await schema_text(empty_database, without_records=True) == earlier
    await runner.apply(empty_database, version)
    assert await schema_text(empty_database) == applied


async def test_all_the_way_back_leaves_nothing(empty_database: str) -> None:
    nothing = await schema_text(empty_database, without_records=True)
    await runner.apply(empty_database)
    await runner.rollback(empty_database, target="none")
    assert await schema_text(empty_database, without_records=True) == nothing


@pytest.fixture(scope="module")
def debian_postgres(blocking: BlockingRunner) -> Iterator[str]:
    server = require_debian_postgres()
    blocking.run(server.start())
    yield server.dsn
    blocking.run(server.stop())


async def test_the_postgresql_of_debian_gets_the_same_schema(debian_postgres: str) -> None:
    assert await current_schema(debian_postgres) == GOLDEN.read_text()
    await runner.rollback(debian_postgres, target="none")


# -- the runner


async def test_repeating_changes_nothing(empty_database: str) -> None:
    assert await runner.apply(empty_database, migrations=[TABLE]) == ["0001"]
    assert await runner.apply(empty_database, migrations=[TABLE]) == []
    assert await runner.rollback(empty_database, steps=5, migrations=[TABLE]) == ["0001"]
    assert await runner.rollback(empty_database, steps=5, migrations=[TABLE]) == []


async def test_status_says_where_a_database_stands_and_changes_nothing(empty_database: str) -> None:
    more = migration("0002", "CREATE TABLE u (a bigint);", "DROP TABLE u;")
    assert [step.state for step in await runner.status(empty_database, migrations=[TABLE, more])] == ["pending"] * 2
    assert not await has_table(empty_database, "schema_migrations")
    await runner.apply(empty_database, "0001", migrations=[TABLE, more])
    assert [step.state for step in await runner.status(empty_database, migrations=[TABLE, more])] == [
        "applied",
        "pending",
    ]
    await runner.apply(empty_database, migrations=[TABLE, more])
    assert [step.state for step in await runner.status(empty_database, migrations=[TABLE])] == ["applied", "unknown"]


async def test_current_means_all_of_this_release_even_under_a_newer_one(database: str, empty_database: str) -> None:
    assert await runner.is_current(database)
    assert not await runner.is_current(empty_database)
    newest = f"{len(read_all()) + 1:04d}"
    await runner.apply(database, migrations=[*read_all(), migration(newest, "CREATE TABLE t (a bigint);")])
    assert await runner.is_current(database)


async def test_a_body_arrives_as_it_stands_in_the_file(empty_database: str) -> None:
    body = "\nDECLARE r text; -- why; this\nBEGIN\n  /* ; $x$ */ EXECUTE $q$ SELECT 1; $q$;\n  RETURN '-- x';\nEND\n"
    step = migration("0001", f"CREATE FUNCTION f() RETURNS text LANGUAGE plpgsql AS $${body}$$;\nSELECT 1; -- end")
    await runner.apply(empty_database, migrations=[step])
    assert await fetchval(empty_database, "SELECT prosrc FROM pg_proc WHERE proname = 'f'") == body
    assert await fetchval(empty_database, "SELECT f()") == "-- x"


async def test_an_applied_file_that_changed_is_refused_both_ways(empty_database: str) -> None:
    await runner.apply(empty_database, migrations=[TABLE])
    changed = migration("0001", "CREATE TABLE t (a integer);", "DROP TABLE t;")
    with pytest.raises(MigrationError, match="was changed after it was applied"):
        await runner.apply(empty_database, migrations=[changed])
    with pytest.raises(MigrationError, match="was changed after it was applied"):
        await runner.rollback(empty_database, steps=1, migrations=[changed])
    assert (await runner.status(empty_database, migrations=[changed]))[0].changed
    assert await has_table(empty_database)


async def test_a_database_of_a_newer_release_is_not_touched(empty_database: str) -> None:
    more = migration("0002", "CREATE TABLE u (a bigint);", "DROP TABLE u;")
    await runner.apply(empty_database, migrations=[TABLE, more])
    for attempt in (
        runner.apply(empty_database, migrations=[TABLE]),
        runner.rollback(empty_database, steps=1, migrations=[TABLE]),
    ):
        with pytest.raises(MigrationError, match="not part of this release"):
            await attempt


async def test_two_runners_take_turns(empty_database: str) -> None:
    steps = [TABLE, migration("0002", "CREATE TABLE u (a bigint); SELECT pg_sleep(0.05);", "DROP TABLE u;")]
    done = await asyncio.gather(*(runner.apply(empty_database, migrations=steps) for _ in range(4)))
    assert sorted(done) == [[], [], [], ["0001", "0002"]]


async def test_a_step_that_fails_leaves_nothing_and_names_itself(empty_database: str) -> None:
    broken = migration("0002", "CREATE TABLE u (a bigint); SELECT 1 / 0;")
    with pytest.raises(MigrationError, match="0002_test: 22012"):
        await runner.apply(empty_database, migrations=[TABLE, broken])
    assert await has_table(empty_database)
    assert not await has_table(empty_database, "u")
    assert [step.state for step in await runner.status(empty_database, migrations=[TABLE, broken])] == [
        "applied",
        "pending",
    ]


async def test_a_lock_that_is_not_to_be_had_gives_up_and_changes_nothing(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LOCK_TIMEOUT_SECONDS", 1)
    await runner.apply(empty_database, migrations=[TABLE])
    more = migration("0002", "CREATE TABLE u (a bigint); ALTER TABLE t ADD COLUMN b text;")
    holder = await asyncpg.connect(empty_database)
    async with holder.transaction():
        await holder.execute("LOCK TABLE t IN ACCESS SHARE MODE")
        with pytest.raises(MigrationError, match="no lock within 1 s"):
            await runner.apply(empty_database, migrations=[TABLE, more])
    assert not await has_table(empty_database, "u")
    await holder.close()
    assert await runner.apply(empty_database, migrations=[TABLE, more]) == ["0002"]


async def test_another_runner_that_never_ends_is_not_waited_for_without_end(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "TURN_SECONDS", 1)
    holder = await asyncpg.connect(empty_database)
    await holder.fetchval("SELECT pg_advisory_lock($1)", int.from_bytes(b"mailboxd", "big"))
    with pytest.raises(MigrationError, match="another migration"):
        await runner.apply(empty_database, migrations=[TABLE])
    await holder.close()


async def running_statement(dsn: str, fragment: str) -> int:
    """The pid of the backend that runs it, once it does."""
    found: list[int] = []

    async def is_running() -> bool:
        pid = await fetchval(
            dsn,
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' "
            "AND pid <> pg_backend_pid() AND query LIKE '%' || $1 || '%'",
            fragment,
        )
        found.extend([pid] if pid else [])
        return bool(pid)

    await eventually(is_running, what=f"{fragment} runs")
    return found[0]


async def test_interrupted_in_the_middle_it_is_as_if_never_begun(empty_database: str) -> None:
    slow = migration("0001", "CREATE TABLE t (a bigint); SELECT pg_sleep(60);", "DROP TABLE t;")
    running = asyncio.create_task(runner.apply(empty_database, migrations=[slow]))
    pid = await running_statement(empty_database, "pg_sleep(60)")
    await fetchval(empty_database, "SELECT pg_terminate_backend($1)", pid)
    with pytest.raises(MigrationError, match="connection was lost"):
        await running
    assert not await has_table(empty_database)
    assert await runner.apply(empty_database, migrations=[TABLE]) == ["0001"]


async def test_a_cancelled_runner_does_not_go_on_in_the_server(empty_database: str) -> None:
    slow = migration("0001", "CREATE TABLE t (a bigint); SELECT pg_sleep(60);", "DROP TABLE t;")
    running = asyncio.create_task(runner.apply(empty_database, migrations=[slow]))
    await running_statement(empty_database, "pg_sleep(60)")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.wait_for(runner.apply(empty_database, migrations=[TABLE]), 60) == ["0001"]


INDEX = migration(
    "0002",
    "-- statement\nDROP INDEX CONCURRENTLY IF EXISTS i;\n-- statement\nCREATE INDEX CONCURRENTLY i ON t (a);",
    "-- statement\nDROP INDEX CONCURRENTLY IF EXISTS i;",
    transaction=False,
)


async def test_what_postgresql_refuses_in_a_transaction_is_repeated_after_an_interruption(empty_database: str) -> None:
    await runner.apply(empty_database, migrations=[TABLE])
    holder = await asyncpg.connect(empty_database)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("INSERT INTO t VALUES (1)")  # an index built concurrently waits for this
    running = asyncio.create_task(runner.apply(empty_database, migrations=[TABLE, INDEX]))
    pid = await running_statement(empty_database, "CREATE INDEX CONCURRENTLY")
    await fetchval(empty_database, "SELECT pg_terminate_backend($1)", pid)
    with pytest.raises(MigrationError, match="connection was lost"):
        await running
    await transaction.rollback()
    await holder.close()
    states = [step.state for step in await runner.status(empty_database, migrations=[TABLE, INDEX])]
    assert states == ["applied", "applying"]
    assert await runner.apply(empty_database, migrations=[TABLE, INDEX]) == ["0002"]
    assert await fetchval(empty_database, "SELECT indisvalid FROM pg_index WHERE indexrelid = 'i'::regclass")
    assert await runner.rollback(empty_database, steps=1, migrations=[TABLE, INDEX]) == ["0002"]
    assert not await has_table(empty_database, "i")


async def test_a_borrowed_connection_comes_back_as_it_was(empty_database: str) -> None:
    connection = await asyncpg.connect(empty_database)
    shown = [await connection.fetchval(f"SHOW {name}") for name in ("search_path", "lock_timeout")]
    await runner.apply(connection, migrations=[TABLE])
    assert [await connection.fetchval(f"SHOW {name}") for name in ("search_path", "lock_timeout")] == shown
    await connection.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda dsn: runner.apply(dsn, "9999"),
        lambda dsn: runner.rollback(dsn, target="9999"),
        lambda dsn: runner.rollback(dsn),
        lambda dsn: runner.rollback(dsn, steps=1, target="0001"),
    ],
)
async def test_a_target_that_does_not_exist_is_refused_before_anything_happens(
    empty_database: str, call: Callable[[str], Any]
) -> None:
    with pytest.raises(MigrationError):
        await call(empty_database)
    assert not await has_table(empty_database, "schema_migrations")


async def test_a_database_that_is_not_there_is_told_without_its_password() -> None:
    with pytest.raises(MigrationError, match="cannot connect") as caught:
        await runner.apply("postgresql://user:hunter2@127.0.0.1:1/nothing")
    assert "hunter2" not in str(caught.value)
