"""The same promises on the real SQL: submits, ACKs, expiry, clean-up, routes, contacts, pushes, crashes, repair.

After every step: nothing is forgotten, `wake_open` says what the outbox says, counters and floors fit the rows.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from protocol.ids import DeviceId, MessageId
from store.outbox import Job, Publication, WakeRules
from store.policy_rules import Policy
from store.retention import BEFORE_ALL, Table
from tests.support.blocking import BlockingRunner
from tests.support.mailboxes import a_send, an_envelope
from tests.support.wakes import WorkerParts, put_route, worker_parts
from worker.wake_decision import Done, Push, Wait, decide, facts_of

T = TypeVar("T")
RULES = WakeRules(pushes_max=2)
POLICY = Policy(acked_cleanup_s=600)
DEVICES = 2
REAL_SECONDS = 20
EVERYTHING = (
    "TRUNCATE mailboxes, mailbox_owners, envelopes, ack_batches, outbox_events, push_routes, idempotency_records"
)

FORGOTTEN = """
SELECT count(*) FROM unnest($1::uuid[], $2::bigint[]) AS g(device, pushed)
  JOIN mailboxes b ON b.device_id = g.device
  JOIN push_routes r ON r.device_id = g.device AND r.status <> 'gone'
 WHERE b.state = 1
   AND NOT EXISTS (SELECT FROM outbox_events x WHERE x.aggregate_ref = g.device AND x.state <> 'completed')
   AND EXISTS (SELECT FROM envelopes e WHERE e.recipient_device_id = g.device AND e.kind = 0 AND e.acked_at IS NULL
                  AND e.expires_at > mailboxd_now() AND e.position <= b.wake_position AND e.position > g.pushed)
"""
# Done by contact, although something was announced (if at all) by pushes that may have been lost, and never shown.
UNSEEN = """
SELECT count(*) FROM unnest($1::uuid[], $2::bigint[]) AS g(device, shown)
  JOIN mailboxes b ON b.device_id = g.device
 WHERE b.state = 1
   AND EXISTS (SELECT FROM outbox_events x WHERE x.aggregate_ref = g.device
                  AND x.state = 'completed' AND x.reason = 'contact')
   AND EXISTS (SELECT FROM envelopes e WHERE e.recipient_device_id = g.device AND e.kind = 0 AND e.acked_at IS NULL
                  AND e.expires_at > mailboxd_now() AND e.position <= b.wake_position AND e.position > g.shown)
"""
MARKS = """
SELECT count(*) FROM mailboxes b
 WHERE b.wake_open <> EXISTS (SELECT FROM outbox_events x WHERE x.aggregate_ref = b.device_id
                                 AND x.state IN ('pending', 'published', 'retry_wait'))
"""


@dataclass
class ModelEntry:
    """An entry as the model knows it; `ends` in seconds of skipped time."""

    mid: MessageId
    ends: float
    acked: bool = False


class Worlds:
    """One database for all examples, emptied for each."""

    blocking: BlockingRunner
    worker: WorkerParts


class Wakes(RuleBasedStateMachine):
    """Two devices, one database, as many workers as jobs are in hand."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return Worlds.blocking.run(coroutine)

    @initialize()
    def begin_anew(self) -> None:
        self.worker = Worlds.worker
        self.in_hand: list[Publication] = []  # claimed, not in the queue yet
        self.queue: list[Publication] = []
        self.begun: list[Job] = []
        self.pushing: list[tuple[Job, datetime]] = []
        self.entries: list[list[ModelEntry]] = [[] for _ in range(DEVICES)]
        self.skipped = 0.0
        self.pushed = [0] * DEVICES
        self.shown = [0] * DEVICES  # the newest position that the device can have been shown
        self.route: list[bytes | None] = [None] * DEVICES
        self.run(self._empty())

    async def _empty(self) -> None:
        await self.worker.stores.postgres.execute(EVERYTHING)
        self.devices = await self.worker.stores.devices(DEVICES)
        self.sender = (await self.worker.stores.devices(1))[0]
        for number in range(DEVICES):
            await self._put_route(number)

    async def _put_route(self, number: int) -> None:
        device = self.devices[number]
        await put_route(self.worker.stores, device, "http://127.0.0.1:1/push")
        self.route[number] = await self.worker.stores.postgres.fetchval(
            "SELECT wake_route_id FROM push_routes WHERE device_id = $1", device
        )
        self.pushed[number] = 0

    # What gateways do.

    @rule(number=st.integers(0, DEVICES - 1), count=st.integers(1, 3), echo=st.booleans(), short=st.booleans())
    def submit(self, number: int, count: int, echo: bool, short: bool) -> None:
        envelopes = [an_envelope(self.devices[number])._replace(ttl_s=60 if short else None) for _ in range(count)]
        actor = self.devices[1 - number] if echo else self.sender
        self.run(self.worker.stores.submit.submit(a_send(actor, *envelopes, echo=echo)))
        ends = self.skipped + (60 if short else POLICY.ttl_s_default)
        self.entries[number] += [ModelEntry(envelope.mid, ends) for envelope in envelopes]

    @rule(number=st.integers(0, DEVICES - 1), share=st.sampled_from([1, 2]), data=st.data())
    def ack(self, number: int, share: int, data: st.DataObject) -> None:
        chosen = [entry for entry in self.entries[number][-99:] if share == 1 or data.draw(st.booleans())]
        mids = [entry.mid for entry in chosen]
        self._has_seen(
            number, "SELECT max(position) FROM envelopes WHERE recipient_device_id = $1 AND message_id = ANY ($2)", mids
        )
        self.run(self.worker.ack(self.devices[number], [*mids, MessageId(os.urandom(16))]))
        for entry in chosen:
            entry.acked = True

    @rule(number=st.integers(0, DEVICES - 1))
    def contact(self, number: int) -> None:
        self._has_seen(number, "SELECT wake_position FROM mailboxes WHERE device_id = $1")
        self.run(self.worker.contact(self.devices[number]))

    @rule(number=st.integers(0, DEVICES - 1), seconds=st.sampled_from([1, 100]))
    def go_online(self, number: int, seconds: int) -> None:
        self._has_seen(number, "SELECT wake_position FROM mailboxes WHERE device_id = $1")
        self.run(self.worker.go_online(self.devices[number], seconds))

    def _has_seen(self, number: int, sql: str, *arguments: Any) -> None:
        newest = self.run(self.worker.stores.postgres.fetchval(sql, self.devices[number], *arguments))
        self.shown[number] = max(self.shown[number], newest or 0)

    @rule(number=st.integers(0, DEVICES - 1))
    def put_route(self, number: int) -> None:
        self.run(self._put_route(number))

    @rule(number=st.integers(0, DEVICES - 1))
    def delete_route(self, number: int) -> None:
        delete = "DELETE FROM push_routes WHERE device_id = $1"
        self.run(self.worker.stores.postgres.execute(delete, self.devices[number]))
        self.route[number], self.pushed[number] = None, 0

    @rule(seconds=st.sampled_from([1, 31, 61, 601, 1300]))
    def time_passes(self, seconds: int) -> None:
        self.run(self.worker.skip(seconds))
        self.skipped += seconds

    # What workers do, commit by commit.

    @rule(may_publish=st.booleans())
    def claim(self, may_publish: bool) -> None:
        claim = self.worker.outbox.claim(10, published_for=timedelta(seconds=60), may_publish=may_publish)
        self.in_hand += self.run(claim).publications

    @precondition(lambda self: self.in_hand)
    @rule(twice=st.booleans())
    def publish(self, twice: bool) -> None:
        self.queue += self.in_hand * (2 if twice else 1)
        self.in_hand.clear()

    @precondition(lambda self: self.queue)
    @rule(keep=st.booleans())
    def begin_job(self, keep: bool) -> None:
        publication = self.queue[0] if keep else self.queue.pop(0)
        job = self.run(self.worker.outbox.begin(publication.event_id, lease=timedelta(seconds=45)))
        if job is not None:
            self.begun.append(job)

    @precondition(lambda self: self.begun)
    @rule(trouble=st.booleans())
    def decide(self, trouble: bool) -> None:
        job = self.begun.pop(0)
        match decide(facts_of(job), RULES):
            case Done(reason):
                self.run(self.worker.outbox.complete(job, reason=reason))
            case Wait(until, _):
                self.run(self.worker.outbox.back_to_pending(job, until=until))
            case Push() if trouble:
                put_off = self.worker.outbox.put_off(job, wait=timedelta(seconds=30), reason="x", troubles=1)
                self.run(put_off)
            case Push():
                began = self.run(self.worker.outbox.push_begins(job.device))
                self.pushing.append((job, began))
                number = self.devices.index(job.device)
                if job.route is not None and job.route.wake_route_id == self.route[number]:
                    self.pushed[number] = max(self.pushed[number], job.wake_position)

    @precondition(lambda self: self.pushing)
    @rule()
    def record(self) -> None:
        job, began = self.pushing.pop(0)
        self.run(self.worker.outbox.pushed(job, began))

    @rule(redis_too=st.booleans())
    def everybody_dies(self, redis_too: bool) -> None:
        self.in_hand.clear()
        self.begun.clear()
        self.pushing.clear()
        if redis_too:
            self.queue.clear()

    @rule()
    def reconcile(self) -> None:
        self.run(self.worker.outbox.take_back_overdue(100))

    @rule()
    def rebuild(self) -> None:
        async def take_back() -> None:
            await self.worker.outbox.take_back_published(await self.worker.outbox.now(), 100)

        self.run(take_back())

    @precondition(lambda self: self.begun)
    @rule()
    def bury(self) -> None:
        self.run(self.worker.outbox.bury(self.begun.pop(0).event_id, reason="poison"))

    @rule()
    def requeue(self) -> None:
        async def requeue() -> None:
            for letter in await self.worker.outbox.dead_letters():
                await self.worker.outbox.requeue_dead_letter(self.worker.stores.postgres, letter.event_id)

        self.run(requeue())

    @rule(table=st.sampled_from([Table.EXPIRED, Table.ACKED, Table.OUTBOX]), rows_max=st.sampled_from([2, 1000]))
    def clean_up(self, table: Table, rows_max: int) -> None:
        self.run(self.worker.retention.sweep(table, POLICY, rows_max))

    # What must hold.

    @invariant()
    def nothing_is_forgotten(self) -> None:
        count = self.run(self.worker.stores.postgres.fetchval(FORGOTTEN, self.devices, self.pushed))
        assert count == 0

    @invariant()
    def what_was_never_shown_is_not_done_by_contact(self) -> None:
        count = self.run(self.worker.stores.postgres.fetchval(UNSEEN, self.devices, self.shown))
        assert count == 0

    @invariant()
    def wake_open_says_what_the_outbox_says(self) -> None:
        assert self.run(self.worker.stores.postgres.fetchval(MARKS)) == 0

    @invariant()
    def a_mailbox_holds_what_the_model_says_in_order(self) -> None:
        for number, device in enumerate(self.devices):
            found = self.run(self.worker.stores.whole_mailbox(device))
            echoes = set(found) - {entry.mid for entry in self.entries[number]}
            # An example takes some real seconds too: what ends within them is left out of the comparison.
            unclear = {entry.mid for entry in self.entries[number] if 0 <= entry.ends - self.skipped < REAL_SECONDS}
            expected = [entry.mid for entry in self.entries[number] if not entry.acked and entry.ends > self.skipped]
            assert [m for m in found if m not in unclear | echoes] == [m for m in expected if m not in unclear]

    @invariant()
    def counters_and_floors_fit_the_rows(self) -> None:
        drift = self.run(self.worker.stores.postgres.fetch("SELECT * FROM counter_drift_v1($1, 100)", BEFORE_ALL))
        for row in drift:
            assert (row["entries_drift"], row["bytes_drift"], row["echoes_drift"], row["floor_drift"]) == (0, 0, 0, 0)

    def teardown(self) -> None:
        """Whatever was lost on the way: the loops alone end it, with a push or with nothing to push for."""
        if not hasattr(self, "devices"):
            return
        self.run(self._recover())

    async def _recover(self) -> None:
        self.worker.provider.pushed.clear()  # type: ignore[attr-defined]
        for _ in range(4):
            await self.worker.skip(1300)
            await self.worker.reconciler.round()
            await self.worker.turn()
        for number, device in enumerate(self.devices):
            route = self.route[number]
            pushed = any(target.wake_route_id == route for target in self.worker.provider.pushed)  # type: ignore[attr-defined]
            due = [device], [self.pushed[number]]
            waits = await self.worker.stores.postgres.fetchval(
                FORGOTTEN.replace("AND NOT EXISTS", "AND EXISTS", 1), *due
            )
            assert pushed or not waits or await self._dead(device)

    async def _dead(self, device: DeviceId) -> bool:
        return await self.worker.state(device) == "dead_letter"


@pytest.fixture
def world(database: str, redis_url: str, blocking: BlockingRunner) -> Any:
    stack = AsyncExitStack()

    async def enter() -> WorkerParts:
        return await stack.enter_async_context(worker_parts(database, redis_url, rules=RULES))

    Worlds.blocking, Worlds.worker = blocking, blocking.run(enter())
    yield Worlds.worker
    blocking.run(stack.aclose())


CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@pytest.mark.parametrize("examples", [25, pytest.param(400, marks=[pytest.mark.slow, pytest.mark.timeout(1_200)])])
def test_in_random_interleavings_nothing_is_forgotten_and_nothing_drifts(world: WorkerParts, examples: int) -> None:
    run_state_machine_as_test(
        Wakes,
        settings=settings(max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=CHECKS),
    )
    assert world.metrics.wake_drift._value.get() == 0
