"""Rates and latencies over time, from the history that Locust writes as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Course:
    """One kind of event over time: seconds since the start, events a second, latencies of the last 10 s each."""

    at_s: list[float] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)


def courses(history: Path) -> dict[tuple[str, str], Course]:
    """By (type, name) as Locust has them; rows without a percentile (nothing happened yet) are left out."""
    with history.open(newline="") as file:
        return read(csv.DictReader(file))


def read(rows: Iterable[dict[str, str]]) -> dict[tuple[str, str], Course]:
    """The same from rows."""
    found: dict[tuple[str, str], Course] = {}
    began: int | None = None
    for row in rows:
        at = int(row["Timestamp"])
        began = at if began is None else began
        if row["99%"] in ("", "N/A"):
            continue
        course = found.setdefault((row["Type"], row["Name"]), Course())
        course.at_s.append(at - began)
        course.per_s.append(float(row["Requests/s"]))
        course.p50_ms.append(float(row["50%"]))
        course.p99_ms.append(float(row["99%"]))
    return found


def failures(stats: Path) -> dict[str, int]:
    """What failed and how often, from Locust's table of totals."""
    with stats.open(newline="") as file:
        return {
            f"{row['Type']} {row['Name']}": int(row["Failure Count"])
            for row in csv.DictReader(file)
            if row["Name"] != "Aggregated" and int(row["Failure Count"])
        }
