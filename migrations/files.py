"""Migration files as values: read, checked as one chain, hashed. The format is described in README.md here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DIRECTORY: Final = Path(__file__).parent
APPLY_LINE: Final = "-- migrate: apply"
ROLLBACK_LINE: Final = "-- migrate: rollback"
STATEMENT_LINE: Final = "-- statement"
_HEAD_FIELD: Final = re.compile(r"^-- ([a-z]+): (.*\S)\s*$")
_HEAD_MORE: Final = re.compile(r"^--\s{2,}(.*\S)\s*$")
_FIELDS: Final = frozenset({"version", "predecessor", "summary", "compatibility", "transaction"})


class MigrationFileError(Exception):
    """A migration file breaks the format or the chain; the message names the file."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema and the way back."""

    version: str
    predecessor: str | None
    name: str
    summary: str
    compatibility: str
    in_transaction: bool
    apply_sql: str
    rollback_sql: str
    content_hash: str  # of the whole file, line endings and all

    def statements(self, half: str) -> list[str]:
        """What to send, one by one: the half as a whole in a transaction, each marked statement outside of one."""
        if self.in_transaction:
            return [half]
        parts = re.split(rf"^{STATEMENT_LINE}[ \t]*$", half, flags=re.MULTILINE)
        return [part.strip() for part in parts if part.strip()]


def read_all(directory: Path = DIRECTORY) -> tuple[Migration, ...]:
    """All migrations of the directory in order; MigrationFileError unless they form one chain without gaps."""
    migrations = [parse(path.name, path.read_bytes()) for path in sorted(directory.glob("*.sql"))]
    previous: Migration | None = None
    for number, migration in enumerate(migrations, start=1):
        expected = previous.version if previous else None
        if migration.version != f"{number:04d}":
            raise MigrationFileError(f"{migration.name}: expected version {number:04d} here, not {migration.version}")
        if migration.predecessor != expected:
            raise MigrationFileError(
                f"{migration.name}: its predecessor is {expected or 'none'}, not {migration.predecessor or 'none'}"
            )
        previous = migration
    return tuple(migrations)


def parse(name: str, content: bytes) -> Migration:
    """One file; MigrationFileError says what breaks the format."""
    lines = content.decode("utf-8").splitlines()
    apply_at, rollback_at = _line_of(name, lines, APPLY_LINE), _line_of(name, lines, ROLLBACK_LINE)
    if rollback_at < apply_at:
        raise MigrationFileError(f"{name}: the rollback stands before the apply")
    head = _head(name, lines[:apply_at])
    apply_sql, rollback_sql = "\n".join(lines[apply_at + 1 : rollback_at]), "\n".join(lines[rollback_at + 1 :])
    for half, sql in (("apply", apply_sql), ("rollback", rollback_sql)):
        if not sql.strip():
            raise MigrationFileError(f"{name}: the {half} is empty")
    if not name.startswith(head["version"] + "_"):
        raise MigrationFileError(f"{name}: says version {head['version']}, which is not how its name begins")
    if head.get("transaction", "none") != "none":
        raise MigrationFileError(f"{name}: transaction may only be none")
    return Migration(
        version=head["version"],
        predecessor=None if head["predecessor"] == "none" else head["predecessor"],
        name=name.removesuffix(".sql"),
        summary=head["summary"],
        compatibility=head["compatibility"],
        in_transaction="transaction" not in head,
        apply_sql=apply_sql,
        rollback_sql=rollback_sql,
        content_hash=hashlib.sha256(content).hexdigest(),
    )


def _line_of(name: str, lines: Sequence[str], marker: str) -> int:
    # A marker is a whole line from its first column on, so an indented or quoted one in a body is none.
    found = [number for number, line in enumerate(lines) if line.rstrip() == marker]
    if len(found) != 1:
        raise MigrationFileError(f"{name}: needs exactly one line {marker!r}")
    return found[0]


def _head(name: str, lines: Sequence[str]) -> dict[str, str]:
    head: dict[str, str] = {}
    field = ""
    for line in lines:
        if match := _HEAD_FIELD.match(line):
            field = match[1]
            if field not in _FIELDS or field in head:
                raise MigrationFileError(f"{name}: {field} is unknown or stands twice in the head")
            head[field] = match[2]
        elif (match := _HEAD_MORE.match(line)) and field:
            head[field] += " " + match[1]
        elif line.strip():
            raise MigrationFileError(f"{name}: this does not belong into the head: {line}")
    if missing := _FIELDS - {"transaction"} - head.keys():
        raise MigrationFileError(f"{name}: the head lacks {', '.join(sorted(missing))}")
    return head
