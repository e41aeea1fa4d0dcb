"""Logs that PostgreSQL and Valkey hold open: no line outlives the retention, and the disk is bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from mailboxd import log_keeping
from mailboxd.log_keeping import AppendedLogs
from runtime.log_files import PARTS

HOUR_S = 3_600
RETENTION_S = (PARTS + 1) * HOUR_S  # so that a part lasts an hour
START = 1_800_000_000.0


def write(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_what_an_earlier_run_left_is_set_aside_at_once(tmp_path: Path) -> None:
    write(tmp_path / "postgres.log", "old line\n")
    AppendedLogs(tmp_path, []).sweep(RETENTION_S, START)
    assert (tmp_path / "postgres.log").read_text() == ""
    assert [part.read_text() for part in tmp_path.glob("postgres.log.*")] == ["old line\n"]


def test_no_line_is_there_after_its_retention(tmp_path: Path) -> None:
    logs = AppendedLogs(tmp_path, [])
    log = tmp_path / "postgres.log"
    log.touch()
    logs.sweep(RETENTION_S, START)
    write(log, "line\n")
    for hour in range(1, PARTS + 2):
        logs.sweep(RETENTION_S, START + 1 + hour * HOUR_S)
        kept = "".join(file.read_text() for file in tmp_path.iterdir())
        assert ("line" in kept) is (hour <= PARTS), f"hour {hour}"


def test_a_writer_that_holds_the_file_open_goes_on_at_its_end(tmp_path: Path) -> None:
    logs = AppendedLogs(tmp_path, [])
    with (tmp_path / "valkey.log").open("ab", buffering=0) as held:
        held.write(b"before\n")
        logs.sweep(RETENTION_S, START)
        held.write(b"after\n")
    assert (tmp_path / "valkey.log").read_text() == "after\n"


def test_a_file_that_its_writer_keeps_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "gateway-1.log", "line\n")
    AppendedLogs(tmp_path, ["gateway-1.log"]).sweep(RETENTION_S, START + 10 * RETENTION_S)
    assert (tmp_path / "gateway-1.log").read_text() == "line\n"


def test_parts_are_bounded_in_size_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_keeping, "PART_BYTES_MAX", 10)
    monkeypatch.setattr(log_keeping, "PARTS_MAX", 3)
    logs = AppendedLogs(tmp_path, [])
    for number in range(6):
        write(tmp_path / "postgres.log", f"line number {number}\n")
        logs.sweep(RETENTION_S, START + number)
    kept = [part.read_text() for part in sorted(tmp_path.glob("postgres.log.*"))]
    assert kept == ["line number 3\n", "line number 4\n", "line number 5\n"], "the oldest go first"
