"""`python -m loadtest bench` against a real server: the form of its report, and a clean verdict."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.processes import tree
from tests.support.bench import bench
from tests.support.command import TREE, environment
from tests.support.waiting import eventually


def test_a_short_cycle_is_measured_metered_and_judged() -> None:
    report = bench(
        "--scenario", "cycle", "--scenario", "cycle-echo", "--devices", "20", "--seconds", "1", "--warmup", "0.5"
    )  # fmt: skip
    assert report["ok"] is True
    assert report["machine"]["cores"] >= 1
    assert report["settings"]["policy"]["submit_rate_per_pair"] == "0"
    assert report["settings"]["postgres"]["fsync"] == "on"
    assert report["settings"]["postgres"]["synchronous_commit"] == "on"
    plain, echo = report["scenarios"]
    for scenario in (plain, echo):
        assert scenario["confirmed_per_s"] > 0
        assert scenario["delivered_per_s"] > 0
        assert scenario["acked_per_s"] > 0
        assert scenario["lost"] == scenario["duplicated"] == scenario["out_of_order"] == 0
        assert 0 < scenario["latency_ms"]["p50"] <= scenario["latency_ms"]["p99"] <= scenario["latency_ms"]["max"]
        assert {"gateway", "worker", "postgres", "valkey", "load_generator"} <= set(scenario["cpu"])
    assert plain["verdict"]["accepted_entries"] == plain["verdict"]["received_entries"]
    assert echo["echoes_per_s"] > 0


@pytest.fixture
def reachable() -> Iterator[Path]:
    """An empty directory that PostgreSQL's user can reach: pytest's own are closed to it."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o711)
    yield place
    shutil.rmtree(place)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_bench_that_is_ended_early_leaves_no_process_behind(number: signal.Signals, reachable: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "loadtest", "bench", "--devices", "2", "--seconds", "100"],
        env=environment() | {"TMPDIR": str(reachable)},
        cwd=TREE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as running:
        # up, PostgreSQL and its processes, Valkey, gateway, worker
        await eventually(lambda: len(tree(running.pid)) >= 10, within_seconds=30.0)
        started = tree(running.pid)
        running.send_signal(number)
        assert running.wait(timeout=60.0) == (130 if number is signal.SIGTERM else -number)
    await eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), within_seconds=30.0)
    assert number is signal.SIGKILL or not list(reachable.iterdir())


@pytest.mark.slow
def test_a_gateway_killed_under_traffic_loses_nothing_and_everybody_comes_back() -> None:
    (storm,) = bench("--scenario", "storm", "--devices", "60")["scenarios"]
    assert storm["ok"] is True
    assert storm["lost"] == storm["duplicated"] == 0
    assert storm["attempts"] >= 60
    assert storm["verdict"]["accepted_entries"] > 0


@pytest.mark.slow
def test_a_long_cycle_says_what_clean_up_costs_and_how_each_part_went() -> None:
    (scenario,) = bench("--scenario", "cycle-long", "--devices", "20", "--seconds", "10")["scenarios"]
    assert len(scenario["parts"]) == 1  # one a minute
    assert set(scenario["cleanup"]) == {"worker_cores", "sessions_cores", "autovacuum_share", "deleted_per_s"}
    assert scenario["cleanup"]["worker_cores"] > 0
    assert "clean-up:" in scenario["facts"]


@pytest.mark.slow
def test_a_device_an_envelope_and_a_message_have_their_price() -> None:
    report = bench("--scenario", "costs", "--seconds", "4")
    (scenario,), (goal,) = report["scenarios"], report["goals"]
    assert (goal["bound"], goal["must"]) == ("≥ 0.99", True)  # of both rates
    costs = scenario["costs"]
    assert costs["device_disk_bytes"] > 200
    assert costs["envelope_disk_bytes"] > 1_024
    assert costs["message_wal_bytes"] > 1_024
    assert costs["message_records_bytes"] > 0
    assert {"gateway", "postgres"} <= set(costs["message_cpu_us"])


@pytest.mark.slow
def test_a_connection_costs_more_with_tls_and_it_is_said_how_much() -> None:
    report = bench("--scenario", "idle-tls", "--devices", "200")
    (scenario,), (goal,) = report["scenarios"], report["goals"]
    assert (goal["bound"], goal["must"]) == ("≤ 0.1", True)  # of a core
    assert 1_000 < scenario["resident_bytes_per_connection"] < 1_000_000


def test_the_pgbench_script_calls_the_submit_that_the_store_calls() -> None:
    calls = re.compile(r"\bsubmit_\w+_v\d+")
    denominator = calls.findall((TREE / "loadtest" / "pgbench" / "submit.sql").read_text())
    store = calls.findall((TREE / "store" / "sql" / "submit.sql").read_text())
    # What a batch without repeats and refusals goes through, as those of `cycle` are.
    assert set(denominator) == {"submit_plain_v1"} <= set(store)
