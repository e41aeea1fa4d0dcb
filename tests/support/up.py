"""Runs the real `mailboxd up` in a directory of its own, and sees what it leaves behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.command import command_line, environment

READY_WITHIN_S: Final = 120.0
STOP_WITHIN_S: Final = 45.0


class Up:
    """One `mailboxd up` that is ready; `report` is its `--json` line."""

    def __init__(self, process: subprocess.Popen[str], report: dict[str, Any]) -> None:
        self.process = process
        self.report = report

    @property
    def pids(self) -> list[int]:
        """Of everything that it runs."""
        pids = self.report["pids"]
        return [*pids["gateways"], pids["worker"], pids["postgres"], pids["valkey"]]

    def get(self, path: str, *, url: str | None = None) -> Any:
        with urllib.request.urlopen((url or self.report["url"]) + path, timeout=10) as answer:
            return json.load(answer)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(STOP_WITHIN_S)


@contextmanager
def running_up(
    data_dir: Path, *options: str, settings: Mapping[str, str] | None = None, log: Path | None = None
) -> Iterator[Up]:
    """Start it on free ports, wait until it is ready, and kill what is left at the end."""
    arguments = command_line("up", "--data-dir", str(data_dir), "--port", "0", "--ops-port", "0", "--json", *options)
    with open(log or os.devnull, "ab") as errors:
        process = subprocess.Popen(
            arguments, env=environment(settings), stdout=subprocess.PIPE, stderr=errors, text=True
        )
    assert process.stdout is not None
    try:
        readable, _, _ = select.select([process.stdout], [], [], READY_WITHIN_S)
        line = process.stdout.readline() if readable else ""
        assert line, f"mailboxd up ended or was not ready in time (exit code {process.poll()})"
        yield Up(process, json.loads(line))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        process.stdout.close()


def is_running(pid: int) -> bool:
    """Whether there is such a process that is not merely waiting to be reaped."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def until(holds: Callable[[], bool], *, within_s: float = 60.0, what: str = "") -> None:
    """`eventually` for tests that have no event loop."""
    deadline = time.monotonic() + within_s
    pause = select.epoll()  # waits for nothing, only for its time
    try:
        while not holds():
            assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
            pause.poll(0.05)
    finally:
        pause.close()
