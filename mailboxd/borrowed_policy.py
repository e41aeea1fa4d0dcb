"""A policy value for the length of a block, given back also when whoever borrowed it was killed.

What was there before is noted in the data directory first; the next server that starts there gives it back.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from store.policy import PolicyStore
from store.policy_rules import KEYS

NOTE_FILE: Final = "borrowed-policy.json"


@asynccontextmanager
async def borrowed(data_dir: Path, store: PolicyStore, key: str, value: int, *, request_id: str) -> AsyncIterator[None]:
    """`key` is `value` inside the block and what it was before afterwards."""
    _write_note(data_dir, {"key": key, "value": value, "before": getattr(await store.load(), key)})
    try:
        await store.change([f"{key}={value}"], request_id=request_id)
        yield
    finally:
        await give_back(data_dir, store, request_id=request_id)


async def give_back(data_dir: Path, store: PolicyStore, *, request_id: str) -> None:
    """Undo what the note says, unless somebody has changed that value since. Nothing borrowed is fine."""
    note = _read_note(data_dir)
    if note is not None and getattr(await store.load(), note["key"]) == note["value"]:
        await store.change([f"{note['key']}={note['before']}"], request_id=request_id)
    (data_dir / NOTE_FILE).unlink(missing_ok=True)


def is_borrowed(data_dir: Path) -> bool:
    """Whether there is something to give back."""
    return (data_dir / NOTE_FILE).exists()


def _write_note(data_dir: Path, note: dict[str, Any]) -> None:
    """On disk, whole, before anything is changed."""
    temporary = data_dir / f".{NOTE_FILE}.{secrets.token_hex(4)}"
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(note, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(data_dir / NOTE_FILE)


def _read_note(data_dir: Path) -> dict[str, Any] | None:
    """None for one that is missing or that somebody has damaged: then there is nothing known to give back."""
    try:
        note = json.loads((data_dir / NOTE_FILE).read_text())
    except (FileNotFoundError, ValueError):
        return None
    whole = isinstance(note, dict) and note.get("key") in KEYS and {"value", "before"} <= note.keys()
    return note if whole else None
