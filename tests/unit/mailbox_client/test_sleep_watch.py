"""A machine's sleep is noticed by the time that passed outside the monotonic clock."""

from __future__ import annotations

import time

import pytest

from mailbox_client.sleep_watch import SleepWatch, away_ms


def test_a_sleep_is_told_once() -> None:
    away = [0]
    watch = SleepWatch(lambda: away[0])
    assert not watch.slept()
    away[0] += 60_000
    assert watch.slept()
    assert not watch.slept()


def test_clocks_that_drift_apart_a_little_are_no_sleep() -> None:
    away = [0]
    watch = SleepWatch(lambda: away[0])
    for _ in range(100):
        away[0] += 500
        assert not watch.slept()


def test_a_clock_that_is_set_back_is_no_sleep() -> None:
    away = [0]
    watch = SleepWatch(lambda: away[0])
    away[0] -= 3_600_000
    assert not watch.slept()
    away[0] += 60_000
    assert watch.slept()


@pytest.mark.parametrize("has_boottime", [True, False])
def test_while_awake_both_clocks_move_together(monkeypatch: pytest.MonkeyPatch, has_boottime: bool) -> None:
    if not has_boottime:
        monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    first = away_ms()
    assert abs(away_ms() - first) < 1_000


def test_without_a_clock_that_counts_sleep_the_wall_clock_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    wall = [10**18]
    monkeypatch.setattr(time, "time_ns", lambda: wall[0])
    watch = SleepWatch()
    wall[0] += 60 * 10**9
    assert watch.slept()
