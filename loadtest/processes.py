"""The server's processes: CPU time and memory, read from /proc, and that none of them outlives us."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PROC: Final = Path("/proc")
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class Usage:
    """What one role (a process with all its descendants) has used so far."""

    cpu_seconds: float
    resident_bytes: int  # proportional: memory shared between processes of the role counts once


def tree(root: int) -> list[int]:
    """The process and its living descendants; empty when it is gone."""
    return _family([root], _children())


def cpu_seconds(pids: Iterable[int], *, ended_children: bool = True) -> float:
    """Processor time of these processes, and of their children that have ended and were waited for. Cheap to ask."""
    ticks = 0
    for pid in pids:
        stat = _stat(pid)
        if stat is not None:
            ticks += sum(int(field) for field in stat[11 : 15 if ended_children else 13])
    return ticks / _TICKS_PER_SECOND


def usage(pids: Iterable[int]) -> Usage:
    """Used by these processes, and by their children that have ended and were waited for.

    The kernel walks all their memory for it: a hundred milliseconds for some hundred MiB, in which a caller's event
    loop stands still.
    """
    pids = list(pids)
    return Usage(cpu_seconds(pids), sum(_resident_bytes(pid) for pid in pids if _stat(pid) is not None))


def descriptors(pids: Iterable[int]) -> int:
    """Open files of these processes, as far as we may look."""
    found = 0
    for pid in pids:
        try:
            found += sum(1 for _ in (_PROC / str(pid) / "fd").iterdir())
        except OSError:
            continue
    return found


class Meter:
    """Measures roles between two moments. A role is one or more root processes with their descendants.

    `alone` names roles without their descendants: the load generator, whose child is the server under test.
    """

    def __init__(self, roles: Mapping[str, Iterable[int]], *, alone: Iterable[str] = ()) -> None:
        self._roles = {role: tuple(pids) for role, pids in roles.items()}
        self._alone = frozenset(alone)
        self._before: dict[str, float] = {}
        self._started = 0.0

    def start(self) -> None:
        self._before = self._cpu_seconds()
        self._started = time.perf_counter()

    def stop(self, messages: int) -> dict[str, dict[str, float | int]]:
        """Per role: cores used, CPU seconds per 1,000 messages, resident bytes now (which takes its time to learn)."""
        seconds = time.perf_counter() - self._started
        after = self._cpu_seconds()
        report: dict[str, dict[str, float | int]] = {}
        for role in self._roles:
            used = after[role] - self._before[role]
            report[role] = {
                "cores": round(used / seconds, 3),
                "cpu_s_per_1000": round(used / messages * 1_000, 4) if messages else 0.0,
                "resident_bytes": self.resident_bytes(role),
            }
        return report

    def resident_bytes(self, role: str) -> int:
        return usage(self._members(role, _children())).resident_bytes

    def _cpu_seconds(self) -> dict[str, float]:
        children = _children()
        return {
            role: cpu_seconds(self._members(role, children), ended_children=role not in self._alone)
            for role in self._roles
        }

    def _members(self, role: str, children: Mapping[int, list[int]]) -> Iterable[int]:
        roots = self._roles[role]
        return roots if role in self._alone else _family(roots, children)


def _children() -> dict[int, list[int]]:
    """Who has which children now, in one look through /proc."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            stat = _stat(int(entry.name))
            if stat is not None:
                children.setdefault(int(stat[1]), []).append(int(entry.name))
    return children


def _family(roots: Iterable[int], children: Mapping[int, list[int]]) -> list[int]:
    found: dict[int, None] = {}
    waiting = [root for root in roots if _stat(root) is not None]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found[pid] = None
            waiting.extend(children.get(pid, ()))
    return list(found)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from `state` on: [0] state, [1] ppid, [11..14] utime stime cutime cstime."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def _resident_bytes(pid: int) -> int:
    try:
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # another user's process: take the resident set, shared pages counted in full
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def ends_with_us() -> Callable[[], None]:
    """For a child's start, between fork and exec: the kernel kills it when this process is gone, however it went."""
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arrange
