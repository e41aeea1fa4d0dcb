"""Named statements from store/sql/*.sql: `-- name: x` starts one, comments stay with it."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


@cache
def load_sql(file: str) -> dict[str, str]:
    """All statements of `store/sql/<file>.sql` by name; ValueError when a name stands twice."""
    text = resources.files("store.sql").joinpath(f"{file}.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)
    names, bodies = parts[1::2], parts[2::2]
    if len(set(names)) != len(names):
        raise ValueError(f"a name stands twice in {file}.sql")
    return {name: body.strip() for name, body in zip(names, bodies, strict=True)}
