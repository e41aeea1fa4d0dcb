"""Locust users of every kind exchange messages with a real server, none of them fails."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.command import TREE, environment
from tests.support.gateways import free_port
from tests.support.up import running_up
from tests.support.waiting import eventually


def rows_of_the_web_page(port: int) -> set[str]:
    """What Locust's own page shows figures of; nothing while it does not listen yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats/requests", timeout=5) as answer:
            return {row["name"] for row in json.load(answer)["stats"]}
    except OSError:
        return set()


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_sockets_phones_and_http_users_send_and_receive_without_a_failure(data_dir: Path, tmp_path: Path) -> None:
    log, port = tmp_path / "locust.log", free_port()
    with (
        running_up(data_dir, settings={"MAILBOXD_PUSH_PRIVATE_NETWORKS_ALLOWED": "127.0.0.0/8"}) as server,
        log.open("wb") as output,
    ):
        locust = subprocess.Popen(
            [
                sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--host", server.report["url"],
                "--autostart", "--autoquit", "0", "--web-host", "127.0.0.1", "--web-port", str(port),
                "--users", "10", "--spawn-rate", "10", "--run-time", "15s",
                "--csv", str(tmp_path / "run"),
            ],
            env=environment() | {"MAILBOX_LOAD_VERDICTS": str(tmp_path)},
            cwd=TREE, stdout=output, stderr=output,
        )  # fmt: skip
        try:
            await eventually(
                lambda: rows_of_the_web_page(port) >= {"SEND_ACK", "delivery", "ACK"},
                within_seconds=30,
                what="Locust's page shows what its users measure",
            )
            code = locust.wait(120)
        finally:
            locust.kill()
            locust.wait()
    assert code == 0, log.read_text()[-2_000:]
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
