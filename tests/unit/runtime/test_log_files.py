"""A log file keeps no line longer than it was told to, and no more than its bound."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime import log_files
from runtime.log_files import PARTS, RetainedLogFile

RETENTION_S = 86_400


class Host:
    """The host's clock as the log file reads it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.time()  # files carry the real one
        monkeypatch.setattr(log_files.time, "time", lambda: self.now)
        monkeypatch.setattr(log_files.time, "time_ns", lambda: int(self.now * 1_000_000_000))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


@pytest.fixture
def log(tmp_path: Path, host: Host) -> Iterator[RetainedLogFile]:
    handler = RetainedLogFile(tmp_path / "x.log", retention_s=RETENTION_S)
    yield handler
    handler.close()


def write(log: RetainedLogFile, text: str) -> None:
    log.emit(logging.LogRecord("x", logging.INFO, "", 0, text, None, None))


def everything_in(directory: Path) -> str:
    return "".join(path.read_text() for path in directory.iterdir())


def test_a_line_is_there_at_once(log: RetainedLogFile, tmp_path: Path) -> None:
    write(log, "hello")
    assert (tmp_path / "x.log").read_text() == "hello\n"


def test_a_line_is_gone_when_its_time_is_over(log: RetainedLogFile, host: Host, tmp_path: Path) -> None:
    begin = host.now
    for hour in range(48):
        write(log, f"line-{hour}-end")
        os.utime(tmp_path / "x.log", (host.now, host.now))
        host.now += 3_600
        log.sweep()
        kept = everything_in(tmp_path)
        for earlier in range(hour + 1):
            age = host.now - (begin + earlier * 3_600)
            if age > RETENTION_S:
                assert f"line-{earlier}-end" not in kept
            if age < RETENTION_S - 2 * RETENTION_S / PARTS:
                assert f"line-{earlier}-end" in kept


def test_a_shorter_retention_holds_from_the_next_sweep_on(log: RetainedLogFile, host: Host, tmp_path: Path) -> None:
    write(log, "old")
    os.utime(tmp_path / "x.log", (host.now, host.now))
    host.now += 7_200
    log.set_retention(3_600)
    log.sweep()
    assert "old" not in everything_in(tmp_path)


def test_the_disk_is_bounded_by_dropping_the_oldest(
    log: RetainedLogFile, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "PART_BYTES_MAX", 10)
    monkeypatch.setattr(log_files, "PARTS_MAX", 3)
    for number in range(10):
        write(log, f"line number {number}")
        host.now += 1
    log.sweep()
    kept = everything_in(tmp_path)
    assert "number 9" in kept
    assert "number 0" not in kept
    assert len(list(tmp_path.iterdir())) == 4


def test_a_second_run_goes_on_with_the_same_file(tmp_path: Path, host: Host) -> None:
    for text in ("one", "two"):
        handler = RetainedLogFile(tmp_path / "y.log", retention_s=RETENTION_S)
        write(handler, text)
        handler.close()
    assert everything_in(tmp_path) == "one\ntwo\n"
