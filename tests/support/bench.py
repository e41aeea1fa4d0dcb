"""Runs `python -m loadtest` as a person would, and reads its document."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.support.command import TREE, environment


def bench(*arguments: str, within_s: float = 110.0) -> dict[str, Any]:
    """The report of a run that lost nothing and met every bound that must hold; else the test fails."""
    done = subprocess.run(
        [sys.executable, "-m", "loadtest", "bench", "--json", *arguments],
        env=environment(),
        cwd=TREE,
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
    assert done.stdout, done.stderr[-2_000:]
    report: dict[str, Any] = json.loads(done.stdout)  # one document and nothing else
    missed = [goal for goal in report["goals"] if goal["must"] and not goal["met"]]
    faults = [scenario for scenario in report["scenarios"] if not scenario["ok"]]
    assert (missed, faults) == ([], []), [scenario["conditions"] for scenario in report["scenarios"]]
    assert done.returncode == 0
    return report
