"""`submit_batch_v1` against the pure rule: random batches, every verdict, every position, every row and counter."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from protocol.admission import SEND, SEND_BY_KEY, Accepted, AdmissionState, MailboxModel, Refused, Rule
from protocol.errors import ErrorCode, MailboxError
from protocol.fingerprint import InstanceSecret, echo_mid
from protocol.frames import SendEnvelope
from protocol.ids import ClientMessageId, DeviceId, IdentityId, MessageId
from store.acks import columns_of as ack_columns
from store.faults import Fault, classify
from store.policy_rules import Policy
from store.records import AckRequest, SubmitRequest, Submitted
from store.sql_files import load_sql
from store.submit_columns import Keys, answers_of, columns_of, keys_of
from store.submit_plain import plain_answers_of, plain_columns_of
from tests.support.database import connected, freeze_clock
from tests.support.seeds import random_seeds

SECRET = InstanceSecret(1, b"s" * 32)
POLICY = Policy(
    pending_entries_max=6, pending_bytes_max=65_536, envelope_bytes_max=30_000, protocol_versions=(1, 2), ttl_s_min=60
)
EXPECTED = {
    "plain",
    "plain with a second envelope",
    "not plain",
    Fault.CAREFUL,  # it took itself for plain and needed judging
    Fault.DATA,  # … and was a repeat
    (False, False),  # accepted
    (True, True),  # a replay
    (True, False),  # nothing new under a new key
    ErrorCode.DEVICE_REVOKED,
    ErrorCode.ENVELOPE_TOO_LARGE,
    ErrorCode.IDEMPOTENCY_KEY_REUSED,
    ErrorCode.RATE_LIMITED,
    ErrorCode.UNKNOWN_RECIPIENT,
    ErrorCode.UNSUPPORTED_PROTOCOL_VERSION,
    ErrorCode.TTL_OUT_OF_RANGE,
    ErrorCode.MESSAGE_ID_CONFLICT,
    ErrorCode.MAILBOX_FULL,
}
START_US = 1_900_000_000_000_000
SIZES = (0, 1, 256, 9_000, 25_000, 30_000, 30_001)


def an_id(kind: str, n: int) -> bytes:
    return f"{kind}{n:0>{16 - len(kind)}}".encode()


class World:
    """The same mailboxes twice: as the model and as tables."""

    def __init__(self, rng: random.Random, connection: asyncpg.Connection) -> None:
        self.rng = rng
        self.connection = connection
        self.now_us = START_US
        self.rule = Rule(POLICY, lambda device, cmid: echo_mid(SECRET.key, device, cmid))
        self.state = AdmissionState()
        self.devices = [DeviceId(an_id("device", n)) for n in range(6)]
        self.known = self.devices[:5]  # the last one is nobody
        self.history: list[SubmitRequest] = []
        self.seen: set[object] = set()  # verdicts, so that a generator that tries nothing is noticed
        self.bodies = [rng.randbytes(size) for size in SIZES]

    async def set_up(self) -> None:
        for n, device in enumerate(self.known):
            identity = IdentityId(an_id("identity", max(0, n - 1)))  # the first two devices are one identity's
            self.state.mailboxes[device] = MailboxModel(identity)
            await self.connection.execute(
                "INSERT INTO mailboxes (device_id, identity_id) VALUES ($1, $2)", device, identity
            )
            await self.connection.execute("INSERT INTO mailbox_owners (device_id) VALUES ($1)", device)

    def a_request(self) -> SubmitRequest:
        rng = self.rng
        by_key = rng.random() < 0.25
        cmid = None if by_key else ClientMessageId(an_id("cmid", rng.randrange(200)))
        targets = {
            (rng.choice(self.devices), MessageId(an_id("mid", rng.randrange(40))))
            for _ in range(rng.choice((1, 1, 2, 4)))
        }
        envelopes = tuple(
            SendEnvelope(
                to,
                mid,
                rng.choices((1, 2, 7), weights=(60, 10, 2))[0],
                rng.choices(self.bodies, weights=(8, 8, 12, 8, 8, 2, 1))[0],
                rng.choices((None, 60, 3_600, 10**9, 59), weights=(8, 4, 8, 4, 1))[0],
            )
            for to, mid in sorted(targets, key=lambda _: rng.random())
        )
        return SubmitRequest(
            session=rng.randrange(4),
            actor=rng.choice(self.known),
            operation=SEND_BY_KEY if by_key else SEND,
            key=cmid if cmid is not None else b"key-%d" % rng.randrange(10),
            cmid=cmid,
            envelopes=envelopes,
            echo=cmid is not None and rng.random() < 0.6,
            rate_refused_ms=500 if rng.random() < 0.05 else None,
            pair_refused=(0,) if rng.random() < 0.05 else (),
        )

    def a_fresh_request(self) -> SubmitRequest:
        """One that repeats nothing and is refused for nothing but a full mailbox or a revoked device."""
        cmid = ClientMessageId(self.rng.randbytes(16))
        to = self.rng.choices(self.known, k=self.rng.choice((1, 1, 3)))
        envelopes = tuple(SendEnvelope(device, MessageId(self.rng.randbytes(16)), 1, b"fresh") for device in to)
        return SubmitRequest(self.rng.randrange(4), self.rng.choice(self.known), SEND, cmid, cmid, envelopes, True)

    async def a_batch(self) -> None:
        if self.rng.random() < 0.4:
            requests = [self.a_fresh_request() for _ in range(self.rng.randrange(1, 4))]
        elif self.history and self.rng.random() < 0.2:
            requests = [self.rng.choice(self.history)]
        else:
            requests = self.some_requests()
        keys = [keys_of(SECRET, request) for request in requests]
        wait = self.rng.random() < 0.5
        answers = await self.plain_answers(requests, keys, wait)
        if answers is None:
            columns = columns_of(requests, keys, [], SECRET, POLICY, wait=wait)
            row = await self.connection.fetchrow(load_sql("submit")["submit_batch_v1"], *columns.arguments)
            answers = answers_of(requests, columns, row, bytes(8))
        for request, answer, verdict in zip(
            requests, answers, self.rule.fold(self.state, requests, self.now_us), strict=True
        ):
            assert same(answer, verdict), (request, answer, verdict)
            self.seen.add(verdict.code if isinstance(verdict, Refused) else (verdict.duplicate, verdict.replay))

    async def plain_answers(
        self, requests: list[SubmitRequest], keys: list[Keys], wait: bool
    ) -> list[Submitted | MailboxError | None] | None:
        """As store/submit.py does: the plain call first, which either gives the rule's verdicts or refuses to judge."""
        columns = plain_columns_of(requests, keys, SECRET, POLICY, wait=wait)
        if columns is None:
            self.seen.add("not plain")
            return None
        try:
            row = await self.connection.fetchrow(load_sql("submit")["submit_plain_v1"], *columns.arguments)
        except asyncpg.PostgresError as error:
            fault = classify(error)
            if fault not in (Fault.CAREFUL, Fault.DATA):
                raise
            self.seen.add(fault)
            return None
        self.seen.add("plain with a second envelope" if len(columns.mailbox_of) > len(requests) else "plain")
        return plain_answers_of(requests, columns, row, bytes(8))

    def some_requests(self) -> list[SubmitRequest]:
        requests = [self.a_request() for _ in range(self.rng.randrange(1, 12))]
        for _ in range(self.rng.randrange(3)):  # repeats, of this batch and of earlier ones
            requests.insert(self.rng.randrange(len(requests) + 1), self.rng.choice([*requests, *self.history]))
        self.history = [*self.history, *requests][-200:]
        return requests

    async def acks(self) -> None:
        requests = [
            AckRequest(device, tuple(MessageId(an_id("mid", self.rng.randrange(40))) for _ in range(3)))
            for device in self.known
        ]
        for device in self.known[:2]:  # and their echoes
            mids = [mid for mid, held in self.state.mailboxes[device].entries.items() if held.echo][:2]
            requests.append(AckRequest(device, tuple(mids)))
        await self.connection.execute(load_sql("acks")["ack_batch_v1"], *ack_columns(requests))
        for request in requests:
            self.state.ack(request.device, request.mids)

    async def time_passes(self) -> None:
        self.now_us += self.rng.choice(
            (1_000_000, 61_000_000, 3_601_000_000, 2 * 3_600_000_000, 172_801_000_000)
        ) + self.rng.randrange(999)
        await freeze_clock(self.connection, self.now_us)

    async def a_device_is_revoked_or_comes_back(self) -> None:
        device = self.rng.choice(self.known)
        mailbox = self.state.mailboxes[device]
        mailbox.active = not mailbox.active
        await self.connection.execute(
            "UPDATE mailboxes SET state = $2 WHERE device_id = $1", device, 1 if mailbox.active else 2
        )

    async def compare(self) -> None:
        """Unexpired rows are the model's; the counters say what the rows say."""
        now_ms = self.now_us // 1000
        rows = await self.connection.fetch(
            "SELECT *, mailboxd_ms(accepted_at) AS accepted_ms, mailboxd_ms(expires_at) AS expires_ms FROM envelopes"
        )
        stored = {
            (row["recipient_device_id"], row["message_id"]): (
                row["position"],
                row["envelope_bytes"] or b"",
                row["client_message_id"],
                row["kind"] == 1,
                row["acked_at"] is not None,
                row["accepted_ms"],
                row["expires_ms"],
            )
            for row in rows
            if row["expires_ms"] > now_ms
        }
        model = {
            (device, mid): (h.position, h.body, h.cmid, h.echo, h.acked, h.accepted_at, h.expires_at)
            for device, mailbox in self.state.mailboxes.items()
            for mid, h in mailbox.entries.items()
            if h.expires_at > now_ms
        }
        assert stored == model
        drift = await self.connection.fetch(
            """SELECT b.device_id FROM mailboxes b JOIN mailbox_owners o USING (device_id)
                 LEFT JOIN LATERAL (SELECT count(*) FILTER (WHERE kind = 0) AS entries,
                        coalesce(sum(envelope_size), 0) AS bytes, count(*) FILTER (WHERE kind = 1) AS echoes
                   FROM envelopes WHERE recipient_device_id = b.device_id AND acked_at IS NULL) AS e ON true
                WHERE (b.stored_entries - o.released_entries, b.stored_bytes - o.released_bytes,
                       b.stored_echoes - o.released_echoes) <> (e.entries, e.bytes, e.echoes)"""
        )
        assert not drift
        heads = await self.connection.fetch("SELECT device_id, head_position, wake_open, wake_position FROM mailboxes")
        assert {row["device_id"]: row["head_position"] for row in heads} == {
            device: mailbox.head for device, mailbox in self.state.mailboxes.items()
        }
        intents = await self.connection.fetch("SELECT aggregate_ref FROM outbox_events WHERE state = 'pending'")
        assert {row["aggregate_ref"] for row in intents} == {row["device_id"] for row in heads if row["wake_open"]}


def same(answer: Submitted | MailboxError | None, verdict: Accepted | Refused) -> bool:
    if isinstance(verdict, Refused):
        return isinstance(answer, MailboxError) and (answer.code, answer.at) == (verdict.code, verdict.at)
    return (
        isinstance(answer, Submitted)
        and (answer.duplicate, answer.results) == (verdict.duplicate, verdict.results)
        and [(s.device, s.position, s.previous_head, s.entry.mid, s.entry.cmid, s.entry.echo) for s in answer.stored]
        == [(s.device, s.held.position, s.previous_head, s.held.mid, s.held.cmid, s.held.echo) for s in verdict.stored]
    )


async def a_run(database: str, seed: int) -> set[object]:
    async with connected(database) as connection:
        world = World(random.Random(seed), connection)
        await freeze_clock(connection, world.now_us)
        await world.set_up()
        steps: list[Callable[[], Any]] = [world.acks, world.time_passes, world.a_device_is_revoked_or_comes_back]
        for _ in range(100):
            await world.a_batch()
            if world.rng.random() < 0.4:
                await world.rng.choices(steps, weights=(6, 4, 1))[0]()
            await world.compare()
        return world.seen


@pytest.mark.parametrize("seed", random_seeds(6))
async def test_every_request_gets_the_verdict_that_the_rule_gives_it_alone_and_in_order(
    database: str, seed: int
) -> None:
    assert await a_run(database, seed)


async def test_the_generator_reaches_every_verdict(database: str) -> None:
    assert await a_run(database, 5) >= EXPECTED
