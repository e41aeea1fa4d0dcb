"""The outbox: what was promised at a commit and is done later (seed 000, 2.1 and 5; seed 001, 2.7).

`pending → published → completed`, with `retry_wait` and `dead_letter`. PostgreSQL alone knows what is to be done; the
queue only hands it out and may be emptied at any moment. A device has one wake intent at a time; `mailboxes.wake_open`
says that it is open, and whoever ends it holds the mailbox's row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from protocol.ids import DeviceId, WakeRouteId
from store.postgres import Postgres
from store.push_seal import Sealed
from store.sql_files import load_sql

_SQL: Final = load_sql("outbox")

WAKE_DEVICE: Final = "wake_device"


class WakeRules(NamedTuple):
    """When a push is repeated, and when it is given up (DESIGN, "Outbox, queue, wake push")."""

    repeat_first: timedelta = timedelta(seconds=30)
    repeat_longest: timedelta = timedelta(minutes=20)
    pushes_max: int = 12


class Publication(NamedTuple):
    """One event as it goes to the queue: references only."""

    event_id: bytes
    task_type: str
    task_version: int
    generation: int


class Claimed(NamedTuple):
    """What one round of the dispatcher found. All of it is committed."""

    publications: tuple[Publication, ...]
    claimed_at: datetime
    completed: Mapping[str, int]  # how many, by reason
    put_off: int
    more: bool  # something due is left: held by others, or too many for one round


class Route(NamedTuple):
    """A push route as it lies in the database; `version` and id are what a provider's verdict applies to."""

    wake_route_id: WakeRouteId
    version: int
    provider: str
    mode: str
    status: str  # active or misconfigured
    sealed: Sealed


class Job(NamedTuple):
    """A begun event with all that a wake is decided by, of one moment of the database's clock."""

    event_id: bytes
    device: DeviceId
    task_type: str
    task_version: int
    generation: int
    attempts: int  # this one included
    troubles: int
    now: datetime
    active: bool  # the mailbox is there and not revoked
    pending: bool  # by the counters: something but echoes is un-acked, expired or not
    waiting: bool  # something unexpired but echoes is un-acked at or below wake_position
    wake_position: int
    online_until: datetime | None
    contact_at: datetime | None
    pushes_accepted: int
    push_began_at: datetime | None
    push_position: int | None
    route: Route | None  # none, or gone


class DeadLetter(NamedTuple):
    event_id: bytes
    task_type: str
    task_version: int
    generation: int
    attempts: int
    reason: str | None
    created_ms: int
    updated_ms: int


class OutboxDepth(NamedTuple):
    """`due` is what nobody has taken although its time has come; everything else waits for its time."""

    pending: int
    published: int
    retry_wait: int
    dead_letter: int
    due: int
    oldest_due_seconds: float
    unknown_tasks: int  # a newer release's, waiting for its worker


class OutboxStore:
    """All calls are short transactions of their own and raise MailboxError UNAVAILABLE when the database is away."""

    def __init__(self, postgres: Postgres, rules: WakeRules | None = None) -> None:
        self._postgres = postgres
        self._rules = rules or WakeRules()

    async def claim(self, limit: int, *, published_for: timedelta, may_publish: bool = True) -> Claimed:
        """Complete what is done, put off what must wait, and publish the rest of up to `limit` due events.

        Waits for no lock. Published events come back by themselves `published_for` later unless they are begun. Without
        `may_publish` what is for the queue stays as it is.
        """
        rules = self._rules
        row = await self._postgres.fetchrow(
            _SQL["claim"],
            limit,
            published_for,
            rules.pushes_max,
            rules.repeat_first,
            rules.repeat_longest,
            may_publish,
        )
        assert row is not None  # noqa: S101 - a function without FROM gives one row
        columns = (row["event_ids"], row["task_types"], row["task_versions"], row["generations"])
        publications = tuple(Publication(*values) for values in zip(*columns, strict=True))
        return Claimed(publications, row["claimed_at"], row["completed"], row["put_off"], row["left_due"] > 0)

    async def unpublish(self, claimed: Claimed, event_ids: Sequence[bytes]) -> None:
        """What the queue did not take is due again at once."""
        await self._postgres.execute(_SQL["unpublish"], list(event_ids), claimed.claimed_at)

    async def begin(self, event_id: bytes, *, lease: timedelta) -> Job | None:
        """Count an attempt and return what to decide by; None when the event is not published or is begun already.

        Unless it is brought to an end, the event comes back `lease` later.
        """
        row = await self._postgres.fetchrow(_SQL["begin"], event_id, lease)
        return None if row is None else _job(row)

    async def push_begins(self, device: DeviceId) -> datetime:
        """From the instant returned on, a contact of the device counts as its answer to the push."""
        began: datetime = await self._postgres.fetchval(_SQL["push_begins"], device)
        return began

    async def pushed(self, job: Job, began_at: datetime) -> None:
        """A provider took the push; it is repeated unless the device makes contact."""
        rules = self._rules
        await self._postgres.execute(
            _SQL["pushed"],
            job.event_id,
            job.generation,
            began_at,
            job.wake_position,
            rules.repeat_first,
            rules.repeat_longest,
        )

    async def put_off(self, job: Job, *, wait: timedelta, reason: str, troubles: int) -> None:
        """Try again after `wait`; uses up no attempt."""
        await self._postgres.execute(_SQL["put_off"], job.event_id, job.generation, wait, reason, troubles)

    async def back_to_pending(self, job: Job, *, until: datetime) -> None:
        """The dispatcher judges it again at `until`."""
        await self._postgres.execute(_SQL["back_to_pending"], job.event_id, until)

    async def complete(self, job: Job, *, reason: str) -> bool:
        """End it, if nothing newer came since the job was begun; else it is due again (False)."""
        state = await self._postgres.fetchval(_SQL["complete"], job.event_id, job.generation, job.wake_position, reason)
        return bool(state == "completed")

    async def failed(self, job: Job, *, wait: timedelta, reason: str) -> None:
        """The handler raised. The attempt stays counted."""
        await self._postgres.execute(_SQL["failed"], job.event_id, wait, reason)

    async def quarantine(self, event_id: bytes, *, wait: timedelta, reason: str) -> None:
        """Not for this release: it waits, no attempt is counted."""
        await self._postgres.execute(_SQL["quarantine"], event_id, wait, reason)

    async def bury(self, event_id: bytes, *, reason: str) -> bool:
        """Make it a dead letter. The device's next submit opens a new intent."""
        return bool(await self._postgres.fetchval(_SQL["bury"], event_id, reason))

    async def now(self) -> datetime:
        instant: datetime = await self._postgres.fetchval(_SQL["now"])
        return instant

    async def take_back_overdue(self, limit: int) -> int:
        """Published or begun, and not brought to an end in time: due again. Returns how many."""
        return len(await self._postgres.fetch(_SQL["take_back_overdue"], limit))

    async def take_back_published(self, published_before: datetime, limit: int) -> int:
        """The queue lost what it held: everything published until then and not begun is due again. Returns how many."""
        return len(await self._postgres.fetch(_SQL["take_back_published"], published_before, limit))

    async def mend_after_clock_step(self, longest_wait: timedelta, limit: int) -> int:
        """The database's clock went back: what now waits longer than `longest_wait` is due. Returns how many."""
        return int(await self._postgres.fetchval(_SQL["mend_after_clock_step"], longest_wait, limit))

    async def repair_wake_open(self, after: DeviceId, limit: int) -> tuple[DeviceId | None, int]:
        """Compare `wake_open` with the outbox for the next `limit` mailboxes and repair what differs.

        Returns the last device looked at (None at the end) and how many were repaired; more than none is a bug.
        """
        rows = await self._postgres.fetch(_SQL["wake_drift"], after, limit)
        repaired = 0
        for row in rows:
            if row["differs"]:
                repaired += await self._repair(row["device_id"])
        return (DeviceId(rows[-1]["device_id"]) if len(rows) == limit else None), repaired

    async def _repair(self, device: bytes) -> int:
        async with self._postgres.transaction() as connection:
            before = await connection.fetchval(_SQL["lock_mailbox"], device)
            after = await connection.fetchval(_SQL["repair_wake_open"], device)
            if not after:
                await connection.fetchval(_SQL["open_wakes"], [device])
            return int(before != after)

    async def open_wakes(self, devices: Sequence[DeviceId]) -> int:
        """Open an intent wherever something waits and none is open (after a restore). Returns how many."""
        return int(await self._postgres.fetchval(_SQL["open_wakes"], list(devices)))

    async def depth(self) -> OutboxDepth:
        row = await self._postgres.fetchrow(_SQL["status"])
        assert row is not None  # noqa: S101 - an aggregate gives one row
        return OutboxDepth(*row)

    async def dead_letters(self, limit: int = 100) -> tuple[DeadLetter, ...]:
        """Oldest first."""
        return tuple(DeadLetter(*row) for row in await self._postgres.fetch(_SQL["list_dead_letters"], limit))

    async def dead_letter(self, event_id: bytes) -> DeadLetter | None:
        row = await self._postgres.fetchrow(_SQL["show_dead_letter"], event_id)
        return None if row is None else DeadLetter(*row)

    async def requeue_dead_letter(self, executor: Any, event_id: bytes) -> bool:
        """Back to work, merged into the open intent where there is one. False when it is no dead letter."""
        return bool(await executor.fetchval(_SQL["requeue_dead_letter"], event_id))

    async def drop_dead_letter(self, executor: Any, event_id: bytes) -> bool:
        return bool(await executor.fetchval(_SQL["drop_dead_letter"], event_id))

    async def disable_route(self, executor: Any, device: DeviceId, route: Route) -> bool:
        """The provider says that this route is gone. False when a newer one has come."""
        return bool(await executor.fetchval(_SQL["disable_route"], device, route.wake_route_id, route.version))

    async def mark_route(self, device: DeviceId, route: Route, status: str) -> None:
        """Let the owner see whether pushes to this route are taken (`active`) or refused (`misconfigured`)."""
        if status != route.status:
            await self._postgres.execute(_SQL["mark_route"], device, route.wake_route_id, status)


def _job(row: Any) -> Job:
    route = None
    if row["has_route"]:
        sealed = Sealed(row["seal_key_id"], row["sealed_address"])
        route = Route(
            row["wake_route_id"], row["route_version"], row["provider"], row["mode"], row["route_status"], sealed
        )
    return Job(
        event_id=row["event_id"],
        device=DeviceId(row["device"]),
        task_type=row["task_type"],
        task_version=row["task_version"],
        generation=row["generation"],
        attempts=row["attempts"],
        troubles=row["troubles"],
        now=row["now"],
        active=row["active"],
        pending=row["pending"],
        waiting=row["waiting"],
        wake_position=row["wake_position"],
        online_until=row["online_until"],
        contact_at=row["contact_at"],
        pushes_accepted=row["pushes_accepted"],
        push_began_at=row["push_began_at"],
        push_position=row["push_position"],
        route=route,
    )
