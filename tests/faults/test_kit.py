"""The fault kit as anybody runs it: real processes, real clients, one JSON document, every promise kept."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from typing import Any

import pytest

from loadtest.faults.postgres_server import PostgresServer
from loadtest.faults.run import Options, load_faults, run_faults, selected
from loadtest.faults.valkey_server import ValkeyServer
from loadtest.faults.world import Given, WorldPlan, running_world
from tests.support.command import TREE, environment
from tests.support.directories import servers_directory

NAMES_OF_THE_SHORT_SELECTION = {one.name for one in load_faults().values() if one.short}
NUMBERS = (
    "accepted",
    "delivered",
    "opened_once",
    "lost",
    "duplicated",
    "out_of_order",
    "quota_breaches",
    "recovered_s",
)
MESSAGES_OF_THE_WHOLE_KIT = 100_000


async def faults(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, the JSON document, and what was told on the way."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtest", "faults", "--json", *arguments,
        env=environment(), cwd=TREE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    document, told = await process.communicate()
    assert process.returncode is not None
    print(told.decode())
    return process.returncode, json.loads(document), told.decode()


@pytest.mark.timeout(420)
async def test_the_short_selection_keeps_every_promise_and_ends_with_one_document() -> None:
    status, report, told = await faults("--short")
    assert status == 0, told
    assert report["ok"]
    assert {result["name"] for result in report["faults"]} == NAMES_OF_THE_SHORT_SELECTION
    for result in report["faults"]:
        assert set(NUMBERS) <= set(result)
        assert result["accepted"] > 0
        assert result["opened_once"] == result["delivered"] >= result["accepted"]
        assert (result["lost"], result["duplicated"], result["out_of_order"], result["quota_breaches"]) == (0, 0, 0, 0)
        assert f"{result['name']}: ok" in told
    assert report["total"]["accepted"] == sum(result["accepted"] for result in report["faults"])
    assert report["left_behind"] == []


@pytest.mark.slow
@pytest.mark.timeout(2_400)
async def test_the_whole_kit_keeps_every_promise_over_a_hundred_thousand_messages() -> None:
    status, report, told = await faults()
    assert status == 0, told
    assert {result["name"] for result in report["faults"]} == set(load_faults())
    assert report["total"]["accepted"] >= MESSAGES_OF_THE_WHOLE_KIT


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_services_that_are_given_are_used_and_never_hit() -> None:
    directory = servers_directory()
    postgres, valkey = PostgresServer(directory / "postgres"), ValkeyServer(directory / "valkey")
    try:
        await postgres.create()
        await valkey.start()
        pids = postgres.process.pid, valkey.process.pid
        given = Given(postgres.dsn, valkey.url)
        report = await run_faults(Options(only=("kill-clients", "kill-postgres"), messages=200, given=given), print)
        assert report["ok"], report
        assert {result["name"] for result in report["faults"] if "skipped" in result} == {"kill-postgres"}
        assert (postgres.process.pid, valkey.process.pid) == pids
    finally:
        await valkey.stop()
        await postgres.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_against_a_deployment_by_its_url_only_clients_are_hit() -> None:
    async with running_world(WorldPlan()) as theirs:
        names = ("kill-clients", "kill-gateway")
        report = await run_faults(Options(only=names, messages=200, given=Given(urls=tuple(theirs.urls))), print)
        assert report["ok"], report
        assert [result["name"] for result in report["faults"] if "skipped" in result] == ["kill-gateway"]
        assert all(role.process.starts == 1 for role in theirs.roles)


def test_a_run_that_failed_is_repeated_by_its_seed_and_its_names() -> None:
    names = ("kill-worker", "kill-gateway")
    assert [one.name for one in selected(Options(only=names, seed=7))] == ["kill-gateway", "kill-worker"]


async def test_an_unknown_fault_is_named_and_nothing_is_started() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtest", "faults", "--only", "no-such-fault",
        env=environment(), cwd=TREE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, told = await process.communicate()
    assert process.returncode == 2
    assert b"no-such-fault" in told


async def test_a_server_of_ones_own_that_is_away_is_told_in_one_line() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtest", "faults", "--only", "kill-clients", "--url", "http://127.0.0.1:1",
        env=environment(), cwd=TREE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, told = await process.communicate()
    assert process.returncode == 1
    assert told.startswith(b"loadtest: no answer")
    assert told.count(b"\n") == 1
