"""What a worker is made of, on a test's own database and Valkey, step by step instead of in loops."""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from protocol.ids import DeviceId, MessageId
from runtime.clock import SystemClock
from runtime.doorbell import Doorbell
from runtime.logs import DeviceTags
from runtime.metrics import Metrics
from store.audit import AuditStore
from store.job_queue import JobQueue, QueueLost
from store.outbox import OutboxStore, WakeRules
from store.policy_rules import Policy
from store.push_seal import PushSeal
from store.records import AckRequest
from store.redis_client import connect
from store.retention import RetentionStore
from tests.support.mailboxes import Stores, a_send, an_envelope, stores
from worker.dispatcher import Dispatcher
from worker.handlers.wake_device import TASK, WakeDevice
from worker.job_loop import JobLoop
from worker.metrics import WorkerMetrics
from worker.push.address_guard import AddressGuard
from worker.push.gateway import GatewayProvider
from worker.push.http_post import HttpPoster
from worker.push.outcome import Accepted, Outcome, Provider, Target
from worker.push.sender import PushSender
from worker.reconciler import Reconciler

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
INSTANCE_TAG = "0123456789abcdef"
SEAL = PushSeal(1, {1: b"s" * 32})


class ScriptedProvider:
    """Takes every push unless told otherwise, and remembers them."""

    def __init__(self) -> None:
        self.pushed: list[Target] = []
        self.outcome: Callable[[Target], Outcome] = lambda _target: Accepted()

    def host(self, target: Target) -> str:
        return target.settings["url"]

    async def push(self, target: Target) -> Outcome:
        self.pushed.append(target)
        await asyncio.sleep(0)
        return self.outcome(target)


@dataclass
class WorkerParts:
    """One worker without its loops: `dispatch`, `work` and `reconcile` each do one round."""

    stores: Stores
    redis: Any
    rules: WakeRules = field(default_factory=WakeRules)
    provider: Provider = field(default_factory=ScriptedProvider)
    on_route_gone: Callable[[DeviceId], None] = lambda _device: None
    handlers: Mapping[tuple[str, int], Any] | None = None
    lease: timedelta = timedelta(seconds=45)
    seal: PushSeal = SEAL

    def __post_init__(self) -> None:
        postgres, clock = self.stores.postgres, SystemClock()
        self.metrics = WorkerMetrics(Metrics())
        self.audit = AuditStore(postgres, DeviceTags(b"l" * 32, clock), clock)
        self.outbox = OutboxStore(postgres, self.rules)
        self.retention = RetentionStore(postgres)
        self.queue = JobQueue(self.redis, INSTANCE_TAG, consumer=os.urandom(8).hex().encode())
        self.sender = PushSender({"gateway": self.provider}, self.metrics, clock, concurrency=64)
        self.wake_device = WakeDevice(
            self.outbox,
            postgres,
            self.audit,
            self.seal,
            self.sender,
            rules=self.rules,
            policy_version=lambda: 1,
            on_route_gone=self.on_route_gone,
            chance=lambda: 0.5,
        )
        self.bell = Doorbell()
        self.reconciler = Reconciler(self.outbox, self.retention, self.bell, self.metrics, clock)
        self.jobs = JobLoop(
            self.queue,
            self.outbox,
            self.handlers if self.handlers is not None else {TASK: self.wake_device},
            self.metrics,
            clock,
            concurrency=32,
            on_queue_lost=self.reconciler.rebuild,
            chance=lambda: 0.5,
            lease=self.lease,
        )
        self.dispatcher = Dispatcher(self.outbox, self.queue, self.bell, self.metrics, clock, poll_seconds=0.05)

    async def dispatch(self) -> None:
        while await self.dispatcher.round():
            pass

    async def work(self) -> int:
        """Execute what the queue holds now; returns how many jobs that were."""
        try:
            deliveries = await self.queue.receive(32, block_ms=1)
        except QueueLost:
            self.reconciler.rebuild()
            return 0
        await asyncio.gather(*(self.jobs._execute(delivery) for delivery in deliveries))
        return len(deliveries)

    async def turn(self) -> None:
        """Dispatch and work until nothing is due any more."""
        await self.dispatch()
        while await self.work():
            await self.dispatch()

    async def device(self, *, route: bool = True, url: str = "http://127.0.0.1:1/push") -> DeviceId:
        [device] = await self.stores.devices(1)
        if route:
            await put_route(self.stores, device, url, seal=self.seal)
        return device

    async def submit(self, device: DeviceId, *, count: int = 1) -> list[MessageId]:
        """Sends from a stranger; returns the mids."""
        [sender] = await self.stores.devices(1)
        envelopes = [an_envelope(device) for _ in range(count)]
        await self.stores.submit.submit(a_send(sender, *envelopes))
        return [envelope.mid for envelope in envelopes]

    async def ack(self, device: DeviceId, mids: list[MessageId]) -> None:
        await self.stores.acks.ack(AckRequest(device, tuple(mids)), session=1)

    async def intent(self, device: DeviceId) -> Any:
        """The newest outbox row of the device."""
        return await self.stores.postgres.fetchrow(
            "SELECT * FROM outbox_events WHERE aggregate_ref = $1"
            " ORDER BY state = 'dead_letter', created_at DESC LIMIT 1",
            device,
        )

    async def state(self, device: DeviceId) -> str | None:
        row = await self.intent(device)
        return None if row is None else str(row["state"])

    async def wake_open(self, device: DeviceId) -> bool:
        return bool(await self.stores.postgres.fetchval("SELECT wake_open FROM mailboxes WHERE device_id = $1", device))

    async def contact(self, device: DeviceId) -> None:
        """As a pull does it."""
        await self.stores.postgres.execute("SELECT touch_contacts_v1($1)", [device])

    async def go_online(self, device: DeviceId, seconds: float) -> None:
        """As HELLO does it."""
        await self.stores.postgres.execute(
            "UPDATE mailbox_owners SET online_until = mailboxd_now() + make_interval(secs => $2),"
            " contact_at = mailboxd_now(), session_alive_at = mailboxd_now() WHERE device_id = $1",
            device,
            seconds,
        )

    async def skip(self, seconds: float) -> None:
        """Let time pass for this database."""
        self._skipped = getattr(self, "_skipped", 0.0) + seconds
        await self.stores.postgres.execute(
            "CREATE OR REPLACE FUNCTION mailboxd_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE "
            f"AS $$ SELECT clock_timestamp() + make_interval(secs => {float(self._skipped)!r}) $$"
        )

    async def now(self) -> datetime:
        return await self.outbox.now()


async def put_route(made: Stores, device: DeviceId, url: str, *, seal: PushSeal = SEAL) -> None:
    """As PUT /v1/push-route does it."""
    sealed = seal.seal(device, "gateway", {"url": url})
    async with made.postgres.transaction() as connection:
        await connection.execute("SELECT FROM mailboxes WHERE device_id = $1 FOR NO KEY UPDATE", device)
        await connection.execute(
            "INSERT INTO push_routes AS r (device_id, wake_route_id, provider, sealed_address, seal_key_id)"
            " VALUES ($1, $2, 'gateway', $3, $4) ON CONFLICT (device_id) DO UPDATE"
            " SET wake_route_id = excluded.wake_route_id, sealed_address = excluded.sealed_address, status = 'active',"
            " version = r.version + 1, gone_told_at = NULL",
            device,
            os.urandom(16),
            sealed.sealed,
            sealed.key_id,
        )
        await connection.execute("SELECT wake_route_changed_v1($1)", device)


@asynccontextmanager
async def worker_parts(dsn: str, redis_url: str, **options: Any) -> AsyncIterator[WorkerParts]:
    """`http=True` pushes over real HTTP to loopback receivers."""
    http = options.pop("http", False)
    redis = connect(redis_url)
    try:
        async with stores(dsn, Policy()) as made, HttpPoster(AddressGuard(LOOPBACK)) as poster:
            if http:
                options["provider"] = GatewayProvider(poster)
            yield WorkerParts(made, redis, **options)
    finally:
        await redis.aclose()
