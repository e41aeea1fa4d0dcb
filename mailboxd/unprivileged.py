"""The user that embedded servers run as: this process's own, or nobody when this process is root.

PostgreSQL refuses root. No user is added and no mode outside the data directory is changed for it: a place that the
other user cannot get to is named instead, together with what to do.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple

# A user with an entry in /etc/passwd is needed: initdb looks its own name up.
_ROOTS_SERVANT: Final = "nobody"


class EmbeddedError(Exception):
    """The embedded servers cannot run here; the message says what to change."""


class UnreachablePath(EmbeddedError):
    """A directory on the way is closed to the servers' user."""

    def __init__(self, wanted: Path, closed: Path, user: str) -> None:
        super().__init__(
            f"{wanted} cannot be reached by the user {user!r}, as whom PostgreSQL and Valkey run because they must not "
            f"run as root: {closed} is closed to it. Take a data directory somewhere else, for example "
            f"--data-dir {default_data_dir_of_root()}, or run mailboxd as an ordinary user."
        )
        self.closed = closed


class ServerUser(NamedTuple):
    """Whom to run servers as. `switches` is False when that is us."""

    uid: int
    gid: int
    name: str
    switches: bool

    def popen_arguments(self) -> dict[str, Any]:
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switches else {}

    def own(self, path: Path) -> None:
        """Hand one path over; only for paths inside the data directory."""
        if self.switches:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def server_user(existing: Path) -> ServerUser:
    """The user for servers whose files are, or will be, in `existing`: whoever owns them stays their owner."""
    if os.geteuid() != 0:
        return ServerUser(os.geteuid(), os.getegid(), str(os.geteuid()), switches=False)
    if existing.exists() and (owner := existing.stat()).st_uid != 0:
        return ServerUser(owner.st_uid, owner.st_gid, _name_of(owner.st_uid), switches=True)
    try:
        entry = pwd.getpwnam(_ROOTS_SERVANT)
    except KeyError:
        raise EmbeddedError(
            f"there is no user {_ROOTS_SERVANT!r}, and PostgreSQL refuses to run as root: run mailboxd as another user"
        ) from None
    return ServerUser(entry.pw_uid, entry.pw_gid, entry.pw_name, switches=True)


def first_closed(path: Path, user: ServerUser) -> Path | None:
    """The first existing directory on the way to `path`, itself included, that the user cannot enter."""
    if not user.switches:
        return None
    way = [step for step in reversed((path / "x").absolute().parents) if step.is_dir()]
    # The kernel decides (modes, ACLs, mount options), so ask it as that user.
    script = 'for step; do cd "$step" 2>/dev/null || { printf %s "$step"; exit 1; }; done'
    try:
        answer = subprocess.run(
            ["/bin/sh", "-c", script, "sh", *map(str, way)],
            cwd="/",
            capture_output=True,
            timeout=30,
            check=False,
            **user.popen_arguments(),
        )
    except PermissionError as error:
        raise EmbeddedError(f"cannot run anything as the user {user.name!r} here: {error.strerror}") from None
    return Path(os.fsdecode(answer.stdout)) if answer.returncode == 1 else None


def require_reachable(path: Path, user: ServerUser) -> None:
    """Raise UnreachablePath when the user cannot get to the directory."""
    if (closed := first_closed(path, user)) is not None:
        raise UnreachablePath(path, closed, user.name)


def default_data_dir(wanted: Path = Path(".mailboxd")) -> Path:
    """Where to keep the data when nobody said: here, or for root in a closed place (its home) below /var/lib."""
    if os.geteuid() == 0 and first_closed(wanted.absolute().parent, server_user(wanted / "postgres")) is not None:
        return default_data_dir_of_root()
    return wanted


def default_data_dir_of_root() -> Path:
    return Path("/var/lib/mailboxd")


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
