"""The figures that the seeds and the goals ask for, measured. On a machine that does other things they say little."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import bench
from tests.support.command import TREE, environment


def goals(report: dict[str, Any]) -> dict[str, set[str]]:
    """By scenario, the bounds that were judged and must hold. `bench` has seen that all are met."""
    judged: dict[str, set[str]] = {}
    for goal in report["goals"]:
        if goal["must"]:
            judged.setdefault(goal["scenario"], set()).add(goal["bound"])
    return judged


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_seed000_7_1_five_hundred_a_second_and_twice_that_arrive_within_25_ms_and_nothing_piles_up() -> None:
    report = bench("--scenario", "paced-500", "--scenario", "paced-1000", within_s=230)
    half, full = report["scenarios"]
    assert (half["rate_per_s"], full["rate_per_s"]) == (500, 1_000)
    assert (half["settings"]["seconds"], full["settings"]["seconds"]) == (60.0, 60.0)
    assert goals(report) == {name: {"≤ 25", "≥ 0.99", "≤ 5"} for name in ("paced-500", "paced-1000")}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_seed002_4_a_thousand_backlogs_at_once_are_caught_up_within_10_s_beside_500_messages_a_second() -> None:
    report = bench("--scenario", "backlog-many", within_s=230)
    (scenario,) = report["scenarios"]
    assert (scenario["devices"], scenario["envelopes_each"], scenario["beside_per_s"]) == (1_000, 100, 500)
    assert goals(report) == {"backlog-many": {"≤ 10000", "≥ 400"}}
    assert scenario["verdict"]["received_entries"] >= 100_000


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_million_stored_envelopes_slow_nobody_down() -> None:
    report = bench("--scenario", "growth", "--stored", "0,1000000", within_s=410)
    assert goals(report) == {"growth": {"≥ 0.85"}}
    empty, full = report["scenarios"][0]["steps"]
    assert full["stored"] == 1_000_000
    assert full["table_bytes"] - empty["table_bytes"] > 1_000_000 * 1_024


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_ten_thousand_connections_cost_little_and_all_come_back_after_the_gateway_died() -> None:
    report = bench("--scenario", "idle", "--scenario", "storm", within_s=410)
    idle, storm = report["scenarios"]
    assert idle["devices"] == storm["devices"] == 10_000
    assert goals(report) == {"idle": {"≤ 10240", "≤ 0.1"}, "storm": {"≤ 5000"}}
    assert idle["descriptors"]["gateway"] <= 18_000
    assert idle["descriptors"]["load_generator"] <= 18_000
    assert storm["problems"] == {}
    assert storm["lost"] == 0


@pytest.mark.slow
def test_a_profile_names_functions_and_statements_and_draws_the_flames(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadtest", "profile", "--seconds", "6", "--devices", "50", "--out", str(tmp_path)],
        env=environment(), cwd=TREE, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    assert {Path(line) for line in done.stdout.splitlines()} == set(tmp_path.iterdir())
    assert "<svg" in (tmp_path / "gateway.svg").read_text()
    assert "gateway/ws_connection.py" in (tmp_path / "functions.md").read_text()
    statements = (tmp_path / "queries.md").read_text()
    assert "submit_" in statements
    assert "| inside |" in statements  # what a function does is seen through
