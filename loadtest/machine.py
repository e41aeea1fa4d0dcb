"""What a figure was measured on: without it the figure says nothing."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import asyncpg

_PACKAGES: Final = ("uvloop", "websockets", "aiohttp", "asyncpg", "redis", "msgpack", "blake3")
_POSTGRES_SETTINGS: Final = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
    "min_wal_size",
    "wal_compression",
    "wal_recycle",
    "autovacuum",
    "max_connections",
    "jit",
)


def machine() -> dict[str, Any]:
    """Processor, cores, memory, kernel, Python."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def confine(cores: int) -> None:
    """Keep this process, and all that it starts from now on, on so many processors: figures are those of two."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) > cores:
        os.sched_setaffinity(0, allowed[:cores])


def packages() -> dict[str, str]:
    """Versions of what does the work."""
    return {name: version(name) for name in ("mailboxd", *_PACKAGES)}


async def postgres(dsn: str) -> tuple[str, dict[str, str]]:
    """The server's version and the settings that decide its speed and its durability."""
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "SELECT name, current_setting(name) AS value FROM pg_settings WHERE name = ANY($1) ORDER BY name",
            list(_POSTGRES_SETTINGS),
        )
        return await connection.fetchval("SHOW server_version"), {row["name"]: row["value"] for row in rows}
    finally:
        await connection.close()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
