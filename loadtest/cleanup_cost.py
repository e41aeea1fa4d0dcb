"""What clean-up costs while traffic runs: the worker, its database sessions, and PostgreSQL's own vacuum."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import Any, Final

import asyncpg

from loadtest.processes import cpu_seconds, tree


class CleanupCost:
    """Measures between `start` and `stop`.

    The worker does more than clean up (it looks after intents to wake), so this is an upper bound. A database session
    that ends in between takes its part with it. Vacuum is elapsed time, its pauses included: what it may disturb.
    """

    def __init__(self, dsn: str, worker_pids: Iterable[int]) -> None:
        self._dsn = dsn
        self._worker_pids = tuple(worker_pids)
        self._started = 0.0
        self._worker_s = 0.0
        self._sessions_s: dict[int, float] = {}
        self._rows: dict[str, float] = {}

    async def start(self) -> None:
        self._started = perf_counter()
        self._worker_s, self._sessions_s, self._rows = await self._look()

    async def stop(self) -> dict[str, float]:
        """Cores of the worker and its sessions, share of the time in autovacuum, acked envelopes deleted a second."""
        seconds = perf_counter() - self._started
        worker_s, sessions_s, rows = await self._look()
        sessions = sum(used - self._sessions_s.get(pid, 0.0) for pid, used in sessions_s.items())
        return {
            "worker_cores": round((worker_s - self._worker_s) / seconds, 4),
            "sessions_cores": round(sessions / seconds, 4),
            "autovacuum_share": round((rows["vacuum_ms"] - self._rows["vacuum_ms"]) / 1_000 / seconds, 4),
            "deleted_per_s": round((rows["deleted"] - self._rows["deleted"]) / seconds, 1),
        }

    async def _look(self) -> tuple[float, dict[int, float], dict[str, float]]:
        worker_s = cpu_seconds({pid for root in self._worker_pids for pid in tree(root)})
        connection = await asyncpg.connect(self._dsn)
        try:
            sessions = await connection.fetch(_SESSIONS)
            row = await connection.fetchrow(_ROWS)
        finally:
            await connection.close()
        used = {session["pid"]: cpu_seconds([session["pid"]], ended_children=False) for session in sessions}
        return worker_s, used, dict(row)


_SESSIONS: Final = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'mailboxd worker%'"
_ROWS: Final = """
SELECT sum(total_autovacuum_time)::float8 AS vacuum_ms,
       sum(n_tup_del) FILTER (WHERE relname = 'envelopes')::float8 AS deleted
  FROM pg_stat_user_tables
"""


def said(cost: dict[str, Any]) -> str:
    """In words, for the table."""
    return (
        f"worker {cost['worker_cores']:.3f} cores, its sessions {cost['sessions_cores']:.3f} cores, autovacuum "
        f"at work {cost['autovacuum_share'] * 100:.0f} % of the time, {cost['deleted_per_s']:,.0f} envelopes deleted/s"
    )
