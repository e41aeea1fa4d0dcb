"""What waking and clean-up may cost, measured on a real server: ratios and shares, which hold on any machine."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from loadtest.scenarios.wakes import SLEEPERS
from tests.support.command import TREE, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def bench(*arguments: str) -> dict[str, Any]:
    """The scenario's result; its bounds decide the exit code as well."""
    done = subprocess.run(
        [sys.executable, "-m", "loadtest", "bench", "--json", *arguments],
        env=environment(),
        cwd=TREE,
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert done.returncode == 0, (done.stdout[-3_000:], done.stderr[-2_000:])
    (result,) = json.loads(done.stdout)["scenarios"]
    assert result["ok"] is True
    return dict(result)


def test_devices_that_are_online_cost_the_worker_less_than_3_percent_of_a_core() -> None:
    """At full load, for longer than a lease lives: it is renewed, and the intents of busy mailboxes come due."""
    result = bench("--scenario", "online-worker")
    assert result["seconds"] > 120
    assert 0 < result["worker_cores"] < 0.03


def test_a_push_request_follows_its_send_within_250_ms_where_the_worker_is_idle() -> None:
    result = bench("--scenario", "wake-delay")
    assert result["pushed"] == SLEEPERS
    assert result["push_ms"]["p99"] < 250


def test_a_million_rows_that_expire_at_once_do_not_double_the_p99_of_the_mail_beside_them() -> None:
    result = bench("--scenario", "expiry")
    assert (result["rows"], result["remaining"]) == (1_000_000, 0)
    assert result["ratio_p99"] <= 2.0
