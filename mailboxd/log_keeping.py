"""Under `mailboxd up`: no line of any log outlives the policy's `log_retention_s`, and logs cannot fill the disk.

The project's own processes keep their files themselves (`runtime.log_files`). PostgreSQL and Valkey hold theirs open
for appending, so these are copied aside and cut to nothing; the few lines that come in between are lost.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Final, NoReturn

import structlog

from protocol.errors import MailboxError
from runtime.clock import Clock
from runtime.log_files import PART_BYTES_MAX, PART_SECONDS_MIN, PARTS
from runtime.logs import SWEEP_SECONDS, sweep_files
from store.policy_rules import Policy, PolicyError

logger = structlog.get_logger(__name__)

PARTS_MAX: Final = 50  # of one file: with PART_BYTES_MAX the bound on disk


class AppendedLogs:
    """The log files in one directory that nobody else sets aside: all but those that `kept_by_writer` names.

    What an earlier run left is set aside at once, since nobody knows how old its first line is.
    """

    def __init__(self, directory: Path, kept_by_writer: Collection[str]) -> None:
        self._directory = directory
        self._kept_by_writer = frozenset(kept_by_writer)
        self._part_began: dict[str, float] = {}

    def sweep(self, retention_s: int, now: float) -> None:
        """Set aside what is due and delete what is too old or too much. `now`: seconds since 1970."""
        part_seconds = max(PART_SECONDS_MIN, retention_s / (PARTS + 1))
        for log in self._directory.glob("*.log"):
            if log.name not in self._kept_by_writer:
                self._set_aside_if_due(log, part_seconds, now)
                parts = [part for part in self._directory.glob(f"{log.name}.*") if part.suffix[1:].isdigit()]
                for number, part in enumerate(sorted(parts, key=_set_aside_at, reverse=True)):
                    if number >= PARTS_MAX or _set_aside_at(part) <= now - max(0.0, retention_s - part_seconds):
                        part.unlink(missing_ok=True)

    def _set_aside_if_due(self, log: Path, part_seconds: float, now: float) -> None:
        size = log.stat().st_size
        began = self._part_began.get(log.name, 0.0)
        if size and (size >= PART_BYTES_MAX or now - began >= part_seconds):
            shutil.copyfile(log, log.with_name(f"{log.name}.{int(now * 1e9):020d}"))
            with log.open("r+b") as file:
                file.truncate(0)
        if not size or now - began >= part_seconds:
            self._part_began[log.name] = now


def _set_aside_at(part: Path) -> float:
    """When it was set aside, as its name says, in seconds since 1970: no line in it is younger."""
    return int(part.suffix[1:]) / 1e9


async def keep_logs(logs: AppendedLogs, load_policy: Callable[[], Awaitable[Policy]], clock: Clock) -> NoReturn:
    """Sweep for ever, with the retention of the policy as it is now; ends only by cancellation."""
    retention_s = Policy().log_retention_s
    while True:
        try:
            retention_s = (await load_policy()).log_retention_s
        except (MailboxError, PolicyError) as error:
            logger.warning("policy not read; the last log retention stays", error=str(error))
        try:
            logs.sweep(retention_s, time.time())
        except OSError as error:
            logger.warning("logs not swept", error=str(error))
        sweep_files(retention_s)
        await clock.sleep(SWEEP_SECONDS)
