"""The way of a wake intent through PostgreSQL and Redis: each done rule, each wait, each way back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from store.outbox import WakeRules
from tests.support.push_receiver import push_receiver
from tests.support.wakes import ScriptedProvider, WorkerParts, put_route, worker_parts
from worker.push.outcome import Gone, Misconfigured, Retry


@pytest.fixture
async def worker(database: str, redis_url: str) -> AsyncIterator[WorkerParts]:
    async with worker_parts(database, redis_url) as parts:
        yield parts


def pushes(worker: WorkerParts) -> int:
    assert isinstance(worker.provider, ScriptedProvider)
    return len(worker.provider.pushed)


async def test_an_offline_device_with_a_route_gets_one_push_at_once(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.submit(device)
    await worker.turn()
    assert pushes(worker) == 1
    row = await worker.intent(device)
    assert (row["state"], row["pushes_accepted"], row["attempts"]) == ("retry_wait", 1, 0)
    assert await worker.wake_open(device)


async def test_mail_that_follows_a_push_is_collapsed_into_its_repeat(worker: WorkerParts) -> None:
    device = await worker.device()
    for _ in range(3):
        await worker.submit(device)
        await worker.turn()
    assert pushes(worker) == 1
    await worker.skip(31)
    await worker.turn()
    assert pushes(worker) == 2


async def test_a_swallowed_push_is_repeated_after_30_s_then_doubling_until_12_then_given_up(
    worker: WorkerParts,
) -> None:
    device = await worker.device()
    await worker.submit(device)
    await worker.turn()
    for number, minutes in enumerate([0.5, 1, 2, 4, 8, 16, 20, 20, 20, 20, 20], start=2):
        await worker.skip(minutes * 60 - 5)
        await worker.turn()
        assert pushes(worker) == number - 1
        await worker.skip(6)
        await worker.turn()
        assert pushes(worker) == number
    await worker.skip(20 * 60 + 1)
    await worker.turn()
    row = await worker.intent(device)
    assert (pushes(worker), row["state"], row["reason"]) == (12, "completed", "gave_up")
    assert not await worker.wake_open(device)
    await worker.submit(device)
    await worker.turn()
    assert pushes(worker) == 13


async def test_contact_after_the_push_ends_the_intent(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.submit(device)
    await worker.turn()
    await worker.contact(device)
    await worker.skip(31)
    await worker.turn()
    row = await worker.intent(device)
    assert (row["state"], row["reason"], pushes(worker)) == ("completed", "contact", 1)


async def test_a_contact_that_answers_a_push_is_written_even_within_a_minute_of_another(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.contact(device)
    await worker.submit(device)
    await worker.turn()
    await worker.contact(device)
    await worker.skip(31)
    await worker.turn()
    assert (await worker.intent(device))["reason"] == "contact"


async def test_mail_after_a_contact_is_pushed_soon_and_not_at_the_old_repeat(worker: WorkerParts) -> None:
    """The intent slept until its 20-minute repeat; the device came, fetched, left; new mail must not sleep with it."""
    device = await worker.device()
    await worker.submit(device)
    await worker.turn()
    for _ in range(9):
        await worker.skip(20 * 60 + 1)
        await worker.turn()
    assert pushes(worker) == 10
    await worker.contact(device)
    await worker.submit(device)
    await worker.skip(31)
    await worker.turn()
    assert pushes(worker) == 11
    assert (await worker.intent(device))["pushes_accepted"] == 1  # it counts anew after a contact


async def test_an_ack_of_older_mail_alone_is_no_answer_to_a_push(worker: WorkerParts) -> None:
    """The device fetched the first before the second came, and the provider swallows the push for that one."""
    device = await worker.device()
    [first] = await worker.submit(device)
    await worker.turn()
    await worker.contact(device)
    await worker.skip(31)
    [second] = await worker.submit(device)
    await worker.turn()
    assert pushes(worker) == 2
    await worker.ack(device, [first])
    await worker.skip(31)
    await worker.turn()
    assert pushes(worker) == 3
    await worker.ack(device, [second])
    await worker.skip(61)
    await worker.turn()
    assert ((await worker.intent(device))["reason"], pushes(worker)) == ("nothing_waits", 3)


async def test_an_ack_of_the_newest_answers_the_push_although_older_mail_waits(worker: WorkerParts) -> None:
    device = await worker.device()
    _deferred, newest = await worker.submit(device, count=2)
    await worker.turn()
    await worker.ack(device, [newest])
    await worker.skip(31)
    await worker.turn()
    assert ((await worker.intent(device))["reason"], pushes(worker)) == ("contact", 1)


async def test_mail_that_commits_while_the_device_pulls_is_woken_again(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.submit(device)
    await worker.turn()
    await worker.contact(device)  # the pull's snapshot is taken here …
    await worker.submit(device)  # … and this commits behind it
    await worker.turn()
    assert pushes(worker) == 1
    await worker.skip(31)
    await worker.turn()
    assert pushes(worker) == 2


async def test_acked_meanwhile_no_push(worker: WorkerParts) -> None:
    device = await worker.device()
    mids = await worker.submit(device)
    await worker.ack(device, mids)
    await worker.turn()
    row = await worker.intent(device)
    assert (row["state"], row["reason"], pushes(worker)) == ("completed", "nothing_waits", 0)
    assert not await worker.wake_open(device)


async def test_acked_between_publication_and_execution_no_push(worker: WorkerParts) -> None:
    device = await worker.device()
    mids = await worker.submit(device)
    await worker.dispatch()
    assert await worker.state(device) == "published"
    await worker.ack(device, mids)
    await worker.work()
    assert (await worker.state(device), pushes(worker)) == ("completed", 0)


async def test_without_a_route_the_intent_ends_and_a_new_route_opens_it_again(worker: WorkerParts) -> None:
    device = await worker.device(route=False)
    await worker.submit(device)
    await worker.turn()
    assert (await worker.intent(device))["reason"] == "no_route"
    await put_route(worker.stores, device, "http://127.0.0.1:1/new")
    await worker.turn()
    assert pushes(worker) == 1


async def test_a_route_that_comes_while_the_worker_judges_by_its_absence_is_used(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.submit(device)
    await worker.dispatch()
    await worker.stores.postgres.execute("DELETE FROM push_routes WHERE device_id = $1", device)
    row = await worker.intent(device)
    job = await worker.outbox.begin(row["event_id"], lease=timedelta(seconds=45))
    assert job is not None
    assert job.route is None
    await put_route(worker.stores, device, "http://127.0.0.1:1/new")
    assert not await worker.outbox.complete(job, reason="no_route")
    await worker.turn()
    assert pushes(worker) == 1


async def test_a_new_route_makes_the_waiting_intent_due(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.submit(device)
    await worker.turn()
    await put_route(worker.stores, device, "http://127.0.0.1:1/new")
    await worker.turn()
    assert pushes(worker) == 2


async def test_an_online_device_is_not_pushed_until_its_lease_ends(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.go_online(device, 100)
    await worker.submit(device)
    await worker.turn()
    assert (await worker.state(device), pushes(worker)) == ("pending", 0)
    await worker.go_online(device, 200)  # renewed: the row still says 100
    await worker.skip(101)
    await worker.turn()
    assert pushes(worker) == 0
    await worker.skip(100)  # black-holed: renewed no more
    await worker.turn()
    assert pushes(worker) == 1


async def test_an_online_device_that_acks_costs_no_redis_round(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.go_online(device, 1)
    for _ in range(3):
        mids = await worker.submit(device)
        await worker.ack(device, mids)
    assert (await worker.intent(device))["generation"] == 1
    await worker.skip(2)
    await worker.dispatch()
    assert await worker.state(device) == "completed"
    assert await worker.redis.dbsize() <= 1  # the stream that the group was made with, with nothing in it
    assert await worker.work() == 0


async def test_a_database_clock_set_back_by_an_hour_makes_no_wake_wait_for_it(worker: WorkerParts) -> None:
    away, repeating = await worker.device(), await worker.device()
    await worker.skip(3_600)
    await worker.go_online(away, 105)
    await worker.submit(repeating)
    await worker.turn()
    assert pushes(worker) == 1
    await worker.skip(-3_600)
    await worker.submit(away)
    await worker.turn()
    assert pushes(worker) == 1  # both wait for times of the old clock
    assert await worker.reconciler.round() == 2
    await worker.turn()
    assert pushes(worker) == 2  # the other's push counts as one of a moment ago
    await worker.skip(31)
    await worker.turn()
    assert pushes(worker) == 4
    for device in (away, repeating):  # what the new clock says counts again
        await worker.contact(device)
    await worker.skip(61)
    await worker.turn()
    assert [await worker.state(device) for device in (away, repeating)] == ["completed", "completed"]
    assert await worker.reconciler.round() == 0


async def test_an_echo_wakes_nobody(worker: WorkerParts) -> None:
    from tests.support.mailboxes import a_send, an_envelope

    device, other = await worker.device(), await worker.device(route=False)
    await worker.stores.submit.submit(a_send(device, an_envelope(other), echo=True))
    await worker.turn()
    assert await worker.intent(device) is None


async def test_expired_mail_is_not_announced(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.submit(device)
    await worker.skip(8 * 86_400)
    await worker.turn()
    assert ((await worker.intent(device))["reason"], pushes(worker)) == ("nothing_waits", 0)


async def test_a_revoked_device_is_not_pushed(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.submit(device)
    await worker.stores.postgres.execute("UPDATE mailboxes SET state = 2 WHERE device_id = $1", device)
    await worker.turn()
    assert ((await worker.intent(device))["reason"], pushes(worker)) == ("revoked", 0)


async def test_provider_trouble_uses_up_no_attempts_and_waits_longer_each_time(worker: WorkerParts) -> None:
    assert isinstance(worker.provider, ScriptedProvider)
    device = await worker.device()
    worker.provider.outcome = lambda _target: Retry("status_503")
    await worker.submit(device)
    waits = []
    for _ in range(4):
        await worker.turn()
        row = await worker.intent(device)
        assert (row["state"], row["attempts"]) == ("retry_wait", 0)
        waits.append((row["next_attempt_at"] - await worker.now()).total_seconds())
        await worker.skip(waits[-1] + 0.5)
    assert waits == sorted(waits)
    assert waits[3] > 4 * waits[0]
    worker.provider.outcome = ScriptedProvider().outcome
    await worker.turn()
    row = await worker.intent(device)
    assert (row["pushes_accepted"], row["troubles"]) == (1, 0)


async def test_retry_after_is_honoured(worker: WorkerParts) -> None:
    assert isinstance(worker.provider, ScriptedProvider)
    device = await worker.device()
    worker.provider.outcome = lambda _target: Retry("status_429", timedelta(seconds=600))
    await worker.submit(device)
    await worker.turn()
    await worker.skip(599)
    await worker.turn()
    assert pushes(worker) == 1
    await worker.skip(62)
    await worker.turn()
    assert pushes(worker) == 2


async def test_a_refused_route_shows_as_misconfigured_and_heals(worker: WorkerParts) -> None:
    assert isinstance(worker.provider, ScriptedProvider)
    device = await worker.device()
    worker.provider.outcome = lambda _target: Misconfigured("refused")
    await worker.submit(device)
    await worker.turn()
    status = "SELECT status FROM push_routes WHERE device_id = $1"
    assert await worker.stores.postgres.fetchval(status, device) == "misconfigured"
    assert (await worker.intent(device))["attempts"] == 0
    worker.provider.outcome = ScriptedProvider().outcome
    await worker.skip(120)
    await worker.turn()
    assert await worker.stores.postgres.fetchval(status, device) == "active"


async def test_a_route_called_gone_twice_is_disabled_told_and_audited(
    database: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.push.pruning.CONFIRM_SECONDS", 0.0)
    told: list[bytes] = []
    async with worker_parts(database, redis_url, on_route_gone=told.append) as worker:
        assert isinstance(worker.provider, ScriptedProvider)
        device = await worker.device()
        worker.provider.outcome = lambda _target: Gone()
        await worker.submit(device)
        await worker.turn()
        row = await worker.stores.postgres.fetchrow("SELECT * FROM push_routes WHERE device_id = $1", device)
        assert row is not None
        assert (row["status"], row["gone_told_at"]) == ("gone", None)
        assert told == [device]
        assert (await worker.intent(device))["reason"] == "no_route"
        [event] = await worker.audit.list()
        assert (event.event_type, event.detail) == ("push_route.gone", {"provider": "gateway"})


async def test_a_verdict_on_an_old_route_leaves_the_new_one_alone(worker: WorkerParts) -> None:
    device = await worker.device()
    await worker.submit(device)
    await worker.dispatch()
    row = await worker.intent(device)
    job = await worker.outbox.begin(row["event_id"], lease=timedelta(seconds=45))
    assert job is not None
    assert job.route is not None
    await worker.stores.postgres.execute("DELETE FROM push_routes WHERE device_id = $1", device)
    await put_route(worker.stores, device, "http://127.0.0.1:1/new")  # its version is the old one's again
    assert not await worker.outbox.disable_route(worker.stores.postgres, device, job.route)


async def test_the_push_gateway_learns_the_routes_id_and_nothing_else(database: str, redis_url: str) -> None:
    async with push_receiver() as receiver, worker_parts(database, redis_url, http=True) as worker:
        device = await worker.device(url=receiver.url)
        await worker.submit(device)
        await worker.turn()
        [push] = receiver.received
        assert json.loads(push.body).keys() == {"wake_route_id"}
        assert len(push.wake_route_id) == 22
        assert set(push.headers) == {
            "Host",
            "Accept",
            "Accept-Encoding",
            "User-Agent",
            "Content-Type",
            "Content-Length",
        }
        assert (await worker.intent(device))["pushes_accepted"] == 1


async def test_repeats_follow_the_setting(database: str, redis_url: str) -> None:
    rules = WakeRules(repeat_first=timedelta(seconds=5))
    async with worker_parts(database, redis_url, rules=rules) as worker:
        device = await worker.device()
        await worker.submit(device)
        await worker.turn()
        await worker.skip(5.5)
        await worker.turn()
        assert pushes(worker) == 2
