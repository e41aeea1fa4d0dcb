"""A run on a machine that others use says so, and so does one that its load generator held back."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from loadtest import conditions
from loadtest.conditions import Processors, Watch, busy_before, disturbed, generator_warning

BURN = "import time; end = time.process_time() + 0.4\nwhile time.process_time() < end: pass\n"


def test_what_this_process_and_its_children_use_is_not_others_work(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter((Processors(100.0, 0.0), Processors(103.0, 0.0)))
    monkeypatch.setattr(conditions, "processors", lambda: next(readings))
    started = time.perf_counter()
    watch = Watch(server_is_ours=True)
    subprocess.run([sys.executable, "-c", BURN], check=True)
    seconds = time.perf_counter() - started
    others_s = watch.stop()["others_cores"] * seconds
    assert 2.0 <= others_s <= 2.65, "of 3 s that were busy the child's 0.4 s and what Python needs are ours"


def test_a_stranger_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "_ours", lambda: 0.0)  # as if none of it were ours
    watch = Watch(server_is_ours=True)
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    seen = watch.stop()
    assert seen["others_cores"] > 0.15
    assert any("other processes used" in text for text in seen["disturbed"])


def test_with_somebody_elses_server_others_cannot_be_told() -> None:
    assert Watch(server_is_ours=False).stop()["others_cores"] is None


@pytest.mark.parametrize(
    ("others", "steal", "said"), [(0.1, 0.0, 0), (None, 0.0, 0), (0.3, 0.0, 1), (0.0, 0.2, 1), (1.0, 1.0, 2)]
)
def test_small_disturbances_pass_and_large_ones_are_named(others: float | None, steal: float, said: int) -> None:
    assert len(disturbed(others, steal)) == said


def test_a_load_generator_near_its_one_core_is_named_the_bottleneck() -> None:
    assert generator_warning({"load_generator": {"cores": 0.4}}) == []
    assert generator_warning({}) == []
    (warning,) = generator_warning({"load_generator": {"cores": 0.93}})
    assert "bottleneck" in warning
    assert "0.93" in warning


def test_a_busy_machine_is_refused_by_its_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 9.0, 9.0))
    assert busy_before() is None
    monkeypatch.setattr(os, "getloadavg", lambda: (64.0, 0.0, 0.0))
    assert "64.00" in (busy_before() or "")
