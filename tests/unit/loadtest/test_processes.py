"""What a process tree uses is read from /proc, descendants included."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from loadtest import processes
from loadtest.processes import Meter, tree, usage

BURN = "import subprocess, sys, time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
WAIT = "print('ready', flush=True); sys.stdin.read()"


def test_a_tree_holds_the_process_and_its_living_descendants() -> None:
    child_code = f"import sys; {WAIT}"
    parent_code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child_code!r}])"
    parent = subprocess.Popen([sys.executable, "-c", parent_code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        parent.stdout.readline()
        found = tree(parent.pid)
        assert found[0] == parent.pid
        assert len(found) == 2
        assert usage(found).resident_bytes > usage([parent.pid]).resident_bytes > 1_000_000
    finally:
        parent.communicate(timeout=10)
    assert tree(parent.pid) == []


def test_cpu_of_children_that_have_ended_is_counted() -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}]); {WAIT}"
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert usage(tree(parent.pid)).cpu_seconds >= 0.28
    finally:
        parent.communicate(timeout=10)


def test_a_meter_tells_cores_and_cpu_per_thousand_messages() -> None:
    meter = Meter({"load_generator": (os.getpid(),)})
    meter.start()
    end = os.times().user + 0.2
    while os.times().user < end:
        pass
    report = meter.stop(messages=1_000)["load_generator"]
    assert report["cpu_s_per_1000"] >= 0.18
    assert 0 < report["cores"] <= 1.5
    assert report["resident_bytes"] > 1_000_000


def test_a_meter_starts_without_the_walk_through_memory_that_would_hold_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def walked(pid: int) -> int:
        raise AssertionError(f"the memory of {pid} was walked under traffic")

    meter = Meter({"load_generator": (os.getpid(),)})
    with monkeypatch.context() as under_traffic:
        under_traffic.setattr(processes, "_resident_bytes", walked)
        meter.start()
    assert meter.stop(messages=1)["load_generator"]["resident_bytes"] > 1_000_000


def test_a_process_of_two_roots_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    children = {1: [2, 3], 2: [4]}
    monkeypatch.setattr(processes, "_children", lambda: children)
    monkeypatch.setattr(processes, "_stat", lambda pid: ["S", "0", *["0"] * 9, "100", "0", "0", "0"])
    monkeypatch.setattr(processes, "_TICKS_PER_SECOND", 100)
    meter = Meter({"both": (1, 2)})
    meter.start()
    monkeypatch.setattr(processes, "_stat", lambda pid: ["S", "0", *["0"] * 9, "200", "0", "0", "0"])
    assert meter.stop(messages=1_000)["both"]["cpu_s_per_1000"] == 4.0  # four processes, a second each


def test_a_role_that_stands_alone_does_not_count_its_children() -> None:
    meter = Meter({"load_generator": (os.getpid(),)}, alone=["load_generator"])
    meter.start()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert meter.stop(messages=1_000)["load_generator"]["cpu_s_per_1000"] < 0.25
