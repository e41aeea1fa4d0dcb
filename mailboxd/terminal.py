"""What a command says and how it ends: results on stdout, one clear line for every mistake on stderr, an exit code."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_CONFIG: Final = os.EX_CONFIG
EXIT_INTERRUPTED: Final = 130


class CommandError(Exception):
    """An expected end without success: `lines` are shown, each by itself, and the process exits with `exit_code`."""

    def __init__(self, *lines: str, exit_code: int = EXIT_FAILED) -> None:
        self.lines = lines
        self.exit_code = exit_code
        super().__init__("; ".join(lines))


def print_json(value: Any) -> None:
    """One document on one line, complete when the call returns: whoever reads the pipe may act on it."""
    print(json.dumps(value, separators=(", ", ": ")), flush=True)


def print_result(value: Any, *, as_json: bool, lines: Iterable[str]) -> None:
    """The result for a program or for a person."""
    if as_json:
        print_json(value)
    else:
        for line in lines:
            print(line, flush=True)


def complain(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"mailboxd: {line}", file=sys.stderr, flush=True)


def told(value: object) -> str:
    """A value for a person: several named figures are `name 1, other 2`."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {told(figure)}" for name, figure in value.items())
    return " ".join(map(told, value)) if isinstance(value, list) else str(value)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Aligned columns; an empty table says so."""
    cells = [[told(cell) for cell in row] for row in rows]
    if not cells:
        return ["(none)"]
    all_rows = [[heading.upper() for heading in headings], *cells]
    widths = [max(len(row[column]) for row in all_rows) for column in range(len(headings))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in all_rows]


def time_text(at_ms: int | None) -> str:
    """An instant for a person, in UTC."""
    return "" if at_ms is None else datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def pairs(values: Mapping[str, object]) -> list[str]:
    """`name  value` lines, aligned."""
    width = max(map(len, values), default=0)
    return [f"{name.ljust(width)}  {told(value)}" for name, value in values.items()]
