"""What only grows slowly: memory, descriptors, outbox, tables. Read from outside every few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import asyncpg

from loadtest.processes import cpu_seconds, descriptors, tree

TABLES: Final = ("envelopes", "mailboxes", "mailbox_owners", "outbox_events", "ack_batches", "idempotency_records")
_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. Memory is what a process has for itself (RssAnon): shared buffers fill up by design."""

    at_s: float
    memory_bytes: Mapping[str, int]
    descriptors: Mapping[str, int]
    cpu_s: Mapping[str, float]
    outbox_open: int
    table_bytes: Mapping[str, int]
    dead_rows: Mapping[str, int]


class Watcher:
    """Looks every `every_s` seconds until cancelled; `samples` has all looks so far."""

    def __init__(self, dsn: str, pids: Mapping[str, tuple[int, ...]], every_s: float) -> None:
        self.samples: list[Sample] = []
        self._dsn = dsn
        self._pids = pids
        self._every_s = every_s

    async def run(self) -> None:
        started = perf_counter()
        connection = await asyncpg.connect(self._dsn)
        try:
            while True:
                self.samples.append(await self._look(connection, perf_counter() - started))
                await asyncio.sleep(self._every_s)
        finally:
            await connection.close()

    async def _look(self, connection: asyncpg.Connection[Any], at_s: float) -> Sample:
        trees = {role: {pid for root in roots for pid in tree(root)} for role, roots in self._pids.items()}
        tables = await connection.fetch(_TABLES, list(TABLES))
        return Sample(
            at_s=at_s,
            memory_bytes={role: sum(map(own_memory, pids)) for role, pids in trees.items()},
            descriptors={role: descriptors(pids) for role, pids in trees.items()},
            cpu_s={role: cpu_seconds(pids) for role, pids in trees.items()},
            outbox_open=await connection.fetchval(_OUTBOX),
            table_bytes={row["name"]: row["bytes"] for row in tables},
            dead_rows={row["name"]: row["dead"] for row in tables},
        )


def own_memory(pid: int) -> int:
    """Resident bytes that the process shares with nobody's file or segment; 0 when it is gone."""
    try:
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


_TABLES: Final = """
SELECT c.relname AS name, pg_total_relation_size(c.oid) AS bytes, coalesce(s.n_dead_tup, 0) AS dead
  FROM pg_class c LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
 WHERE c.relkind = 'r' AND c.relname = ANY ($1)
"""
_OUTBOX: Final = "SELECT count(*) FROM outbox_events WHERE state IN ('pending', 'published', 'retry_wait')"
