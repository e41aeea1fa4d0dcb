"""What the figures are held against. A `must` fails its run, a goal is shown beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Bound:
    """One figure of a scenario's result (`path` leads to it; "ratios" begins one of the whole run) and its bound."""

    scenario: str
    what: str
    path: tuple[str, ...]
    at_most: float | None = None
    at_least: float | None = None
    must: bool = False

    def met_by(self, value: float) -> bool:
        if self.at_most is not None and value > self.at_most:
            return False
        return self.at_least is None or value >= self.at_least

    @property
    def text(self) -> str:
        """The bound in words."""
        return f"≤ {self.at_most:g}" if self.at_most is not None else f"≥ {self.at_least:g}"


_P50, _P99 = ("latency_ms", "p50"), ("latency_ms", "p99")
_GROWTH: Final = ("growth_ms",)
_SINGLE: Final = ("ratios", "cycle / pgbench-single")

BOUNDS: Final[Sequence[Bound]] = (
    Bound("cycle", "confirmed/s", ("confirmed_per_s",), at_least=15_000),
    Bound("cycle", "p99 ms", _P99, at_most=50),
    Bound("cycle", "over single-transaction submits: defect below", _SINGLE, at_least=1.2, must=True),
    Bound("cycle", "over single-transaction submits", _SINGLE, at_least=2.0),
    Bound("cycle-echo", "of the rate without echo", ("ratios", "cycle-echo / cycle"), at_least=0.6),
    *(
        bound
        for scenario in ("light-2", "light-10")
        for bound in (
            Bound(scenario, "p50 ms", _P50, at_most=2),
            Bound(scenario, "p99 ms", _P99, at_most=6),
        )
    ),
    *(
        bound
        for scenario in ("paced", "paced-500", "paced-1000")
        for bound in (
            Bound(scenario, "p99 ms", _P99, at_most=25, must=True),
            Bound(scenario, "planned messages that were confirmed", ("kept_pace",), at_least=0.99, must=True),
            Bound(scenario, "growth: last quarter's p99, ms over twice the first's", _GROWTH, at_most=5, must=True),
        )
    ),
    Bound("backlog-one", "drained and acked, s", ("drain_s",), at_most=0.5),
    Bound("backlog-many", "login to caught_up p99 ms", ("caught_up_ms", "p99"), at_most=10_000, must=True),
    Bound("backlog-many", "login to caught_up p99 ms", ("caught_up_ms", "p99"), at_most=2_000),
    Bound("backlog-many", "messages/s beside them", ("beside_confirmed_per_s",), at_least=400, must=True),
    Bound("idle", "bytes resident a connection", ("resident_bytes_per_connection",), at_most=10_240, must=True),
    Bound("idle", "gateway cores", ("cpu", "gateway", "cores"), at_most=0.1, must=True),
    Bound("idle-tls", "gateway cores", ("cpu", "gateway", "cores"), at_most=0.1, must=True),
    Bound("costs", "planned messages that were confirmed", ("kept_pace",), at_least=0.99, must=True),
    Bound("storm", "WELCOME p99 ms after the admitted upgrade", ("welcome_ms", "p99"), at_most=5_000, must=True),
    Bound("online-worker", "worker cores", ("worker_cores",), at_most=0.03, must=True),
    Bound("wake-delay", "SEND to push request p99 ms", ("push_ms", "p99"), at_most=250, must=True),
    Bound("expiry", "p99 during the clean-up over before it", ("ratio_p99",), at_most=2.0, must=True),
    Bound("growth", "cycle rate, full over empty", ("ratio_cycle",), at_least=0.85, must=True),
    Bound("growth", "pull rate, full over empty", ("ratio_pull",), at_least=0.85, must=True),
)  # fmt: skip


def judge(results: Sequence[Mapping[str, Any]], ratios: Mapping[str, float]) -> list[dict[str, Any]]:
    """Every bound whose figure is there: scenario, what, bound, measured, met, must."""
    judged = []
    for bound in BOUNDS:
        for result in results:
            value = _found(bound.path, result, ratios) if result["name"] == bound.scenario else None
            if value is not None:
                judged.append(
                    {
                        "scenario": bound.scenario,
                        "what": bound.what,
                        "bound": bound.text,
                        "measured": value,
                        "met": bound.met_by(value),
                        "must": bound.must,
                    }
                )
                if bound.path[0] == "ratios":
                    break  # one for the whole run, also where the scenario ran twice
    return judged


def _found(path: tuple[str, ...], result: Mapping[str, Any], ratios: Mapping[str, float]) -> float | None:
    if path[0] == "ratios":
        return ratios.get(path[1])
    value: Any = result
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if value is None else float(value)
