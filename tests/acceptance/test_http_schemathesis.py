"""Generated requests against the live server: what it answers is what its own document says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import environment, run
from tests.support.directories import servers_directory
from tests.support.http_account import HttpAccount
from tests.support.up import running_up

CONFIG = Path(__file__).with_name("schemathesis.toml")
EXAMPLES_PER_OPERATION = 5


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """At a place that the servers' user can reach."""
    parent = servers_directory()
    yield parent / "data"
    shutil.rmtree(parent, ignore_errors=True)


def test_schemathesis_finds_nothing(data_dir: Path, tmp_path: Path) -> None:
    with running_up(data_dir) as up:
        # Generated requests come faster than any app's.
        limits = ("submit_rate_per_device=0", "submit_rate_per_pair=0", "submit_rate_per_ip=0")
        assert run("admin", "policy", "set", "--data-dir", str(data_dir), *limits).code == 0
        url = up.report["url"]
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run", f"{url}/openapi.json"),
            *("--header", f"Authorization: Bearer {HttpAccount.register(url).token}"),
            *("--max-examples", str(EXAMPLES_PER_OPERATION), "--seed", "1", "--warnings", "off", "--no-color"),
        ]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "No issues found" in done.stdout
