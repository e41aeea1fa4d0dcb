"""`make soak` in small: Locust's master with two workers, phones that sleep, and a verdict that nothing grew."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import TREE, environment


@pytest.mark.slow
@pytest.mark.timeout(560)
def test_five_minutes_lose_nothing_and_nothing_grows_or_slows_down(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "loadtest", "soak", "--minutes", "5", "--users", "60", "--workers", "2",
            "--out", str(tmp_path), "--json",
        ],
        env=environment(), cwd=TREE, capture_output=True, text=True, timeout=540, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr[-2_000:]
    report = json.loads(done.stdout)
    assert [check for check in report["checks"] if not check["ok"]] == []
    assert report["load_processes_judged"] == 2  # both workers had users, and each its own history
    assert done.returncode == 0
    assert {picture.name for picture in tmp_path.glob("*.png")} == {
        "rate.png", "latency.png", "memory.png", "storage.png"
    }  # fmt: skip
    assert json.loads((tmp_path / "report.json").read_text())["ok"] is True
