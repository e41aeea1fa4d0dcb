"""The queue between dispatcher and workers, on real Valkey: leases, loss, emptiness, stalls, poison, other releases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from store.job_queue import MESSAGES_MAX, JobQueue, QueueLost, QueueUnreachable
from store.outbox import Job, Publication
from store.redis_client import connect
from tests.support.waiting import eventually
from tests.support.wakes import INSTANCE_TAG, ScriptedProvider, WorkerParts, put_route, worker_parts
from worker.handlers.wake_device import TASK
from worker.retry_policy import RetryPolicy


@pytest.fixture
async def worker(database: str, redis_url: str) -> AsyncIterator[WorkerParts]:
    async with worker_parts(database, redis_url) as parts:
        yield parts


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Any]:
    client = connect(redis_url)
    yield client
    await client.aclose()


def a_queue(redis: Any, consumer: bytes = b"one", tag: str = INSTANCE_TAG) -> JobQueue:
    return JobQueue(redis, tag, consumer=consumer)


def publications(count: int) -> list[Publication]:
    return [Publication(bytes([1] * 15 + [number + 1]), "wake_device", 1, number) for number in range(count)]


async def joined(queue: JobQueue) -> JobQueue:
    with pytest.raises(QueueLost):
        await queue.receive(1, block_ms=1)
    return queue


async def test_what_was_published_before_the_group_existed_is_received(redis: Any) -> None:
    queue = a_queue(redis)
    await queue.publish(publications(3))
    await joined(queue)
    assert [delivery.event_id for delivery in await queue.receive(10, block_ms=1)] == [
        publication.event_id for publication in publications(3)
    ]


async def test_a_message_holds_references_only(redis: Any) -> None:
    await a_queue(redis).publish(publications(1))
    [(_, fields)] = await redis.xrange(f"mb:{{{INSTANCE_TAG}}}:jobs")
    assert set(fields) == {b"event_id", b"task_type", b"task_version", b"ref"}


async def test_two_consumers_never_get_the_same_message(redis: Any) -> None:
    one, two = await joined(a_queue(redis, b"one")), a_queue(redis, b"two")
    await one.publish(publications(20))
    first, second = await one.receive(12, block_ms=1), await two.receive(12, block_ms=1)
    assert (len(first), len(second)) == (12, 8)
    assert not {d.event_id for d in first} & {d.event_id for d in second}


async def test_a_lease_that_ran_out_is_taken_over_and_counted(redis: Any) -> None:
    one, two = await joined(a_queue(redis, b"one")), a_queue(redis, b"two")
    await one.publish(publications(2))
    assert [d.deliveries for d in await one.receive(2, block_ms=1)] == [1, 1]
    assert await two.reclaim(10, lease_ms=60_000) == []
    await eventually(lambda: _reclaimed(two, 2, [2, 2]))
    await eventually(lambda: _reclaimed(one, 2, [3, 3]))


async def _reclaimed(queue: JobQueue, count: int, deliveries: list[int]) -> bool:
    taken = await queue.reclaim(10, lease_ms=1)
    return len(taken) == count and [d.deliveries for d in taken] == deliveries


async def test_settled_messages_leave_nothing_behind(redis: Any) -> None:
    queue = await joined(a_queue(redis))
    await queue.publish(publications(5))
    await queue.settle([delivery.message_id for delivery in await queue.receive(5, block_ms=1)])
    depth = await queue.depth()
    assert (depth.messages, depth.handed_out) == (0, 0)
    await queue.leave()
    assert await redis.xinfo_consumers(f"mb:{{{INSTANCE_TAG}}}:jobs", "workers") == []


async def test_the_stream_is_bounded(redis: Any) -> None:
    queue = await joined(a_queue(redis))
    many = publications(200) * (MESSAGES_MAX // 200 + 5)
    await queue.publish(many)
    assert (await queue.depth()).messages < MESSAGES_MAX + 200 < len(many)


async def test_instances_on_one_redis_do_not_see_each_other(redis: Any) -> None:
    ours, theirs = await joined(a_queue(redis)), await joined(a_queue(redis, tag="fedcba9876543210"))
    await ours.publish(publications(1))
    assert await theirs.receive(1, block_ms=1) == []


async def test_what_is_not_a_job_is_thrown_out(redis: Any) -> None:
    queue = await joined(a_queue(redis))
    await redis.xadd(f"mb:{{{INSTANCE_TAG}}}:jobs", {"hello": "world"})
    assert await queue.receive(1, block_ms=1) == []
    assert (await queue.depth()).messages == 0


async def test_a_lost_group_is_made_again_and_told(redis: Any) -> None:
    queue = await joined(a_queue(redis))
    await redis.flushdb()
    for call in (queue.receive(1, block_ms=1), queue.depth(), queue.reclaim(1, lease_ms=1)):
        await redis.flushdb()
        with pytest.raises(QueueLost):
            await call
    assert await queue.receive(1, block_ms=1) == []


async def test_an_emptied_queue_is_rebuilt_from_the_outbox(worker: WorkerParts) -> None:
    devices = [await worker.device() for _ in range(5)]
    for device in devices:
        await worker.submit(device)
    await worker.dispatch()
    await worker.redis.flushdb()
    assert await worker.work() == 0  # finds no group, asks for the rebuild
    assert await worker.reconciler.round() == 5
    await worker.turn()
    assert isinstance(worker.provider, ScriptedProvider)
    assert len(worker.provider.pushed) == 5


async def test_after_a_change_of_namespace_the_new_queue_is_filled_from_the_outbox(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.submit(device)
    await worker.dispatch()
    worker.queue._stream = b"mb:{fedcba9876543210}:jobs"
    await worker.work()
    await worker.reconciler.round()
    await worker.turn()
    assert (await worker.intent(device))["pushes_accepted"] == 1


class Relay:
    """A TCP relay to the real Valkey, wherever it listens, that can be cut and joined again."""

    def __init__(self, redis_url: str) -> None:
        self._target = urlsplit(redis_url)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def join(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await self._there()
        self._writers |= {writer, there_writer}
        await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))

    async def _there(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.scheme == "unix":
            return await asyncio.open_unix_connection(self._target.path)
        return await asyncio.open_connection(self._target.hostname, self._target.port)

    @property
    def url(self) -> str:
        """As the real one's, for the same database."""
        database = parse_qs(self._target.query).get("db", [self._target.path.strip("/") or "0"])[0]
        login, at, _ = self._target.netloc.rpartition("@")
        return f"redis://{login}{at}127.0.0.1:{self.port}/{database}"


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
    except ConnectionError:
        pass
    writer.close()


async def test_a_cut_connection_to_redis_costs_time_and_nothing_else(database: str, redis_url: str) -> None:
    relay = Relay(redis_url)
    await relay.join()
    async with worker_parts(database, relay.url) as worker:
        first, second = await worker.device(), await worker.device()
        await worker.submit(first)
        await worker.turn()
        await relay.cut()
        await worker.submit(second)
        await worker.dispatch()
        assert await worker.state(second) == "pending"
        with pytest.raises(QueueUnreachable):
            await worker.work()
        await relay.join()
        await worker.turn()
        assert [(await worker.intent(device))["pushes_accepted"] for device in (first, second)] == [1, 1]
        await relay.cut()


async def test_a_message_that_the_queue_dropped_comes_back_by_its_deadline(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.submit(device)
    await worker.dispatch()
    await worker.redis.xtrim(f"mb:{{{INSTANCE_TAG}}}:jobs", maxlen=0)
    assert await worker.reconciler.round() == 0
    await worker.skip(61)
    assert await worker.reconciler.round() == 1
    await worker.turn()
    assert (await worker.intent(device))["pushes_accepted"] == 1


class StalledRedis:
    """Answers OK to whatever comes, until the first XADD; from then on nothing."""

    def __init__(self) -> None:
        self.stalled = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if b"XADD" in data:
                self.stalled.set()
            if not self.stalled.is_set():
                writer.write(b"+OK\r\n" * data.count(b"*"))
        writer.close()


@asynccontextmanager
async def stalled_redis() -> AsyncIterator[StalledRedis]:
    redis = StalledRedis()
    server = await asyncio.start_server(redis.serve, "127.0.0.1", 0)
    redis.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    try:
        yield redis
    finally:
        server.close()


async def test_no_row_lock_is_held_while_redis_stalls(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 000, 5: the dispatcher never calls Redis under a lock. Here Redis never answers the XADD."""
    async with stalled_redis() as redis, worker_parts(database, redis.url) as worker:
        monkeypatch.setattr(worker.dispatcher, "_queue_has_room", _yes)
        device = await worker.device()
        await worker.submit(device)
        stalled = asyncio.create_task(worker.dispatcher.round())
        await asyncio.wait_for(redis.stalled.wait(), 30)
        postgres = worker.stores.postgres
        open_transactions = await postgres.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND state <> 'idle'"
        )
        assert open_transactions == 0
        # Nobody waits for the intent or its mailbox.
        assert await postgres.fetchval("SELECT state FROM outbox_events FOR UPDATE NOWAIT") == "published"
        await worker.submit(device)
        assert not stalled.done()
        stalled.cancel()
        await asyncio.gather(stalled, return_exceptions=True)


async def _yes() -> bool:
    return True


async def test_a_queue_that_takes_nothing_leaves_the_intents_due(database: str) -> None:
    async with worker_parts(database, "redis://127.0.0.1:1/0") as worker:
        waiting, acked = await worker.device(), await worker.device()
        await worker.submit(waiting)
        await worker.ack(acked, await worker.submit(acked))
        await worker.dispatcher.round()
        assert await worker.state(waiting) == "pending"
        assert await worker.state(acked) == "completed"  # what is done needs no Redis


async def test_a_queue_that_fails_in_the_middle_gives_the_events_back_at_once(
    database: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with worker_parts(database, redis_url) as worker:
        device = await worker.device()
        await worker.submit(device)

        async def fails(_publications: Any) -> None:
            raise QueueUnreachable("made on purpose")

        with monkeypatch.context() as patched:
            patched.setattr(worker.queue, "publish", fails)
            await worker.dispatcher.round()
        row = await worker.intent(device)
        assert (row["state"], row["attempts"]) == ("pending", 0)
        await worker.turn()
        assert (await worker.intent(device))["pushes_accepted"] == 1


async def test_poison_ends_as_a_dead_letter_after_its_attempts_with_growing_waits(
    database: str, redis_url: str
) -> None:
    async def always_fails(_job: Job) -> str:
        raise ValueError("poison")

    async with worker_parts(database, redis_url, handlers={TASK: always_fails}) as worker:
        device = await worker.device()
        await worker.submit(device)
        waits = []
        for _ in range(RetryPolicy().attempts_max - 1):
            await worker.turn()
            row = await worker.intent(device)
            assert (row["state"], row["reason"]) == ("retry_wait", "failed: ValueError")
            waits.append((row["next_attempt_at"] - await worker.now()).total_seconds())
            await worker.skip(waits[-1] + 0.1)
        assert waits == sorted(waits)
        assert waits[-1] > 30 * waits[0]
        await worker.turn()
        row = await worker.intent(device)
        assert (row["state"], row["attempts"]) == ("dead_letter", 8)
        assert not await worker.wake_open(device)
        assert (await worker.outbox.depth()).dead_letter == 1


async def test_what_is_begun_again_and_again_without_an_end_is_a_dead_letter(worker: WorkerParts) -> None:
    """A worker that dies in the handler writes no failure: the attempt was counted when it began."""
    device = await worker.device()
    await worker.submit(device)
    for attempt in range(1, RetryPolicy().attempts_max + 1):
        await worker.dispatch()
        [delivery] = await worker.queue.receive(1, block_ms=1)
        job = await worker.outbox.begin(delivery.event_id, lease=timedelta(seconds=45))
        assert job is not None
        assert job.attempts == attempt
        await worker.skip(46)
        assert await worker.reconciler.round() == 1
    await worker.turn()
    row = await worker.intent(device)
    assert (row["state"], row["reason"]) == ("dead_letter", "begun too often without an end")
    assert worker.reconciler.hints() == {}
    await worker.reconciler.round()
    assert worker.reconciler.hints() == {"dead_letters": 1}


async def dead_letter(worker: WorkerParts, device: Any) -> bytes:
    await worker.submit(device)
    event_id: bytes = (await worker.intent(device))["event_id"]
    assert await worker.outbox.bury(event_id, reason="made on purpose")
    return event_id


async def test_a_dead_letter_is_listed_shown_and_requeued(worker: WorkerParts) -> None:
    device = await worker.device()
    event_id = await dead_letter(worker, device)
    [listed] = await worker.outbox.dead_letters()
    assert (listed.event_id, listed.reason) == (event_id, "made on purpose")
    assert await worker.outbox.dead_letter(event_id) == listed
    assert await worker.outbox.requeue_dead_letter(worker.stores.postgres, event_id)
    assert await worker.wake_open(device)
    await worker.turn()
    assert (await worker.intent(device))["pushes_accepted"] == 1
    assert not await worker.outbox.requeue_dead_letter(worker.stores.postgres, event_id)


@pytest.mark.parametrize("state", ["pending", "published", "retry_wait", "completed"])
async def test_a_requeued_dead_letter_merges_into_the_intent_that_came_after_it(
    worker: WorkerParts, state: str
) -> None:
    device = await worker.device()
    event_id = await dead_letter(worker, device)
    await worker.submit(device)
    if state == "completed":
        await worker.stores.postgres.execute("DELETE FROM push_routes")
    if state != "pending":
        await worker.dispatch()
    if state == "retry_wait":
        await worker.work()
    assert await worker.state(device) == state
    assert await worker.outbox.requeue_dead_letter(worker.stores.postgres, event_id)
    rows = await worker.stores.postgres.fetch("SELECT state FROM outbox_events WHERE aggregate_ref = $1", device)
    assert len(rows) == 1
    assert await worker.wake_open(device)
    if state == "completed":
        await put_route(worker.stores, device, "http://127.0.0.1:1/push")
    await worker.turn()
    row = await worker.intent(device)
    assert (row["state"], row["pushes_accepted"]) == ("retry_wait", 1)


async def test_a_dropped_dead_letter_is_gone(worker: WorkerParts) -> None:
    device = await worker.device()
    event_id = await dead_letter(worker, device)
    assert await worker.outbox.drop_dead_letter(worker.stores.postgres, event_id)
    assert not await worker.outbox.drop_dead_letter(worker.stores.postgres, event_id)
    await worker.submit(device)
    await worker.turn()
    assert (await worker.intent(device))["pushes_accepted"] == 1


async def test_a_message_delivered_too_often_is_a_dead_letter_too(worker: WorkerParts) -> None:
    """A worker that dies before it can count an attempt leaves only the stream's own count."""
    device = await worker.device()
    await worker.submit(device)
    await worker.dispatch()
    [delivery] = await worker.queue.receive(1, block_ms=1)
    await worker.jobs._execute(delivery._replace(deliveries=RetryPolicy().deliveries_max + 1))
    assert await worker.state(device) == "dead_letter"


async def test_an_unknown_task_version_waits_with_its_reason_for_the_new_worker(database: str, redis_url: str) -> None:
    done: list[int] = []

    async def version_two(job: Job) -> str:
        done.append(job.task_version)
        await new.outbox.complete(job, reason="done")
        return "done"

    async with worker_parts(database, redis_url) as old:
        device = await old.device()
        await old.submit(device)
        await old.stores.postgres.execute("UPDATE outbox_events SET task_version = 2")
        for _ in range(12):  # more often than attempts are allowed
            await old.turn()
            row = await old.intent(device)
            assert (row["state"], row["reason"], row["attempts"]) == ("retry_wait", "unknown task version 2", 0)
            await old.skip(16)
        assert (await old.outbox.depth()).unknown_tasks == 1
    async with worker_parts(
        database, redis_url, handlers={TASK: new_handles_nothing, ("wake_device", 2): version_two}
    ) as new:
        await new.turn()
        assert done == [2]
        assert await new.state(device) == "completed"


async def new_handles_nothing(_job: Job) -> str:
    raise AssertionError("no job of version 1 is there")


async def test_a_new_worker_still_runs_the_previous_versions_jobs(database: str, redis_url: str) -> None:
    async with worker_parts(database, redis_url) as worker:
        device = await worker.device()
        await worker.submit(device)
        await worker.dispatch()
        worker.jobs._handlers = {TASK: worker.wake_device, ("wake_device", 2): new_handles_nothing}
        await worker.work()
        assert (await worker.intent(device))["pushes_accepted"] == 1


async def test_a_second_delivery_after_the_end_changes_nothing(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.submit(device)
    await worker.dispatch()
    [delivery] = await worker.queue.receive(1, block_ms=1)
    await worker.jobs._execute(delivery)
    before = await worker.intent(device)
    await worker.jobs._execute(delivery)
    assert dict(await worker.intent(device)) == dict(before)
    assert isinstance(worker.provider, ScriptedProvider)
    assert len(worker.provider.pushed) == 1


async def test_a_publication_is_begun_once_however_often_it_is_delivered(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.submit(device)
    claimed = await worker.outbox.claim(10, published_for=timedelta(seconds=60))
    [publication] = claimed.publications
    begun = await asyncio.gather(
        *(worker.outbox.begin(publication.event_id, lease=timedelta(seconds=45)) for _ in range(3))
    )
    assert sum(job is not None for job in begun) == 1
    await worker.skip(46)  # whoever began it is gone: it comes back
    assert await worker.reconciler.round() == 1
    await worker.turn()
    assert (await worker.intent(device))["pushes_accepted"] == 1


async def test_dispatchers_of_two_workers_share_the_due_events(worker: WorkerParts) -> None:
    devices = [await worker.device() for _ in range(40)]
    for device in devices:
        await worker.submit(device)
    claims = await asyncio.gather(*(worker.outbox.claim(30, published_for=timedelta(seconds=60)) for _ in range(3)))
    published = [publication.event_id for claimed in claims for publication in claimed.publications]
    assert len(published) == len(set(published))
    rest = await worker.outbox.claim(100, published_for=timedelta(seconds=60))
    assert len(published) + len(rest.publications) == 40


async def test_what_another_transaction_holds_is_skipped_and_stays_due(worker: WorkerParts) -> None:
    held, free = await worker.device(), await worker.device()
    for device in (held, free):
        await worker.ack(device, await worker.submit(device))
    async with worker.stores.postgres.transaction() as connection:
        await connection.execute("SELECT FROM mailboxes WHERE device_id = $1 FOR NO KEY UPDATE", held)
        async with asyncio.timeout(30):
            claimed = await worker.outbox.claim(10, published_for=timedelta(seconds=60))
        assert (claimed.completed, claimed.more) == ({"nothing_waits": 1}, True)
    assert (await worker.state(held), await worker.state(free)) == ("pending", "completed")
    await worker.dispatch()
    assert await worker.state(held) == "completed"
