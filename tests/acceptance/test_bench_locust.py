"""Locust users of every kind exchange messages with a real server, none of them fails."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import TREE, environment
from tests.support.up import running_up


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_sockets_phones_and_http_users_send_and_receive_without_a_failure(data_dir: Path, tmp_path: Path) -> None:
    with running_up(data_dir, settings={"MAILBOXD_PUSH_PRIVATE_NETWORKS_ALLOWED": "127.0.0.0/8"}) as server:
        done = subprocess.run(
            [
                sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--host", server.report["url"],
                "--headless", "--users", "10", "--spawn-rate", "10", "--run-time", "15s",
                "--csv", str(tmp_path / "run"),
            ],
            env=environment() | {"MAILBOX_LOAD_VERDICTS": str(tmp_path)},
            cwd=TREE, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    with (tmp_path / "run_stats.csv").open() as file:
        rows = {(row["Type"], row["Name"]): row for row in csv.DictReader(file)}
    for expected in (
        ("WS", "SEND_ACK"),
        ("HTTP", "SEND_ACK"),
        ("WS", "delivery"),
        ("WS", "ACK"),
        ("HTTP", "ACK"),
        ("HTTP", "caught_up"),
        ("PHONE", "caught_up"),
        ("PHONE", "wake push"),
    ):
        assert int(rows[expected]["Request Count"]) > 0, expected
    (verdict,) = (json.loads(path.read_text()) for path in tmp_path.glob("verdict-*.json"))
    assert verdict["ok"], verdict
    assert verdict["accepted_entries"] == verdict["handed_entries"] > 0
    assert {key: row["Failure Count"] for key, row in rows.items() if row["Failure Count"] != "0"} == {}
