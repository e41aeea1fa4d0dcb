"""`mailboxd demo` from a file to the same file at the other end, on real parts (it starts all of them itself)."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import command_line, environment, run
from tests.support.waiting import eventually

PLAYED = ("ok", "sent", "delivered", "opened", "acked", "woken", "reconciled", "latency_ms")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A text, a picture-like block of noise, an empty file."""
    contents = {"a.txt": b"one line\n" * 700, "b.bin": random.Random(1).randbytes(300_000), "empty": b""}
    paths = []
    for name, content in contents.items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(content)
    return paths


def played(data_dir: Path, *files: Path) -> dict[str, Any]:
    """Run the demo with --json to its end and return its last line."""
    done = run("demo", "--json", "--data-dir", str(data_dir), *map(str, files))
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert done.code == 0, (lines[-1:], done.err)
    assert len(lines) > 5
    result: dict[str, Any] = lines[-1]
    return result


def left_of(data_dir: Path) -> list[str]:
    """Processes that still have the directory in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                arguments = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(data_dir) in arguments:
                found.append(arguments.replace(b"\0", b" ").decode(errors="replace"))
    return found


def test_everything_that_is_sent_arrives_once_and_a_second_run_works_too(data_dir: Path, files: list[Path]) -> None:
    for run_of_two in (1, 2):
        result = played(data_dir, *files)
        assert set(PLAYED) <= set(result), run_of_two
        assert result["ok"] is True
        assert result["files"] == len(files)
        assert result["sent"] == result["delivered"] == result["opened"] == result["acked"] >= 16
        assert result["woken"] >= 1
        assert result["reconciled"] == 1
        assert 0 < result["latency_ms"]["p50"] <= result["latency_ms"]["p99"] <= result["latency_ms"]["max"]
        assert left_of(data_dir) == []


def test_without_files_it_sends_the_readme_and_the_licence(data_dir: Path) -> None:
    done = run("demo", "--data-dir", str(data_dir))
    assert done.code == 0, done.out
    assert "2 files opened and rebuilt; the hashes are equal" in done.out
    assert "first device's mailbox is empty" in done.out
    assert "second device's mailbox is empty" in done.out


def test_a_missing_file_is_named_before_anything_starts(data_dir: Path, tmp_path: Path) -> None:
    done = run("demo", "--data-dir", str(data_dir), str(tmp_path / "nowhere.txt"))
    assert (done.code, done.err) == (1, f"mailboxd: {tmp_path / 'nowhere.txt'}: No such file or directory\n")
    assert not data_dir.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_interrupted_it_stops_everything_that_it_started(
    data_dir: Path, files: list[Path], number: signal.Signals
) -> None:
    with subprocess.Popen(
        command_line("demo", "--json", "--data-dir", str(data_dir), *map(str, files)),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "envelopes" in line:  # the play has begun: every process runs
                break
        assert left_of(data_dir) != []
        demo.send_signal(number)
        _, complaints = demo.communicate(timeout=110)
    assert demo.returncode != 0
    assert "Traceback" not in complaints
    assert left_of(data_dir) == []


def test_interrupted_twice_it_is_in_a_hurry_and_still_leaves_nothing(data_dir: Path, files: list[Path]) -> None:
    with subprocess.Popen(
        command_line("demo", "--json", "--data-dir", str(data_dir), *map(str, files)),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "envelopes" in line:
                demo.send_signal(signal.SIGINT)
            if "stopping" in line:  # it says so, for it takes seconds
                demo.send_signal(signal.SIGINT)
                break
        _, complaints = demo.communicate(timeout=110)
    assert demo.returncode != 0
    assert complaints == ""
    asyncio.run(eventually(lambda: left_of(data_dir) == []))
