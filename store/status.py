"""What an operator wants to know of an instance at a glance: counts only, never an id of a device or identity."""

from __future__ import annotations

from typing import Any, Final

from protocol.errors import ErrorCode, MailboxError
from protocol.ids import to_text
from store.postgres import Postgres
from store.sql_files import load_sql

OUTBOX_STATES: Final = ("pending", "published", "retry_wait", "completed", "dead_letter")

_SQL: Final = load_sql("status")


async def read_status(postgres: Postgres) -> dict[str, Any]:
    """The instance's counts, JSON-ready. Reads every mailbox's counters: seconds on a large instance, locks nothing.

    Raises MailboxError UNAVAILABLE when the database does not answer.
    """
    row = await postgres.fetchrow(_SQL["read_status"])
    if row is None:
        raise MailboxError(ErrorCode.UNAVAILABLE, "There is no instance in this database yet: run mailboxd init.")
    outbox = dict.fromkeys(OUTBOX_STATES, 0)
    outbox.update({event["state"]: event["events"] for event in await postgres.fetch(_SQL["count_outbox"])})
    routes = await postgres.fetch(_SQL["count_push_routes"])
    return {
        **dict(row),
        "instance_id": to_text(row["instance_id"]),
        "outbox": outbox,
        "push_routes": {f"{route['provider']} {route['status']}": route["routes"] for route in routes},
    }
