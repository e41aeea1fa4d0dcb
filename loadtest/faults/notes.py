"""The history that a client process writes down: whole lines, each before the act that it tells of.

Every line holds the machine's monotonic time, so that the lines of several processes can be put in order. A killed
process leaves no half line: one write() a line, and what was written is the kernel's.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Notes:
    """The writing side."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: str, **fields: Any) -> None:
        line = json.dumps({"at": time.monotonic_ns(), "what": what, **fields}, separators=(",", ":")) + "\n"
        os.write(self._file, line.encode())

    def close(self) -> None:
        os.close(self._file)


class NotesReader:
    """The reading side: `news` gives the whole lines that came since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def news(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._offset += end
        return [json.loads(line) for line in data[:end].splitlines()]
