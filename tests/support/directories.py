"""Where servers of a test keep their data: reachable for their user, and fast to make and to remove."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_PREFIX: Final = "mailboxd-test-"
_MEMORY: Final = "/dev/shm"
_MEMORY_BYTES_MIN: Final = 4 * 1024 * 1024 * 1024


def servers_directory() -> Path:
    """A new directory that its taker removes.

    Not below pytest's own: that is closed to the user that PostgreSQL runs as when the tests are root. In memory where
    there is enough of it: a database is 300 files, and making and removing one for each test cost ext4, which avoids
    inodes that were just freed, a third of the whole run.
    """
    place = _fastest_place()
    directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place))
    directory.chmod(0o711)
    _remove_what_killed_runs_left(directory.parent)
    return directory


def _remove_what_killed_runs_left(place: Path) -> None:
    """Memory would keep it until the machine starts again. A run's directories carry its pid."""
    for left in place.glob(f"{_PREFIX}*"):
        pid = left.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and left.stat().st_uid == os.geteuid():
            shutil.rmtree(left, ignore_errors=True)


def _fastest_place() -> str | None:
    try:
        memory = os.statvfs(_MEMORY)
    except OSError:
        return None
    enough = memory.f_bavail * memory.f_frsize >= _MEMORY_BYTES_MIN and os.access(_MEMORY, os.W_OK | os.X_OK)
    return _MEMORY if enough else None
