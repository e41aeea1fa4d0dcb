"""Metrics: one prefix, labels from a fixed list."""

from __future__ import annotations

import pytest

from runtime.metrics import LABELS, Metrics


def test_metrics_carry_the_prefix_and_are_exposed() -> None:
    metrics = Metrics()
    metrics.counter("submits", "Submits by outcome.", ["outcome"]).labels(outcome="accepted").inc(3)
    metrics.gauge("sessions_open", "Open sessions.").set(7)
    metrics.histogram("commit_seconds", "Time to commit.").observe(0.003)
    text, content_type = metrics.expose()
    assert b'mailboxd_submits_total{outcome="accepted"} 3.0' in text
    assert b"mailboxd_sessions_open 7.0" in text
    assert b'mailboxd_commit_seconds_bucket{le="0.004"} 1.0' in text
    assert b"process_resident_memory_bytes" in text
    assert content_type.startswith("text/plain")


def test_two_processes_worth_of_metrics_do_not_meet() -> None:
    one, other = Metrics(), Metrics()
    one.counter("x", "X.").inc()
    other.counter("x", "X.")
    assert b"mailboxd_x_total 0.0" in other.expose()[0]


@pytest.mark.parametrize("label", ["device_id", "ip", "path", "identity", "token"])
def test_a_label_that_could_name_somebody_is_refused(label: str) -> None:
    assert label not in LABELS
    with pytest.raises(ValueError, match=label):
        Metrics().counter("x", "X.", [label])
