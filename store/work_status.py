"""What an operator wants to know of the work that runs with nobody waiting: intents, queue, pushes, clean-up."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from redis.exceptions import ResponseError

from store.job_queue import GROUP, stream_name
from store.outbox import OutboxStore, WakeRules
from store.policy_rules import Policy
from store.postgres import Postgres
from store.redis_client import REDIS_TROUBLE, connect, whole
from store.redis_names import read_instance_tag
from store.retention import RetentionStore
from store.sql_files import load_sql

REDIS_SECONDS: Final = 3.0

_SQL: Final = load_sql("status")


async def read_work(postgres: Postgres, redis_url: str, policy: Policy) -> dict[str, Any]:
    """JSON-ready: counts and seconds, never an id. Raises MailboxError UNAVAILABLE; Redis may be away.

    `wakes_ended` covers what is kept of completed intents (`completed_outbox_retention_s`).
    """
    depth = await OutboxStore(postgres, WakeRules()).depth()
    tries = await postgres.fetchrow(_SQL["count_tries"])
    assert tries is not None  # noqa: S101 - an aggregate gives one row
    overdue = await RetentionStore(postgres).oldest_overdue(policy)
    return {
        "outbox_due": {"events": depth.due, "oldest_s": round(depth.oldest_due_seconds, 1)},
        "outbox_tries": {**dict(tries), "unknown_tasks": depth.unknown_tasks},
        "wakes_ended": {row["reason"]: row["events"] for row in await postgres.fetch(_SQL["count_ended"])},
        "wakes_in_trouble": {row["reason"]: row["events"] for row in await postgres.fetch(_SQL["count_trouble"])},
        "queue": await _queue(redis_url, await read_instance_tag(postgres)),
        "cleanup_overdue_s": {table.value: round(seconds, 1) for table, seconds in overdue.items()},
    }


async def _queue(redis_url: str, tag: str) -> dict[str, Any]:
    """Looks only: a missing stream or group is nothing to make good here."""
    redis = connect(redis_url)
    try:
        async with asyncio.timeout(REDIS_SECONDS):
            pipeline: Any = redis.pipeline(transaction=False)
            pipeline.xlen(stream_name(tag))
            pipeline.xpending(stream_name(tag), GROUP)
            messages, pending = await whole(pipeline.execute(raise_on_error=False))
        if isinstance(messages, Exception):
            raise messages
        handed_out = 0 if isinstance(pending, ResponseError) else int(pending["pending"])
        return {"waiting": int(messages) - handed_out, "handed_out": handed_out}
    except REDIS_TROUBLE as error:
        return {"not_reached": type(error).__name__}
    finally:
        await redis.aclose()
