"""A long run's verdict: what is lost, slows down or grows fails it, and what only fills up to its level does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest.processes import descriptors
from loadtest.soak.history import Course, courses, failures
from loadtest.soak.plots import draw
from loadtest.soak.verdict import WATCHED, judge, thirds
from loadtest.soak.watch import TABLES, Sample, own_memory

MIB = 2**20
SECONDS = 300
PNG = b"\x89PNG\r\n\x1a\n"

Change = Callable[[float], float]


def level(_share: float) -> float:
    return 1.0


def growing(share: float) -> float:
    return 1.0 + 3 * share


def filling(share: float) -> float:
    """Up in the first third, level from there on."""
    return min(1.0, 0.2 + share * 3)


def a_history(**changes: Any) -> dict[str, Any]:
    faults = ("lost", "duplicated", "out_of_order", "unexpected", "corrupted", "refused_but_stored", "wrong_answer")
    return {**dict.fromkeys(faults, 0), "drained": True, "accepted_entries": 1_000, **changes}


def some_courses(*, p99: Change = level, rate: Change = level) -> dict[tuple[str, str], Course]:
    at = [float(second) for second in range(SECONDS)]
    course = Course(at, [50 * rate(s / SECONDS) for s in at], [5.0] * SECONDS, [40 * p99(s / SECONDS) for s in at])
    return dict.fromkeys(WATCHED, course)


def some_samples(**changes: Change) -> list[Sample]:
    """`changes`: memory, descriptors, outbox, or a table's name, with its course over the run."""

    def at(what: str, share: float, base: float) -> int:
        return round(base * changes.get(what, level)(share))

    return [
        Sample(
            at_s=second,
            memory_bytes={"gateway": at("memory", second / SECONDS, 100 * MIB)},
            descriptors={"gateway": at("descriptors", second / SECONDS, 200)},
            cpu_s={"gateway": second / 10},
            outbox_open=at("outbox", second / SECONDS, 600),
            table_bytes={table: at(table, second / SECONDS, 50 * MIB) for table in TABLES},
            dead_rows=dict.fromkeys(TABLES, 0),
        )
        for second in range(0, SECONDS, 3)
    ]


def failed_checks(verdict: dict[str, Any]) -> list[str]:
    return [check["what"] for check in verdict["checks"] if not check["ok"]]


def test_a_steady_run_is_good() -> None:
    verdict = judge([a_history(), a_history()], {}, some_courses(), some_samples())
    assert verdict["ok"], failed_checks(verdict)


@pytest.mark.parametrize("fault", ["lost", "duplicated", "out_of_order", "corrupted"])
def test_one_broken_promise_in_one_process_fails_it(fault: str) -> None:
    verdict = judge([a_history(), a_history(**{fault: 1})], {}, some_courses(), some_samples())
    assert failed_checks(verdict) == [fault]
    assert not verdict["ok"]


def test_failed_requests_undrained_mailboxes_and_silence_fail_it() -> None:
    verdict = judge([a_history()], {"WS SEND_ACK": 2}, some_courses(), some_samples())
    assert failed_checks(verdict) == ["failed requests"]
    verdict = judge([a_history(drained=False)], {}, some_courses(), some_samples())
    assert failed_checks(verdict) == ["load processes that did not drain"]
    assert "accepted messages" in failed_checks(judge([], {}, some_courses(), some_samples()))
    assert not judge([a_history()], {}, {}, some_samples())["ok"]
    assert not judge([a_history()], {}, some_courses(), [])["ok"]


def test_a_latency_that_drifts_and_a_rate_that_falls_fail_it() -> None:
    verdict = judge([a_history()], {}, some_courses(p99=lambda share: 1 + 2 * share), some_samples())
    assert failed_checks(verdict) == [f"{' '.join(key)}: p99 ms" for key in WATCHED]
    verdict = judge([a_history()], {}, some_courses(rate=lambda share: 1 - share / 2), some_samples())
    assert failed_checks(verdict) == [f"{' '.join(key)}: a second" for key in WATCHED]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("memory", "gateway: memory"),
        ("descriptors", "gateway: descriptors"),
        ("outbox", "open outbox intents"),
        ("envelopes", "envelopes: bytes"),
        ("mailboxes", "mailboxes: bytes"),
        ("outbox_events", "outbox_events: bytes"),
    ],
)
def test_what_grows_to_the_end_fails_it_and_what_fills_to_a_level_does_not(what: str, said: str) -> None:
    assert failed_checks(judge([a_history()], {}, some_courses(), some_samples(**{what: growing}))) == [said]
    assert judge([a_history()], {}, some_courses(), some_samples(**{what: filling}))["ok"]


def test_idempotency_records_may_grow_by_what_sends_need_and_no_more() -> None:
    histories = [a_history(accepted_entries=300_000)]
    assert judge(histories, {}, some_courses(), some_samples(idempotency_records=growing))["ok"]
    verdict = judge([a_history(accepted_entries=10_000)], {}, some_courses(), some_samples(idempotency_records=growing))
    assert failed_checks(verdict) == ["idempotency_records, bytes for a SEND"]


def test_thirds_leave_the_warm_up_out() -> None:
    first, middle, last = thirds([float(second) for second in range(101)], list(range(101)))
    assert first[0] == 10
    assert (len(first), len(middle), len(last)) == (30, 30, 31)
    assert thirds([], []) == ([], [], [])


def test_locusts_history_is_read_by_kind_of_event(tmp_path: Path) -> None:
    history = tmp_path / "h.csv"
    history.write_text(
        "Timestamp,User Count,Type,Name,Requests/s,Failures/s,50%,99%\n"
        "1000,5,WS,delivery,0.000000,0.000000,N/A,N/A\n"
        "1001,5,WS,delivery,12.500000,0.000000,4,30\n"
        "1001,5,HTTP,SEND_ACK,1.500000,0.000000,9,11\n"
        "1003,5,WS,delivery,13.000000,0.000000,5,31\n"
    )
    found = courses(history)
    assert found[("WS", "delivery")] == Course([1, 3], [12.5, 13.0], [4, 5], [30, 31])
    assert found[("HTTP", "SEND_ACK")].p99_ms == [11]
    stats = tmp_path / "s.csv"
    stats.write_text("Type,Name,Failure Count\nWS,delivery,0\nWS,SEND_ACK,3\n,Aggregated,3\n")
    assert failures(stats) == {"WS SEND_ACK": 3}


def test_pictures_are_drawn_also_of_a_run_without_events(tmp_path: Path) -> None:
    for directory, course, samples in (
        (tmp_path / "full", some_courses(), some_samples()),
        (tmp_path / "empty", {}, []),
    ):
        directory.mkdir()
        pictures = draw(directory, course, samples)
        assert [picture.name for picture in pictures] == ["rate.png", "latency.png", "memory.png", "storage.png"]
        assert all(picture.read_bytes().startswith(PNG) for picture in pictures)


def test_a_process_is_looked_into_from_proc() -> None:
    assert own_memory(os.getpid()) > MIB
    assert own_memory(2**22 + 1) == 0
    before = descriptors([os.getpid()])
    with open(os.devnull), open(os.devnull):
        assert descriptors([os.getpid()]) >= before + 2
