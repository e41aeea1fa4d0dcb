"""A clock of its own for one process: libfaketime (Debian's package `faketime`), stepped while the process runs.

Only the time of day is moved. The monotonic clock goes on, as it does on a host whose clock is set.
"""

from __future__ import annotations

from pathlib import Path

_LIBRARIES = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1")


class FakeClock:
    """Put `environment` into a process before its start; `step` it then. The file must be readable to its user."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.step(0)

    @property
    def environment(self) -> dict[str, str]:
        """Empty where libfaketime is not installed: see `is_there`."""
        library = _library()
        if library is None:
            return {}
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",  # seconds after which a step is seen
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    @staticmethod
    def is_there() -> bool:
        return _library() is not None

    def step(self, seconds: int) -> None:
        """From now on the time of day is so much later (negative: earlier) than the true one."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.chmod(0o644)
        new.rename(self._file)


def _library() -> Path | None:
    root = Path("/")
    return next((path for pattern in _LIBRARIES for path in root.glob(pattern[1:])), None)
