"""Figures against their bounds: what must hold fails a run, a goal is shown; what is not there is not judged."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.bench import FIGURES, SCENARIOS
from loadtest.goals import BOUNDS, Bound, judge


def cycle(**figures: Any) -> dict[str, Any]:
    return {"name": "cycle", "confirmed_per_s": 15_000.0, "latency_ms": {"p99": 50.0}, **figures}


def test_a_bound_itself_is_still_met() -> None:
    judged = judge([cycle()], {})
    assert [(goal["bound"], goal["met"]) for goal in judged] == [("≥ 15000", True), ("≤ 50", True)]
    assert not any(goal["must"] for goal in judged)


def test_past_it_it_is_not_met() -> None:
    assert not any(goal["met"] for goal in judge([cycle(confirmed_per_s=14_999.0, latency_ms={"p99": 50.02})], {}))


@pytest.mark.parametrize(("ratio", "defect", "goal"), [(1.19, False, False), (1.2, True, False), (2.0, True, True)])
def test_the_ratio_over_single_submits_has_a_defect_line_and_a_goal(ratio: float, defect: bool, goal: bool) -> None:
    twice = judge([cycle(), cycle()], {"cycle / pgbench-single": ratio})  # the ratio is the run's, and told once
    judged = [one for one in twice if "submits" in one["what"]]
    assert [(one["must"], one["met"]) for one in judged] == [(True, defect), (False, goal)]


@pytest.mark.parametrize(
    ("figures", "missed"),
    [
        ({"latency_ms": {"p99": 25.0}, "kept_pace": 1.0, "growth_ms": 0.0}, 0),
        ({"latency_ms": {"p99": 25.1}, "kept_pace": 1.0, "growth_ms": 0.0}, 1),
        ({"latency_ms": {"p99": 20.0}, "kept_pace": 0.9, "growth_ms": 0.0}, 1),
        ({"latency_ms": {"p99": 20.0}, "kept_pace": 1.0, "growth_ms": 5.5}, 1),
    ],
)
def test_paced_messages_must_come_in_time_all_of_them_and_no_later_at_the_end(
    figures: dict[str, Any], missed: int
) -> None:
    judged = judge([{"name": "paced-500", **figures}], {})
    assert len(judged) == 3
    assert sum(one["must"] and not one["met"] for one in judged) == missed


@pytest.mark.parametrize("bound", [bound for bound in BOUNDS if bound.must], ids=lambda b: f"{b.scenario}: {b.what}")
def test_every_bound_that_must_hold_can_be_missed(bound: Bound) -> None:
    edge = bound.at_most if bound.at_most is not None else bound.at_least
    assert edge is not None
    past = edge * 1.01 if bound.at_most is not None else edge * 0.99
    ratios = {bound.path[1]: past} if bound.path[0] == "ratios" else {}
    figure: Any = past
    for key in reversed(bound.path):
        figure = {key: figure}
    judged = judge([{"name": bound.scenario, **figure}], ratios)
    assert [
        (one["met"], one["must"]) for one in judged if one["what"] == bound.what and one["bound"] == bound.text
    ] == [(False, True)]


def test_what_was_not_measured_is_not_judged() -> None:
    assert judge([{"name": "idle"}, {"name": "storm", "welcome_ms": {"p99": None}}], {}) == []


def test_every_bound_and_every_figure_belongs_to_a_scenario() -> None:
    assert {bound.scenario for bound in BOUNDS} <= set(SCENARIOS)
    assert set(FIGURES) <= set(SCENARIOS)
