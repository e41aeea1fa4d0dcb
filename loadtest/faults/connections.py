"""What processes hold open: files, connections of clients, connections to PostgreSQL. None may be left or too many."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from loadtest.faults.world import Kind, Role, World
from loadtest.processes import tree

LEAVE_S_MAX: Final = 20.0
SPARE: Final = 8  # files beside those of clients and PostgreSQL that a process may have opened since it was fresh
_POLL_S: Final = 0.1
_TCP: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED, _CLOSE_WAIT = "01", "08"
_LANES_MAX: Final = {"mailboxd gateway submit": 2}  # a process has so many beside its pool; of every other name one


class Descriptors:
    """Open files and connections of gateways and workers, against what they were when the world was fresh."""

    def __init__(self, world: World) -> None:
        """Call it while no client is connected yet."""
        self._world = world
        self._fresh = {
            kind: max((self._files(role) for role in world.roles if role.kind is kind), default=0) for kind in Kind
        }

    async def left_behind(self) -> list[str]:
        """What is still open of clients that are gone, and what is too much; waits a moment for the last."""
        end = time.monotonic() + LEAVE_S_MAX
        while (problems := await self._problems()) and time.monotonic() < end:
            await asyncio.sleep(_POLL_S)
        return problems

    async def _problems(self) -> list[str]:
        problems = []
        for role in self._world.roles:
            if role.kind is Kind.GATEWAY and (open_ := len(_accepted_on(role.port))):
                problems.append(f"{role.name} still holds {open_} connections of clients that are gone")
            if (files := self._files(role)) > (at_most := self._fresh[role.kind] + SPARE):
                problems.append(f"{role.name} has {files} open files with no client connected, above {at_most}")
        if not self._world.given.postgres_dsn:
            problems += over_the_pool(await connections_by_process(self._world), self._world)
        return problems

    def _files(self, role: Role) -> int:
        """Open files of a role that belong neither to clients nor to connections to PostgreSQL."""
        if not role.process.is_running:
            return 0
        ports = {int(port) for port in re.findall(r":(\d+)(?=[,/])", self._world.postgres_dsn)}
        return open_files(role.pid) - len(_inodes(role.pid) & (_accepted_on(role.port) | _connected_to(ports)))


async def connections_by_process(world: World) -> dict[str, int]:
    """PostgreSQL's connections, by the name that the processes give them."""
    connection = await world.connect()
    try:
        rows = await connection.fetch(
            "SELECT application_name AS name, count(*) AS n FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND application_name LIKE 'mailboxd%' GROUP BY 1"
        )
    finally:
        await connection.close()
    return {row["name"]: row["n"] for row in rows}


def over_the_pool(counts: Mapping[str, int], world: World) -> list[str]:
    """Which names have more connections than the pools and lanes of all processes of their kind may hold."""
    problems = []
    for name, count in sorted(counts.items()):
        kind = Kind.WORKER if name.startswith("mailboxd worker") else Kind.GATEWAY
        is_pool = name == f"mailboxd {kind}"
        each = int(world.setting(kind, "postgres_pool_max")) if is_pool else _LANES_MAX.get(name, 1)
        at_most = each * sum(role.kind is kind for role in world.roles)
        if count > at_most:
            problems.append(f"PostgreSQL has {count} connections of {name!r}, above {at_most}")
    return problems


def open_files(pid: int) -> int:
    """All of a process; 0 when it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def still_alive(pids: Iterable[int]) -> Sequence[int]:
    """Which of these processes (or their children) have not ended."""
    return [pid for pid in pids if tree(pid)]


def _inodes(pid: int) -> set[str]:
    """Of the sockets of a process."""
    found = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(entry)
            except OSError:
                continue  # closed meanwhile
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        pass
    return found


def _accepted_on(port: int) -> set[str]:
    """Inodes of accepted connections of a listening port that are open, or that the server forgot to close."""
    return {inode for local, _, inode in _connections() if local == port}


def _connected_to(ports: set[int]) -> set[str]:
    return {inode for _, remote, inode in _connections() if remote in ports}


def _connections() -> list[tuple[int, int, str]]:
    """Local port, remote port and inode of every open connection of this machine."""
    found = []
    for table in _TCP:
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] in (_ESTABLISHED, _CLOSE_WAIT):
                local, remote = (int(fields[at].rpartition(":")[2], 16) for at in (1, 2))
                found.append((local, remote, fields[9]))
    return found
