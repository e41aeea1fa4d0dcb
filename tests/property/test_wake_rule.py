"""The dispatcher's SQL gives every intent the verdict of the pure rule."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.outbox import WakeRules
from tests.support.blocking import BlockingRunner
from tests.support.database import connected
from worker.wake_decision import Decision, Done, DoneReason, Push, Wait, WakeFacts, decide

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
RULES = WakeRules(repeat_first=timedelta(seconds=30), repeat_longest=timedelta(minutes=20), pushes_max=3)
DEVICE = os.urandom(16)

# Around every edge of the rule: a moment before, at, and after.
moments = st.one_of(
    st.none(),
    st.sampled_from([0, 1, -1, 29, 30, 31, 59, 60, 61, 119, 120, 121, -50]).map(lambda s: NOW - timedelta(seconds=s)),
)
envelopes = st.lists(
    st.fixed_dictionaries(
        {"position": st.integers(1, 6), "acked": st.booleans(), "echo": st.booleans(), "expired": st.booleans()}
    ),
    unique_by=lambda entry: entry["position"],
    max_size=4,
)


@pytest.fixture
def connection(database: str, blocking: BlockingRunner) -> Iterator[asyncpg.Connection]:
    opened = connected(database)
    yield blocking.run(opened.__aenter__())
    blocking.run(opened.__aexit__(None, None, None))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    entries=envelopes,
    wake_position=st.integers(1, 6),
    floor=st.integers(0, 3),
    revoked=st.booleans(),
    route=st.sampled_from([None, "active", "gone", "misconfigured"]),
    online_until=moments,
    contact_at=moments,
    pushes=st.integers(0, 4),
    began_at=moments,
    push_position=st.integers(1, 6),
)
def test_sql_and_rule_agree(connection: asyncpg.Connection, blocking: BlockingRunner, **case: Any) -> None:
    if case["began_at"] is None:
        case["pushes"] = 0
    # Everything at or below the floor is gone or acked: that is what the floor means.
    for entry in case["entries"]:
        entry["acked"] = entry["acked"] or entry["position"] <= case["floor"]
    verdict, until = blocking.run(_judge(connection, **case))
    decision = decide(_facts(**case), RULES)
    assert (verdict, until) == _told(decision, case)


def _told(decision: Decision, case: dict[str, Any]) -> tuple[str, datetime | None]:
    match decision:
        case Done(reason):
            return str(reason), None
        case Wait(until, why):
            return str(why), until
        case Push():
            return "wake", None


def _waits(entry: dict[str, Any], wake_position: int) -> bool:
    return not (entry["acked"] or entry["echo"] or entry["expired"]) and entry["position"] <= wake_position


def _facts(
    *, entries: Any, wake_position: int, revoked: bool, route: str | None, pushes: int, began_at: Any, **rest: Any
) -> WakeFacts:
    return WakeFacts(
        now=NOW,
        active=not revoked,
        pending=any(not (entry["acked"] or entry["echo"]) for entry in entries),
        waiting=any(_waits(entry, wake_position) for entry in entries),
        position=wake_position,
        has_route=route in ("active", "misconfigured"),
        online_until=rest["online_until"],
        contact_at=rest["contact_at"],
        pushes_accepted=pushes,
        push_began_at=began_at,
        push_position=rest["push_position"],
    )


async def _judge(
    connection: asyncpg.Connection,
    *,
    entries: list[dict[str, Any]],
    wake_position: int,
    floor: int,
    revoked: bool,
    route: str | None,
    online_until: Any,
    contact_at: Any,
    pushes: int,
    began_at: Any,
    push_position: int,
) -> tuple[str, datetime | None]:
    transaction = connection.transaction()
    await transaction.start()
    try:
        stored = [entry for entry in entries if not entry["echo"]]
        released = sum(entry["acked"] for entry in stored)
        await connection.execute(
            "INSERT INTO mailboxes (device_id, identity_id, state, wake_open, head_position, wake_position,"
            " stored_entries) VALUES ($1, $1, $2, true, 10, $3, $4)",
            DEVICE,
            2 if revoked else 1,
            wake_position,
            len(stored),
        )
        await connection.execute(
            "INSERT INTO mailbox_owners (device_id, released_entries, floor_position, online_until, contact_at)"
            " VALUES ($1, $2, $3, $4, $5)",
            DEVICE,
            released,
            floor,
            online_until,
            contact_at,
        )
        for entry in entries:
            await connection.execute(
                "INSERT INTO envelopes (recipient_device_id, message_id, position, accepted_at, expires_at, acked_at,"
                " envelope_size, protocol_version, kind) VALUES ($1, $2, $3, $4, $5, $6, 0, 1, $7)",
                DEVICE,
                os.urandom(16),
                entry["position"],
                NOW - timedelta(hours=1),
                NOW + timedelta(seconds=0 if entry["expired"] else 1),
                NOW if entry["acked"] else None,
                int(entry["echo"]),
            )
        if route is not None:
            await connection.execute(
                "INSERT INTO push_routes (device_id, wake_route_id, provider, sealed_address, seal_key_id, status)"
                " VALUES ($1, $1, 'gateway', '', 1, $2)",
                DEVICE,
                route,
            )
        await connection.execute(
            "INSERT INTO outbox_events (event_id, aggregate_ref, task_type, next_attempt_at, created_at, updated_at,"
            " pushes_accepted, push_began_at, push_position) VALUES ($1, $1, 'wake_device', $2, $2, $2, $3, $4, $5)",
            DEVICE,
            NOW,
            pushes,
            began_at,
            push_position,
        )
        row = await connection.fetchrow(
            "SELECT v.verdict, v.until FROM outbox_events x, outbox_verdict_v1(x, $1, $2, $3, $4) AS v",
            NOW,
            RULES.pushes_max,
            RULES.repeat_first,
            RULES.repeat_longest,
        )
        return row["verdict"], row["until"]
    finally:
        await transaction.rollback()


def test_every_reason_of_the_rule_is_one_that_the_schema_knows() -> None:
    assert set(DoneReason) == {"no_mailbox", "revoked", "nothing_waits", "contact", "no_route", "gave_up"}
