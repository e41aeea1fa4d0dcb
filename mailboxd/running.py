"""What `mailboxd up` keeps in its data directory for other commands: a lock while it runs, and where its parts are."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from mailboxd.terminal import EXIT_CONFIG, CommandError

LOCK_FILE: Final = "up.lock"
RUNTIME_FILE: Final = "up.json"
SECRETS_DIR: Final = "secrets"
LOGS_DIR: Final = "logs"
_LOCK_WAIT_S: Final = 1.0  # another command may look at the lock for a moment


class Running(NamedTuple):
    """The services that one `mailboxd up` runs."""

    urls: tuple[str, ...]
    ops_urls: tuple[str, ...]
    postgres_dsn: str
    redis_url: str
    secrets_dir: Path


@contextmanager
def holding(data_dir: Path) -> Iterator[None]:
    """Own the directory for the block; CommandError when another `up` runs on it. A killed owner's lock is gone."""
    try:
        lock = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise CommandError(f"{data_dir} cannot be used: {error.strerror}; take another --data-dir") from None
    try:
        if not _lock_within(lock, _LOCK_WAIT_S):
            owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise CommandError(
                f"mailboxd up (pid {owner}) runs on {data_dir} already; stop it or take another --data-dir"
            )
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def write_runtime_file(data_dir: Path, document: dict[str, Any]) -> None:
    """Replace the file whole; only its owner may read it, since it holds DSNs."""
    temporary = data_dir / f".{RUNTIME_FILE}.{secrets.token_hex(4)}"
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(document, file, indent=1)
    temporary.replace(data_dir / RUNTIME_FILE)


def remove_runtime_file(data_dir: Path) -> None:
    (data_dir / RUNTIME_FILE).unlink(missing_ok=True)


def find_running(data_dir: Path) -> Running:
    """Where the services of this directory are; CommandError with what to do when nothing runs there."""
    try:
        lock = os.open(data_dir / LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        raise _nothing_runs(data_dir) from None
    except OSError as error:
        raise CommandError(f"{data_dir} cannot be read: {error.strerror}", exit_code=EXIT_CONFIG) from None
    try:
        if _lock_within(lock, 0):
            raise _nothing_runs(data_dir)
    finally:
        os.close(lock)
    try:
        document = json.loads((data_dir / RUNTIME_FILE).read_text())
    except FileNotFoundError:
        raise CommandError(
            f"mailboxd up on {data_dir} is still starting (or stopping); try again in a moment"
        ) from None
    return Running(
        tuple(document["urls"]),
        tuple(document["ops_urls"]),
        document["postgres_dsn"],
        document["redis_url"],
        data_dir / SECRETS_DIR,
    )


def _nothing_runs(data_dir: Path) -> CommandError:
    return CommandError(
        f"nothing runs on {data_dir}; start it with: mailboxd up --data-dir {shlex.quote(str(data_dir))}"
    )


def _lock_within(lock: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True
