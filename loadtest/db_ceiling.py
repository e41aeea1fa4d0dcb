"""The same cycles straight into `store`, over the connections that a gateway has, without a socket or a frame.

What `cycle` loses against this is the price of doors, frames and delivery; what this loses against the machine is
PostgreSQL's. Afterwards the rows are counted: one that is missing, too many or out of its sender's order fails it.
The only module of the load tests that knows the store.
"""

from __future__ import annotations

import asyncio
import os
import random
from time import perf_counter, time
from typing import Any, Final

from loadtest import bare_mailboxes
from loadtest.latency import Latencies
from loadtest.run import Run
from protocol.admission import SEND
from protocol.errors import MailboxError
from protocol.fingerprint import InstanceSecret
from protocol.frames import SendEnvelope
from protocol.ids import ClientMessageId, DeviceId, MessageId
from store import postgres as store_postgres
from store.acks import AckStore
from store.policy_rules import Policy
from store.postgres import Postgres
from store.records import AckRequest, SubmitRequest, Submitted
from store.submit import SubmitStore

# As libpq takes them: the plans of the store's own connections.
PINNED_PLANS: Final = " ".join(f"-c {name}={value}" for name, value in store_postgres.PINNED_PLANS.items())


class _Secrets:
    """A secret of this run alone; nothing it hashes is looked up by anybody else."""

    def __init__(self) -> None:
        self.fingerprint = InstanceSecret(1, os.urandom(32))
        self.fingerprint_old: InstanceSecret | None = None


class _Cycles:
    """Virtual devices with one SEND in flight each; every stored entry is acked at once by its recipient."""

    def __init__(self, submit: SubmitStore, acks: AckStore, devices: list[DeviceId], payload_bytes: int) -> None:
        self.sending = False
        self.confirmed = 0
        self.acked = 0
        self.open = 0
        self.confirmed_in_all = 0
        self.acked_in_all = 0
        self.latencies = Latencies()
        self.problems: dict[str, int] = {}
        self._submit = submit
        self._acks = acks
        self._devices = devices
        self._session = {device: number for number, device in enumerate(devices)}
        self._body = os.urandom(payload_bytes)
        self._random = random.Random(1)
        self._sent = 0

    def start(self) -> None:
        self.sending = True
        for device in self._devices:
            self._send(device)

    def reset(self) -> None:
        self.confirmed = self.acked = 0
        self.latencies = Latencies()

    def _send(self, sender: DeviceId) -> None:
        to = self._random.choice(self._devices)
        cmid = ClientMessageId(os.urandom(16))
        self._sent += 1
        # Tells the sender and its order, for the look at the rows afterwards.
        mid = MessageId(self._session[sender].to_bytes(8, "big") + self._sent.to_bytes(8, "big"))
        envelope = SendEnvelope(to, mid, 1, self._body)
        started = perf_counter()

        def done(answer: Submitted | MailboxError) -> None:
            self.open -= 1
            if isinstance(answer, MailboxError):
                self._problem(answer)
            else:
                self.confirmed += 1
                self.confirmed_in_all += 1
                self.latencies.add(perf_counter() - started)
                self._ack(to, envelope.mid)
            if self.sending:
                self._send(sender)

        self.open += 1
        request = SubmitRequest(self._session[sender], sender, SEND, cmid, cmid, (envelope,), False)
        self._submit.put(request, done)

    def _ack(self, device: DeviceId, mid: MessageId) -> None:
        def done(error: MailboxError | None) -> None:
            self.open -= 1
            if error is None:
                self.acked += 1
                self.acked_in_all += 1
            else:
                self._problem(error)

        self.open += 1
        self._acks.put(AckRequest(device, (mid,)), done, session=self._session[device])

    def _problem(self, error: MailboxError) -> None:
        self.problems[error.code] = self.problems.get(error.code, 0) + 1


async def db_ceiling(run: Run) -> dict[str, Any]:
    """Submit and ACK cycles per second, and the latency of a submit."""
    settings, dsn = run.settings, run.server.postgres_dsn
    if dsn is None:
        raise ValueError("the database of a server given by --url is not known")
    devices = await bare_mailboxes.create(dsn, settings.devices)
    postgres = Postgres(dsn, application_name="mailboxd db-ceiling")
    await postgres.open()
    secrets, policy = _Secrets(), Policy()
    submit = SubmitStore(postgres, lambda: policy, lambda: secrets, perf_counter)
    acks = AckStore(postgres, perf_counter)
    cycles = _Cycles(submit, acks, devices, settings.payload_bytes)
    meter = run.meter()
    try:
        cycles.start()
        await asyncio.sleep(settings.warmup_s)
        cycles.reset()
        meter.start()
        started = perf_counter()
        await asyncio.sleep(settings.seconds)
        seconds = perf_counter() - started
        confirmed, acked, latency = cycles.confirmed, cycles.acked, cycles.latencies.summary()
        used = meter.stop(confirmed)
        cycles.sending = False
        patience = time() + 20
        while cycles.open and time() < patience:
            await asyncio.sleep(0.05)
    finally:
        await submit.drain(5.0)
        await acks.drain(5.0)
        await postgres.close()
    wrong = await bare_mailboxes.check(dsn, confirmed=cycles.confirmed_in_all, acked=cycles.acked_in_all, in_order=True)
    problems = {**cycles.problems, **wrong}
    return {
        "ok": not problems and not cycles.open,
        "devices": settings.devices,
        "payload": settings.payload_bytes,
        "confirmed_per_s": round(confirmed / seconds, 1),
        "acked_per_s": round(acked / seconds, 1),
        "send_ack_ms": latency,
        "problems": problems,
        "cpu": used,
    }
