"""Metrics of one process: a registry of its own, one prefix, and labels that cannot name a person.

A label's value comes from a small fixed set (a loop, a code, an outcome). Ids, addresses and free text have no place in
a label: `LABELS` lists the label names there are, and an unknown one is refused when the metric is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

PREFIX: Final = "mailboxd_"

LABELS: Final = frozenset(
    {
        "action",
        "cause",
        "code",
        "door",
        "frame",
        "kind",
        "loop",
        "method",
        "operation",
        "outcome",
        "provider",
        "reason",
        "result",
        "route",
        "stage",
        "state",
        "status",
        "table",
        "task",
        "window",
    }
)

# Seconds; from one commit to a reader that has to wait for a sweep.
LATENCY_BUCKETS: Final = (0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
# Entries in one transaction.
BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """Makes and shows the metrics of this process. Names are given without the prefix, unit last."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
        """Only grows; shown with the suffix `_total`."""
        return Counter(PREFIX + name, help_text, _checked(labels), registry=self.registry)

    def gauge(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(PREFIX + name, help_text, _checked(labels), registry=self.registry)

    def histogram(
        self, name: str, help_text: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = LATENCY_BUCKETS
    ) -> Histogram:
        return Histogram(PREFIX + name, help_text, _checked(labels), registry=self.registry, buckets=buckets)

    def expose(self) -> tuple[bytes, str]:
        """The text for a scraper and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


def _checked(labels: Sequence[str]) -> Sequence[str]:
    if unknown := set(labels) - LABELS:
        raise ValueError(f"unknown metric labels {sorted(unknown)}: add them to LABELS if their values are a fixed set")
    return labels
