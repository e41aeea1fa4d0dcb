"""A log file that keeps no line longer than it was told to."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Final

PARTS: Final = 24
PART_SECONDS_MIN: Final = 60.0
PART_BYTES_MAX: Final = 64 * 1024 * 1024
PARTS_MAX: Final = 200  # of one process: with PART_BYTES_MAX the bound on disk


class RetainedLogFile(logging.Handler):
    """Writes to one file, sets it aside after a 24th of the retention, and deletes what is older than the rest.

    A line is therefore gone at most `retention_s` after it was written, provided `sweep` runs now and then (every
    process calls it about once a minute; a busy one does on its own, with its next line). Disk is bounded too: the
    oldest parts go first. A line that cannot be written is dropped, never raised into the caller.
    """

    def __init__(self, path: Path, *, retention_s: int) -> None:
        super().__init__()
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._part_seconds = 0.0
        self._keep_seconds = 0.0
        self.set_retention(retention_s)
        self._file = path.open("ab", buffering=0)
        self._started = os.fstat(self._file.fileno()).st_mtime if self._file.tell() else time.time()
        self.sweep()

    def set_retention(self, retention_s: int) -> None:
        """Take over a changed policy; the next sweep applies it."""
        self._part_seconds = max(PART_SECONDS_MIN, retention_s / (PARTS + 1))
        self._keep_seconds = max(0.0, retention_s - self._part_seconds)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._set_aside_if_due()
            self._file.write(self.format(record).encode("utf-8", "backslashreplace") + b"\n")
        except Exception:
            self.handleError(record)

    def sweep(self) -> None:
        """Set the current part aside when its time is over and delete parts that are too old or too many."""
        self.acquire()
        try:
            self._set_aside_if_due()
            oldest_kept = time.time() - self._keep_seconds
            newest_first = sorted(self._path.parent.glob(self._path.name + ".*"), reverse=True)
            for number, part in enumerate(newest_first):
                if number >= PARTS_MAX or part.stat().st_mtime < oldest_kept:
                    part.unlink(missing_ok=True)
        finally:
            self.release()

    def close(self) -> None:
        self._file.close()
        super().close()

    def _set_aside_if_due(self) -> None:
        size = self._file.tell()
        if size and (size >= PART_BYTES_MAX or time.time() - self._started >= self._part_seconds):
            self._file.close()
            self._path.rename(f"{self._path}.{time.time_ns():020d}")
            self._file = self._path.open("ab", buffering=0)
            self._started = time.time()
