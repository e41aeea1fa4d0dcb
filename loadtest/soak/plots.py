"""Pictures of a long run: rate, latency, memory, and what else must not grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from loadtest.soak.history import Course
from loadtest.soak.verdict import WATCHED
from loadtest.soak.watch import Sample

_Lines = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def draw(directory: Path, courses: Mapping[tuple[str, str], Course], samples: Sequence[Sample]) -> list[Path]:
    """Write rate.png, latency.png, memory.png and storage.png; returns their paths."""
    seen = {" ".join(key): courses[key] for key in WATCHED if key in courses}
    at = [sample.at_s for sample in samples]
    latency = {f"{name} p99": (course.at_s, course.p99_ms) for name, course in seen.items()}
    latency |= {f"{name} p50": (course.at_s, course.p50_ms) for name, course in seen.items()}
    roles = list(samples[0].memory_bytes) if samples else []
    tables = list(samples[0].table_bytes) if samples else []
    return [
        _picture(
            directory / "rate.png",
            "events a second",
            {name: (course.at_s, course.per_s) for name, course in seen.items()},
        ),
        _picture(directory / "latency.png", "ms, of the last 10 s each", latency),
        _picture(
            directory / "memory.png",
            "MiB that the processes have for themselves",
            {role: (at, [sample.memory_bytes[role] / 2**20 for sample in samples]) for role in roles},
        ),
        _picture(
            directory / "storage.png",
            "MiB on disk, indexes included",
            {table: (at, [sample.table_bytes[table] / 2**20 for sample in samples]) for table in tables},
        ),
    ]


def _picture(path: Path, unit: str, lines: _Lines) -> Path:
    figure = Figure(figsize=(10, 5))  # without pyplot: files only, no display is looked for
    axes = figure.subplots()
    for name, (at, values) in lines.items():
        axes.plot([second / 60 for second in at], values, label=name, linewidth=1)
    axes.set_xlabel("minutes")
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    if lines:
        axes.legend(loc="best", fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    return path
