"""Where `mailboxd send` and `listen` keep their device, and which server they talk to."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from mailboxd.running import find_running
from mailboxd.terminal import CommandError

DEFAULT_URL: Final = "http://127.0.0.1:8080"
_SERVER: Final = re.compile(r"https?://[^/?#\s]")


def server_url(url: str | None, data_dir: Path | None) -> str:
    """The server's address: as given, or the one that `up` runs on the data directory."""
    if url is not None and data_dir is not None:
        raise CommandError("say either --url or --data-dir")
    if url is not None and not _SERVER.match(url):
        raise CommandError(f"{url} is no server's address; --url takes one such as {DEFAULT_URL}")
    if data_dir is not None:
        return find_running(data_dir).urls[0]
    return url or DEFAULT_URL


def state_directory(given: Path | None, url: str, role: str) -> Path:
    """The directory of one device; without one given, one for each server in the user's state directory."""
    if given is None:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        given = base / "mailboxd" / re.sub(r"[^A-Za-z0-9.-]+", "_", url.partition("://")[2]) / role
    try:
        given.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"{given} cannot be created: {error.strerror}; choose another --state") from None
    return given
