"""Submit under concurrency, on real PostgreSQL (seed 000, 3.1, 4 and 5; DESIGN, "Group commit")."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.fingerprint import InstanceSecret
from runtime import faultpoints
from runtime.faultpoints import Action
from store.policy_rules import Policy
from store.postgres import Lane, Postgres
from store.records import AckRequest, Submitted
from tests.support.database import connected
from tests.support.mailboxes import Secrets, a_cmid, a_mid, a_send, an_envelope, stores
from tests.support.services import set_clock_offset
from tests.support.waiting import eventually

DAY_S = 86_400


async def test_adr009_3_1_a_repeated_send_keeps_its_first_acceptance(database: str) -> None:
    async with stores(database) as gateway:
        sender, recipient = await gateway.devices(2)
        request = a_send(sender, an_envelope(recipient), echo=True)
        first = await gateway.submit.submit(request)
        again = await gateway.submit.submit(request)
        assert (first.duplicate, again.duplicate) == (False, True)
        assert first.results == again.results
        assert len(first.stored) == 2  # the envelope and the echo
        assert not again.stored
        assert await gateway.whole_mailbox(recipient) == [request.envelopes[0].mid]


async def test_adr009_3_1_the_same_key_with_another_request_is_refused(database: str) -> None:
    async with stores(database) as gateway:
        sender, recipient = await gateway.devices(2)
        cmid = a_cmid()
        await gateway.submit.submit(a_send(sender, an_envelope(recipient), cmid=cmid))
        with pytest.raises(MailboxError) as refused:
            await gateway.submit.submit(a_send(sender, an_envelope(recipient), cmid=cmid))
        assert refused.value.code is ErrorCode.IDEMPOTENCY_KEY_REUSED
        assert len(await gateway.whole_mailbox(recipient)) == 1


async def test_the_same_key_of_another_device_or_operation_is_another_key(database: str) -> None:
    async with stores(database) as gateway:
        one, other, recipient = await gateway.devices(3)
        cmid = a_cmid()
        for request in (
            a_send(one, an_envelope(recipient), cmid=cmid),
            a_send(other, an_envelope(recipient), cmid=cmid),
            a_send(one, an_envelope(recipient), key=cmid),
        ):
            assert not (await gateway.submit.submit(request)).duplicate


async def test_adr009_3_1_one_message_id_with_another_ciphertext_is_a_conflict(database: str) -> None:
    async with stores(database) as gateway:
        sender, recipient = await gateway.devices(2)
        mid = a_mid()
        first = await gateway.submit.submit(a_send(sender, an_envelope(recipient, b"one", mid=mid)))
        with pytest.raises(MailboxError) as refused:
            await gateway.submit.submit(a_send(sender, an_envelope(recipient, b"two", mid=mid)))
        assert (refused.value.code, refused.value.at) == (ErrorCode.MESSAGE_ID_CONFLICT, (0,))
        # The same ciphertext is the first acceptance, under any key.
        again = await gateway.submit.submit(a_send(sender, an_envelope(recipient, b"one", mid=mid)))
        assert again.duplicate
        assert again.results == first.results


async def test_an_acked_envelope_still_answers_its_first_acceptance_until_it_is_deleted(database: str) -> None:
    async with stores(database) as gateway:
        sender, recipient = await gateway.devices(2)
        envelope = an_envelope(recipient)
        first = await gateway.submit.submit(a_send(sender, envelope))
        await gateway.acks.ack(AckRequest(recipient, (envelope.mid,)), session=1)
        again = await gateway.submit.submit(a_send(sender, envelope))
        assert (again.duplicate, again.results) == (True, first.results)
        assert await gateway.whole_mailbox(recipient) == []


@pytest.mark.parametrize(("by_key", "window_s"), [(False, 7_200), (True, DAY_S)])
async def test_adr0008_an_answer_is_remembered_for_exactly_its_window(
    database: str, by_key: bool, window_s: int
) -> None:
    """Past it the key is free; the message id still stops a second copy while the envelope is there."""
    async with stores(database) as gateway, connected(database) as clock:
        sender, recipient = await gateway.devices(2)
        cmid, other = a_cmid(), an_envelope(recipient)
        request = a_send(sender, an_envelope(recipient), key=b"k" if by_key else None, cmid=cmid)
        first = await gateway.submit.submit(request)
        await set_clock_offset(clock, window_s - 30)
        assert (await gateway.submit.submit(request)).results == first.results
        with pytest.raises(MailboxError) as refused:
            await gateway.submit.submit(a_send(sender, other, key=b"k" if by_key else None, cmid=cmid))
        assert refused.value.code is ErrorCode.IDEMPOTENCY_KEY_REUSED
        await set_clock_offset(clock, window_s + 30)
        late = await gateway.submit.submit(request)
        assert (late.duplicate, late.results) == (True, first.results)
        await set_clock_offset(clock, 2 * window_s + 90)
        assert not (
            await gateway.submit.submit(a_send(sender, other, key=b"k" if by_key else None, cmid=cmid))
        ).duplicate


async def test_while_the_secret_rotates_records_of_the_old_one_are_found(database: str) -> None:
    async with stores(database) as gateway:
        sender, recipient = await gateway.devices(2)
        request = a_send(sender, an_envelope(recipient), echo=True)
        first = await gateway.submit.submit(request)
        old = gateway.secrets.fingerprint
        gateway.secrets = Secrets(InstanceSecret(2, b"2" * 32), old)
        again = await gateway.submit.submit(request)
        assert (again.duplicate, again.results, again.stored) == (True, first.results, ())


async def test_what_is_stored_of_a_request_holds_no_ciphertext_and_no_key(database: str) -> None:
    async with stores(database) as gateway:
        sender, recipient = await gateway.devices(2)
        body, key = b"canary-ciphertext" * 4, b"canary-key"
        await gateway.submit.submit(a_send(sender, an_envelope(recipient, body), key=key))
        rows = await gateway.postgres.fetch("SELECT r::text AS row, r.* FROM idempotency_records r")
        assert len(rows) == 1
        text = rows[0]["row"]
        for secret in (body, key, sender, recipient):
            assert secret.hex() not in text.replace("-", "")
            assert secret not in b"".join(v for v in rows[0].values() if isinstance(v, bytes))


async def test_adr009_8_a_hundred_concurrent_submits_never_pass_the_quota_and_others_are_unaffected(
    database: str,
) -> None:
    policy = Policy(pending_entries_max=40, pending_bytes_max=65_536)
    async with stores(database, policy) as one, stores(database, policy) as two, stores(database, policy) as three:
        devices = await one.devices(6)
        full, other, senders = devices[0], devices[1], devices[2:]
        gateways = itertools.cycle((one, two, three))
        sends = [
            next(gateways).submit.submit(a_send(senders[n % 4], an_envelope(full, b"x" * 1_000), session=n))
            for n in range(100)
        ]
        sends += [
            next(gateways).submit.submit(a_send(senders[n % 4], an_envelope(other), session=200 + n)) for n in range(30)
        ]
        answers = await asyncio.gather(*sends, return_exceptions=True)
        accepted = [answer for answer in answers[:100] if isinstance(answer, Submitted)]
        refused = [answer for answer in answers[:100] if isinstance(answer, MailboxError)]
        assert len(accepted) == 40
        assert {error.code for error in refused} == {ErrorCode.MAILBOX_FULL}
        assert {error.retry_after_ms for error in refused} == {60_000}  # says neither which limit nor how full
        assert all(isinstance(answer, Submitted) for answer in answers[100:])
        status = await one.reader.status(full)
        assert (status.pending_entries, status.pending_bytes) == (40, 40_000)


async def test_a_mailbox_full_of_expired_entries_accepts_new_ones(database: str) -> None:
    async with stores(database, Policy(pending_entries_max=3)) as gateway, connected(database) as clock:
        sender, recipient = await gateway.devices(2)
        for _ in range(3):
            await gateway.submit.submit(a_send(sender, an_envelope(recipient)._replace(ttl_s=60)))
        with pytest.raises(MailboxError):
            await gateway.submit.submit(a_send(sender, an_envelope(recipient)))
        await set_clock_offset(clock, 61)
        envelope = an_envelope(recipient)
        await gateway.submit.submit(a_send(sender, envelope))
        assert await gateway.whole_mailbox(recipient) == [envelope.mid]


async def test_one_refused_recipient_is_named_and_the_rest_goes_under_the_same_key(database: str) -> None:
    async with stores(database) as gateway:
        sender, *recipients = await gateway.devices(4)
        await gateway.postgres.execute("UPDATE mailboxes SET state = 2 WHERE device_id = $1", recipients[1])
        envelopes = [an_envelope(recipient) for recipient in recipients]
        cmid = a_cmid()
        with pytest.raises(MailboxError) as refused:
            await gateway.submit.submit(a_send(sender, *envelopes, cmid=cmid))
        assert (refused.value.code, refused.value.at) == (ErrorCode.UNKNOWN_RECIPIENT, (1,))
        assert refused.value.outcome is Outcome.NOT_COMMITTED
        assert [await gateway.whole_mailbox(recipient) for recipient in recipients] == [[], [], []]
        rest = await gateway.submit.submit(a_send(sender, envelopes[0], envelopes[2], cmid=cmid))
        assert not rest.duplicate


async def test_a_held_mailbox_makes_nobody_else_wait_and_its_own_sends_keep_their_order(database: str) -> None:
    async with stores(database) as gateway, connected(database) as blocker:
        sender, held, free, other = await gateway.devices(4)
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute("SELECT FROM mailboxes WHERE device_id = $1 FOR UPDATE", held)
        to_held = [an_envelope(held) for _ in range(3)]
        to_free = [an_envelope(free) for _ in range(3)]
        waiting = []
        for pair in zip(to_held, to_free, strict=True):  # one session: what it sends later waits, too
            for envelope in pair:
                waiting.append(asyncio.ensure_future(gateway.submit.submit(a_send(sender, envelope, session=1))))
                await asyncio.sleep(0)
        for _ in range(5):  # other sessions go through meanwhile, to the same recipients but the held one
            await gateway.submit.submit(a_send(other, an_envelope(free), session=2))
        assert not any(future.done() for future in waiting)
        await transaction.rollback()
        await asyncio.gather(*waiting)
        assert await gateway.whole_mailbox(held) == [envelope.mid for envelope in to_held]
        mine = {envelope.mid for envelope in to_free}
        assert [mid for mid in await gateway.whole_mailbox(free) if mid in mine] == [e.mid for e in to_free]


async def test_a_send_that_waits_too_long_for_its_mailbox_is_refused_not_written_late(database: str) -> None:
    async with stores(database) as gateway, connected(database) as blocker:
        sender, held, free = await gateway.devices(3)
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute("SELECT FROM mailboxes WHERE device_id = $1 FOR UPDATE", held)
        waiting = asyncio.ensure_future(gateway.submit.submit(a_send(sender, an_envelope(held), session=1)))
        await eventually(lambda: _a_submit_waits_for_a_lock(gateway.postgres))
        gateway.now += 31.0
        with pytest.raises(MailboxError) as refused:
            await waiting
        assert (refused.value.code, refused.value.outcome) == (ErrorCode.UNAVAILABLE, Outcome.NOT_COMMITTED)
        await transaction.rollback()
        assert await gateway.whole_mailbox(held) == []
        await gateway.submit.submit(a_send(sender, an_envelope(free), session=1))  # the session goes on


async def test_two_gateways_with_one_key_at_once_store_one_effect(database: str) -> None:
    """No lock orders those that share no mailbox: the record's key decides, the loser gives the winner's answer."""
    async with stores(database) as one, stores(database) as two:
        sender, recipient = await one.devices(2)
        for _ in range(20):
            request = a_send(sender, an_envelope(recipient))
            answers = await asyncio.gather(one.submit.submit(request), two.submit.submit(request))
            assert sorted(answer.duplicate for answer in answers) == [False, True]
            assert answers[0].results == answers[1].results
            other_one, other_two = await one.devices(2)
            cmid = a_cmid()
            rivals = await asyncio.gather(
                one.submit.submit(a_send(sender, an_envelope(other_one), cmid=cmid)),
                two.submit.submit(a_send(sender, an_envelope(other_two), cmid=cmid)),
                return_exceptions=True,
            )
            assert sum(isinstance(rival, Submitted) for rival in rivals) == 1
            stored = len(await one.whole_mailbox(other_one)) + len(await one.whole_mailbox(other_two))
            assert stored == 1


async def test_positions_of_one_mailbox_rise_and_no_reader_misses_one_whoever_writes(database: str) -> None:
    """Adr009 3.2: position order is commit order, with writers over three gateways and transactions held open."""
    async with (
        stores(database) as one,
        stores(database) as two,
        stores(database) as three,
        connected(database) as blocker,
    ):
        sender, recipient, *others = await one.devices(6)
        sent: list[bytes] = []
        read: list[bytes] = []
        writing = True

        async def write(n: int) -> None:
            gateway = (one, two, three)[n % 3]
            for _ in range(40):
                envelope = an_envelope(recipient)
                await gateway.submit.submit(a_send(sender, an_envelope(others[n % 4]), envelope, session=n))
                sent.append(envelope.mid)

        async def hold() -> None:
            while writing:
                async with blocker.transaction():
                    await blocker.execute("SELECT FROM mailboxes WHERE device_id = $1 FOR NO KEY UPDATE", others[0])
                    await blocker.execute("SELECT pg_sleep(0.01)")

        async def walk() -> None:
            after, finished = 0, False
            while True:
                page = await two.page(recipient, after=after, entries=7)
                read.extend(entry.entry.mid for entry in page.entries)
                if page.entries:
                    after = page.entries[-1].position
                elif finished:
                    return
                finished = not writing

        walker, holder = asyncio.ensure_future(walk()), asyncio.ensure_future(hold())
        await asyncio.gather(*(write(n) for n in range(9)))
        writing = False
        await asyncio.gather(walker, holder)
        assert len(read) == len(set(read))
        assert set(read) == set(sent)


async def test_a_hot_mailbox_at_its_limit_does_not_fall_to_one_transaction_a_request(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    call = Lane.call

    async def counted(lane: Lane, query: str, *args: object) -> object:
        nonlocal calls
        calls += 1
        return await call(lane, query, *args)

    async with stores(database, Policy(pending_entries_max=120)) as gateway:
        hot, *senders = await gateway.devices(201)
        monkeypatch.setattr(Lane, "call", counted)
        answers = await asyncio.gather(
            *(gateway.submit.submit(a_send(sender, an_envelope(hot), session=n)) for n, sender in enumerate(senders)),
            return_exceptions=True,
        )
    assert sum(isinstance(answer, Submitted) for answer in answers) == 120
    assert {answer.code for answer in answers if isinstance(answer, MailboxError)} == {ErrorCode.MAILBOX_FULL}
    assert calls <= 6


async def test_a_request_that_breaks_its_batch_changes_nothing_for_its_neighbours(database: str) -> None:
    async with stores(database) as gateway:
        sender, bad, *good = await gateway.devices(8)
        # A fault that only the database sees: a constraint that the envelope for this device violates.
        await gateway.postgres.execute(
            f"ALTER TABLE envelopes ADD CONSTRAINT poison CHECK (recipient_device_id <> '{bad.hex()}')"
        )
        sends = [gateway.submit.submit(a_send(sender, an_envelope(to), session=n)) for n, to in enumerate(good)]
        sends.insert(3, gateway.submit.submit(a_send(sender, an_envelope(bad), session=99)))
        answers = await asyncio.gather(*sends, return_exceptions=True)
        broken = answers.pop(3)
        assert isinstance(broken, MailboxError)
        assert (broken.code, broken.outcome) == (ErrorCode.INTERNAL, Outcome.NOT_COMMITTED)
        assert all(isinstance(answer, Submitted) for answer in answers)


async def test_killed_inside_the_call_the_outcome_is_unknown_and_a_repeat_settles_it(database: str) -> None:
    async with stores(database) as gateway, connected(database) as blocker:
        sender, recipient = await gateway.devices(2)
        request = a_send(sender, an_envelope(recipient))
        await gateway.submit.submit(a_send(sender, an_envelope(sender)))  # the lane is connected
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE envelopes IN SHARE MODE")
            dying = asyncio.ensure_future(gateway.submit.submit(request))
            await eventually(lambda: _terminated(gateway.postgres))
            with pytest.raises(MailboxError) as lost:
                await dying
        assert (lost.value.code, lost.value.outcome) == (ErrorCode.UNAVAILABLE, Outcome.UNKNOWN)
        assert not (await gateway.submit.submit(request)).duplicate
        assert await gateway.whole_mailbox(recipient) == [request.envelopes[0].mid]


async def _a_submit_waits_for_a_lock(postgres: Postgres) -> bool:
    return bool(
        await postgres.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%submit%'"
        )
    )


async def _terminated(postgres: Postgres) -> bool:
    return bool(
        await postgres.fetchval(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE wait_event_type = 'Lock' AND query LIKE '%submit%'"""
        )
    )


async def test_answer_lost_after_the_commit_a_repeat_gets_it_and_one_envelope_stands(database: str) -> None:
    async with stores(database) as gateway:
        sender, recipient = await gateway.devices(2)
        request = a_send(sender, an_envelope(recipient))
        with faultpoints.armed("submit.after_commit", Action.RAISE), pytest.raises(MailboxError) as lost:
            await gateway.submit.submit(request)
        assert lost.value.outcome is Outcome.UNKNOWN
        assert (await gateway.submit.submit(request)).duplicate
        assert await gateway.whole_mailbox(recipient) == [request.envelopes[0].mid]


async def test_no_deadlock_whatever_batches_and_acks_meet(database: str) -> None:
    async with stores(database) as one, stores(database) as two:
        devices = await one.devices(8)
        before = await one.postgres.fetchval(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )

        async def churn(n: int) -> None:
            gateway = (one, two)[n % 2]
            for turn in range(25):
                targets = [devices[(n * 3 + turn + step * (1 if n % 2 else -1)) % 8] for step in range(4)]
                envelopes = [an_envelope(to) for to in targets]
                await gateway.submit.submit(a_send(devices[n % 8], *envelopes, session=n, echo=True))
                await asyncio.gather(
                    *(gateway.acks.ack(AckRequest(e.to, (e.mid,)), session=k) for k, e in enumerate(envelopes))
                )

        await asyncio.gather(*(churn(n) for n in range(12)))
        await one.postgres.execute("SELECT pg_stat_force_next_flush()")
        after = await one.postgres.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        assert after == before
        assert [(await one.reader.status(device)).pending_entries for device in devices] == [0] * 8


async def test_what_held_mailboxes_leave_of_a_batch_is_written_as_it_is_answered(database: str) -> None:
    """Several envelopes a request, echoes, and sessions of which an earlier request waits: ranks close their gaps."""
    async with stores(database) as gateway, connected(database) as blocker:
        devices = await gateway.devices(8)
        held, free = devices[:2], devices[2:]
        await gateway.submit.submit(a_send(free[0], an_envelope(free[1])))  # the lane is connected
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute("SELECT FROM mailboxes WHERE device_id = ANY ($1) FOR UPDATE", held)
        requests = []
        for n in range(40):
            to = [free[n % 6], free[(n * 5 + 1) % 6], free[n % 6]]
            if n % 4 == 0:
                to.insert(n % 3, held[n % 2])
            actor = held[0] if n % 13 == 5 else free[n % 6]
            requests.append(
                a_send(actor, *map(an_envelope, to), session=n if n % 3 else 1_000 + n % 2, echo=n % 2 == 0)
            )
        sends = [asyncio.ensure_future(gateway.submit.submit(request)) for request in requests]
        waits, blocked = set(), set()
        for n, request in enumerate(requests):
            if (
                request.session in blocked
                or {e.to for e in request.envelopes} & set(held)
                or (request.echo and request.actor in held)
            ):
                blocked.add(request.session)
                waits.add(n)
        await eventually(lambda: sum(send.done() for send in sends) >= len(requests) - len(waits))
        assert {n for n, send in enumerate(sends) if not send.done()} == waits
        await transaction.rollback()
        answers = await asyncio.gather(*sends)
        told = {(s.device, s.position, s.previous_head, s.entry.mid) for answer in answers for s in answer.stored}
        rows = await gateway.postgres.fetch(
            """SELECT recipient_device_id, position, message_id,
                      lag(position, 1, 0::bigint) OVER (PARTITION BY recipient_device_id ORDER BY position) AS previous
                 FROM envelopes ORDER BY position OFFSET 1"""
        )
        assert told == {(r["recipient_device_id"], r["position"], r["previous"], r["message_id"]) for r in rows}
        drift = await gateway.postgres.fetchval(
            """SELECT count(*) FROM mailboxes b CROSS JOIN LATERAL (
                      SELECT count(*) FILTER (WHERE kind = 0), coalesce(sum(envelope_size), 0),
                             count(*) FILTER (WHERE kind = 1), coalesce(max(position), 0)
                        FROM envelopes WHERE recipient_device_id = b.device_id) AS e(entries, bytes, echoes, head)
                WHERE (b.stored_entries, b.stored_bytes, b.stored_echoes, b.head_position)
                      <> (e.entries, e.bytes, e.echoes, e.head)"""
        )
        assert drift == 0


async def test_while_the_secret_rotates_a_repeat_is_known_also_when_its_envelope_is_gone(database: str) -> None:
    async with stores(database) as gateway:
        sender, recipient = await gateway.devices(2)
        request = a_send(sender, an_envelope(recipient))
        first = await gateway.submit.submit(request)
        await gateway.acks.ack(AckRequest(recipient, (request.envelopes[0].mid,)), session=1)
        await gateway.postgres.execute("DELETE FROM envelopes WHERE acked_at IS NOT NULL")  # as clean-up does
        gateway.secrets = Secrets(InstanceSecret(2, b"2" * 32), gateway.secrets.fingerprint)
        again = await gateway.submit.submit(request)
        assert (again.duplicate, again.results, again.stored) == (True, first.results, ())
