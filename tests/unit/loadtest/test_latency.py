"""Percentiles out of counts."""

from __future__ import annotations

from loadtest.latency import Latencies


def test_percentiles_are_the_values_that_the_share_stayed_at_or_below() -> None:
    latencies = Latencies()
    for milliseconds in range(1, 101):
        latencies.add(milliseconds / 1_000)
    summary = latencies.summary()
    assert summary["max"] == 100
    assert 50 <= (summary["p50"] or 0) <= 50.02
    assert 99 <= (summary["p99"] or 0) <= 99.02


def test_what_takes_longer_than_the_scale_still_counts_and_shows_in_the_maximum() -> None:
    latencies = Latencies()
    latencies.add(0.001)
    latencies.add(3_600.0)
    assert latencies.count == 2
    assert latencies.summary()["max"] == 3_600_000.0


def test_nothing_measured_gives_no_figure() -> None:
    assert Latencies().summary() == {"p50": None, "p99": None, "max": None}


def test_merged_windows_give_the_percentiles_of_all_their_latencies() -> None:
    slow, fast = Latencies(), Latencies()
    for _ in range(50):
        slow.add(0.010)
        fast.add(0.001)
    fast.merge(slow)
    assert fast.count == 100
    assert fast.summary()["max"] == 10
    assert (fast.percentile_ms(0.5) or 0) <= 1.02
    assert (fast.percentile_ms(0.51) or 0) >= 10
