"""Keeps the gauges of PostgreSQL's health up to date: what warns before a migration or a full disk hurts."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from protocol.errors import MailboxError
from runtime.clock import Clock
from runtime.metrics import Metrics
from runtime.supervise import Progress
from store.database_health import DatabaseHealth, read_health
from store.postgres import Postgres

logger = structlog.get_logger(__name__)

ROUND_SECONDS: Final = 15.0


class DatabaseWatch:
    """Asks every 15 s. While the database does not answer the gauges keep their last values; readiness tells of that.

    PostgreSQL cannot say how much room its disk has. Shown is the room on the disks of this process's own directories:
    under `mailboxd up` the cluster lies on the same one; elsewhere the database host's own monitoring has to watch it.
    """

    def __init__(self, postgres: Postgres, metrics: Metrics, clock: Clock, *, directories: Sequence[Path]) -> None:
        self._postgres = postgres
        self._clock = clock
        self._directories = directories
        gauge = metrics.gauge
        self._lock_waits = gauge("database_lock_waits", "Sessions that wait for a lock.")
        self._lock_wait_oldest = gauge("database_lock_wait_oldest_seconds", "How long the longest of them waits.")
        self._transaction_oldest = gauge("database_transaction_oldest_seconds", "Age of the oldest open transaction.")
        self._standbys = gauge("database_standbys", "Standbys that are connected.")
        self._lag_seconds = gauge("database_replication_lag_seconds", "Of the last standby; NaN when not to be seen.")
        self._lag_bytes = gauge("database_replication_lag_bytes", "WAL that the last standby has yet to replay.")
        self._size = gauge("database_size_bytes", "Size of the database.")
        self._disk_free = gauge("disk_free_bytes", "Least room on the disks of this process's directories.")

    async def run(self, progress: Progress) -> None:
        while True:
            self._show_disk()
            try:
                self._show(await read_health(self._postgres))
            except MailboxError as error:
                logger.warning("database health unknown", code=error.code)
            progress()
            await self._clock.sleep(ROUND_SECONDS)

    def _show(self, health: DatabaseHealth) -> None:
        self._lock_waits.set(health.lock_waits)
        self._lock_wait_oldest.set(health.lock_wait_oldest_s)
        self._transaction_oldest.set(health.transaction_oldest_s)
        self._standbys.set(health.standbys)
        self._lag_seconds.set(math.nan if health.replication_lag_s is None else health.replication_lag_s)
        self._lag_bytes.set(math.nan if health.replication_lag_bytes is None else health.replication_lag_bytes)
        self._size.set(health.database_bytes)

    def _show_disk(self) -> None:
        room = [_free_bytes(directory) for directory in self._directories]
        self._disk_free.set(min((free for free in room if free is not None), default=math.nan))


def _free_bytes(directory: Path) -> int | None:
    try:
        disk = os.statvfs(directory)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize
