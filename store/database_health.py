"""How PostgreSQL fares, as far as an ordinary role may see (seed 001, section 5): waits, standbys, size."""

from __future__ import annotations

from typing import NamedTuple

from protocol.errors import ErrorCode, MailboxError
from store.postgres import Postgres
from store.sql_files import load_sql


class DatabaseHealth(NamedTuple):
    """One moment. A lag is None where there is no standby or this role may not see it."""

    lock_waits: int
    lock_wait_oldest_s: float
    transaction_oldest_s: float
    standbys: int
    replication_lag_s: float | None
    replication_lag_bytes: float | None
    database_bytes: int


async def read_health(postgres: Postgres) -> DatabaseHealth:
    """Raises MailboxError UNAVAILABLE as every question to the store does. Takes no lock."""
    row = await postgres.fetchrow(load_sql("database_health")["read_health"])
    if row is None:
        raise MailboxError(ErrorCode.UNAVAILABLE)
    return DatabaseHealth(*row)
