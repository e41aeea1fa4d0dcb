"""The judgement on a long run: nothing lost, and at the end everything as it was in the middle.

The run is cut into thirds. Latency and rate of the last third are held against the first, after the devices have come.
What fills up to a level and then stays (memory, tables until clean-up has its pace) is held against the middle third.
Medians of a third, so that one bad moment of the machine is no drift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from loadtest.soak.history import Course
from loadtest.soak.watch import Sample

WARM_UP_SHARE: Final = 0.1  # of the run, before the first third begins to count
LATENCY_TIMES, LATENCY_MS = 1.5, 10.0
RATE_SHARE_MIN: Final = 0.9
MEMORY_TIMES, MEMORY_BYTES = 1.1, 8 * 2**20
DESCRIPTORS_TIMES, DESCRIPTORS = 1.1, 10
OUTBOX_TIMES, OUTBOX_ROWS = 1.25, 20
TABLE_TIMES, TABLE_BYTES = 1.2, 4 * 2**20
RECORD_BYTES_MAX: Final = 600  # of idempotency_records for one SEND: they live two hours and grow until then
WATCHED: Final = (("WS", "delivery"), ("WS", "SEND_ACK"), ("HTTP", "SEND_ACK"))


def judge(
    histories: Sequence[Mapping[str, Any]],
    failed: Mapping[str, int],
    courses: Mapping[tuple[str, str], Course],
    samples: Sequence[Sample],
) -> dict[str, Any]:
    """`ok`, and `checks`: what was compared, with both values, the bound and whether it held."""
    checks = [*_history(histories), _check("failed requests", 0, sum(failed.values()), 0)]
    for key in WATCHED:
        course = courses.get(key, Course())
        checks += _course(" ".join(key), course)
    checks += _resources(samples)
    accepted = sum(history["accepted_entries"] for history in histories)
    if samples and accepted:
        grown = samples[-1].table_bytes["idempotency_records"] - samples[0].table_bytes["idempotency_records"]
        checks.append(_check("idempotency_records, bytes for a SEND", 0, grown / accepted, RECORD_BYTES_MAX))
    return {"ok": all(check["ok"] for check in checks), "failed_requests": dict(failed), "checks": checks}


def _history(histories: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    faults = ("lost", "duplicated", "out_of_order", "unexpected", "corrupted", "refused_but_stored", "wrong_answer")
    checks = [_check(fault, 0, sum(history[fault] for history in histories), 0) for fault in faults]
    undrained = sum(not history["drained"] for history in histories)
    checks.append(_check("load processes that did not drain", 0, undrained, 0))
    accepted = sum(history["accepted_entries"] for history in histories)
    checks.append({"what": "accepted messages", "before": 0, "after": accepted, "bound": "> 0", "ok": accepted > 0})
    return checks


def _course(name: str, course: Course) -> list[dict[str, Any]]:
    first, _, last = thirds(course.at_s, course.p99_ms)
    if not first or not last:
        return [{"what": f"{name}: happened", "before": len(first), "after": len(last), "bound": "> 0", "ok": False}]
    before, after = median(first), median(last)
    first_rate, _, last_rate = thirds(course.at_s, course.per_s)
    rate_before, rate_after = median(first_rate), median(last_rate)
    return [
        _check(f"{name}: p99 ms", before, after, before * LATENCY_TIMES + LATENCY_MS),
        {
            "what": f"{name}: a second",
            "before": round(rate_before, 2),
            "after": round(rate_after, 2),
            "bound": f"≥ {rate_before * RATE_SHARE_MIN:.2f}",
            "ok": rate_after >= rate_before * RATE_SHARE_MIN,
        },
    ]


def _resources(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    if not samples:
        return [{"what": "samples", "before": 0, "after": 0, "bound": "> 0", "ok": False}]
    at = [sample.at_s for sample in samples]
    checks = []

    def grown(what: str, values: Sequence[float], times: float, more: float) -> None:
        _, middle, last = thirds(at, values)
        if middle and last:
            before = median(middle)
            checks.append(_check(what, before, median(last), before * times + more))

    for role in samples[0].memory_bytes:
        grown(f"{role}: memory", [s.memory_bytes[role] for s in samples], MEMORY_TIMES, MEMORY_BYTES)
        grown(f"{role}: descriptors", [s.descriptors[role] for s in samples], DESCRIPTORS_TIMES, DESCRIPTORS)
    grown("open outbox intents", [s.outbox_open for s in samples], OUTBOX_TIMES, OUTBOX_ROWS)
    for table in samples[0].table_bytes:
        if table != "idempotency_records":
            grown(f"{table}: bytes", [s.table_bytes[table] for s in samples], TABLE_TIMES, TABLE_BYTES)
    return checks


def thirds(at_s: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float], list[float]]:
    """The values of each third of the time that is left after the warm-up."""
    if not at_s:
        return [], [], []
    start = at_s[0] + (at_s[-1] - at_s[0]) * WARM_UP_SHARE
    step = (at_s[-1] - start) / 3
    parts: tuple[list[float], list[float], list[float]] = ([], [], [])
    for at, value in zip(at_s, values, strict=True):
        if at >= start:
            parts[min(2, int((at - start) / step) if step else 0)].append(value)
    return parts


def _check(what: str, before: float, after: float, at_most: float) -> dict[str, Any]:
    return {
        "what": what,
        "before": round(before, 2),
        "after": round(after, 2),
        "bound": f"≤ {at_most:,.2f}".removesuffix(".00"),
        "ok": after <= at_most,
    }
