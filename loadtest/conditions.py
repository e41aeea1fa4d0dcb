"""Who else used the processors during a run. A disturbed run says so itself, so that nobody trusts its figures."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

from loadtest.processes import cpu_seconds, tree

LOAD_PER_CORE_MAX: Final = 0.25  # one-minute load average before a run
OTHERS_CORES_MAX: Final = 0.15  # processor time of processes that do not belong to the run
STEAL_CORES_MAX: Final = 0.05  # what the host took from this machine
GENERATOR_CORES_MAX: Final = 0.85  # of the one core that the load generator's single thread can have

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_STAT: Final = Path("/proc/stat")


class Processors(NamedTuple):
    """Seconds since the machine started, over all cores."""

    busy_s: float
    steal_s: float


def processors() -> Processors:
    """What /proc/stat says. Time in a guest is part of user time already."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, _STAT.read_text().split(maxsplit=9)[1:9])
    return Processors(
        (user + nice + system + irq + softirq) / _TICKS_PER_SECOND,
        steal / _TICKS_PER_SECOND,
    )


def busy_before() -> str | None:
    """Why a run should not start now, or None."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > LOAD_PER_CORE_MAX * cores:
        return f"load average {load:.2f} on {cores} cores"
    return None


class Watch:
    """Measures from its making to `stop` what this process and everything it started used, and what others did."""

    def __init__(self, *, server_is_ours: bool) -> None:
        """`server_is_ours` false: the server under test was started by somebody else, and others cannot be told."""
        self._server_is_ours = server_is_ours
        self._started = perf_counter()
        self._before = processors()
        self._ours_before = _ours()

    def stop(self) -> dict[str, Any]:
        """Cores used by others and stolen by the host, and `disturbed`: what of it is too much, in words."""
        seconds = perf_counter() - self._started
        now = processors()
        steal = (now.steal_s - self._before.steal_s) / seconds
        others: float | None = None
        if self._server_is_ours:
            others = max(0.0, (now.busy_s - self._before.busy_s - (_ours() - self._ours_before)) / seconds)
        return {
            "others_cores": None if others is None else round(others, 3),
            "steal_cores": round(steal, 3),
            "disturbed": disturbed(others, steal),
        }


def disturbed(others_cores: float | None, steal_cores: float) -> list[str]:
    """What makes a run's figures doubtful."""
    found = []
    if others_cores is not None and others_cores > OTHERS_CORES_MAX:
        found.append(f"other processes used {others_cores:.2f} cores")
    if steal_cores > STEAL_CORES_MAX:
        found.append(f"the host took {steal_cores:.2f} cores")
    return found


def generator_warning(cpu: dict[str, dict[str, float]]) -> list[str]:
    """Whether the load generator was what held the figures back."""
    cores = cpu.get("load_generator", {}).get("cores", 0.0)
    if cores > GENERATOR_CORES_MAX:
        return [f"the load generator was the bottleneck: {cores:.2f} of the one core that it can use"]
    return []


def _ours() -> float:
    return cpu_seconds(tree(os.getpid()))
