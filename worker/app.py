"""One worker process: composition, start and stop. It holds no state that PostgreSQL lacks; run as many as needed."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Final

import structlog
from aiohttp import web

from protocol.errors import MailboxError
from protocol.ids import DeviceId
from runtime.clock import Clock, SystemClock
from runtime.config import WorkerConfig
from runtime.doorbell import Doorbell
from runtime.key_rings import Purpose
from runtime.keyring import Keyring
from runtime.logs import DeviceTags, keep_files
from runtime.metrics import Metrics
from runtime.supervise import LoopBody, Supervisor
from store.audit import AuditStore
from store.job_queue import JobQueue, QueueUnreachable
from store.outbox import OutboxStore, WakeRules
from store.policy import PolicyCache, PolicyStore
from store.postgres import Postgres
from store.push_reseal import PushReseal
from store.push_seal import PushSeal
from store.redis_client import connect
from store.redis_names import read_instance_tag
from store.retention import RetentionStore, Table
from store.wake import Wake, WakeBus, WakeKind, WakeNames, lanes_of
from worker.bell_listener import BellListener
from worker.cleanup import Cleanup
from worker.database_watch import DatabaseWatch
from worker.dispatcher import Dispatcher
from worker.handlers.wake_device import TASK, WakeDevice
from worker.job_loop import JobLoop
from worker.metrics import WorkerMetrics
from worker.ops_app import build_ops_app
from worker.outages import through_outages
from worker.push.address_guard import AddressGuard
from worker.push.apns import ApnsCredentials, ApnsProvider
from worker.push.fcm import FcmProvider, ServiceAccount
from worker.push.gateway import GatewayProvider
from worker.push.http2 import PlatformClient
from worker.push.http_post import HttpPoster
from worker.push.outcome import Provider
from worker.push.sender import PushSender
from worker.push.vapid import Vapid
from worker.push.webpush import WebPushProvider
from worker.reconciler import Reconciler
from worker.reseal import ResealLoop

logger = structlog.get_logger(__name__)

# A turn of a loop may wait for a Redis socket (10 s), a database call (30 s) or a batch; what is slower stands still.
STALLED_SECONDS: Final = 60.0
STOP_SECONDS: Final = 0.8  # a receive in flight ends within its half second


async def serve(config: WorkerConfig) -> int:
    """Work until SIGTERM or SIGINT, finish the jobs in hand, return the exit code.

    Raises MailboxError when the database cannot be reached at the start and KeyringError for its secrets.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as stack:
        worker = await Worker.open(config, SystemClock(), stack)
        await worker.run(stopping)
    return 0


class Worker:
    """All parts of one process, made and joined."""

    def __init__(self, *, supervisor: Supervisor, jobs: JobLoop, queue: JobQueue, drain_seconds: float) -> None:
        self._supervisor = supervisor
        self._jobs = jobs
        self._queue = queue
        self._drain_seconds = drain_seconds

    @classmethod
    async def open(cls, config: WorkerConfig, clock: Clock, stack: AsyncExitStack) -> Worker:
        """Connect, compose, listen on the operations port. `stack` closes it all, the newest first."""
        keyring = Keyring.load(config.secrets_dir)
        metrics = Metrics()
        worker_metrics = WorkerMetrics(metrics)
        postgres = Postgres(
            config.postgres_dsn,
            pool_min=config.postgres_pool_min,
            pool_max=config.postgres_pool_max,
            application_name="mailboxd worker",
        )
        await postgres.open()
        stack.push_async_callback(postgres.close)
        redis = connect(config.redis_url)
        stack.push_async_callback(redis.aclose)

        audit = AuditStore(postgres, DeviceTags(keyring.log_key, clock), clock)
        policy = await PolicyCache.open(PolicyStore(postgres, audit), clock)
        rules = WakeRules(repeat_first=timedelta(seconds=config.wake_repeat_s))
        outbox = OutboxStore(postgres, rules)
        retention = RetentionStore(postgres)
        tag = await read_instance_tag(postgres)
        wake = WakeBus(redis, WakeNames(tag, keyring.fingerprint.key, lanes=lanes_of(redis)))
        stack.push_async_callback(wake.close)
        # A name of its own for every start: an old process's pending messages are taken over, not mixed with ours.
        queue = JobQueue(redis, tag, consumer=secrets.token_hex(8).encode("ascii"))

        guard = AddressGuard(config.push_private_networks_allowed)
        poster = await stack.enter_async_context(HttpPoster(guard, connections_max=config.push_concurrency))
        providers = await _providers(config, keyring, poster, lambda: clock.wall_ms() / 1000, stack)
        at_once = min(config.push_concurrency, config.job_concurrency)
        sender = PushSender(providers, worker_metrics, clock, concurrency=at_once)

        def tell_route_gone(device: DeviceId) -> None:
            wake.publish([Wake(device, 0, WakeKind.ROUTE)])

        seal = PushSeal(*keyring.push_token_keys)
        ring = keyring.rings[Purpose.PUSH_TOKEN]
        superseded = [int(key.key_id) for key in ring.keys if ring.role(key) == "old"]
        reseal = ResealLoop(PushReseal(postgres, seal, superseded), worker_metrics, clock)
        wake_device = WakeDevice(
            outbox,
            postgres,
            audit,
            seal,
            sender,
            rules=rules,
            policy_version=lambda: policy().version,
            on_route_gone=tell_route_gone,
        )
        bell = Doorbell()
        reconciler = Reconciler(outbox, retention, bell, worker_metrics, clock)
        jobs = JobLoop(
            queue,
            outbox,
            {TASK: wake_device},
            worker_metrics,
            clock,
            concurrency=config.job_concurrency,
            on_queue_lost=reconciler.rebuild,
        )
        dispatcher = Dispatcher(outbox, queue, bell, worker_metrics, clock, poll_seconds=config.dispatch_poll_s)
        listener = BellListener(redis, wake.names.outbox, bell, clock)
        cleanup = Cleanup(retention, policy, worker_metrics, clock, round_seconds=config.cleanup_s)

        def count_failure(name: str) -> None:
            worker_metrics.loop_failures.labels(name).inc()

        supervisor = Supervisor(clock, on_failure=count_failure)

        def add(name: str, body: LoopBody) -> None:
            supervisor.add(name, through_outages(name, body, clock), stalled_after_seconds=STALLED_SECONDS)

        add("policy", policy.run)
        add("logs", partial(keep_files, lambda: policy().log_retention_s, clock))
        add("dispatcher", dispatcher.run)
        add("bell", listener.run)
        add("jobs", jobs.run)
        add("reconciler", reconciler.run)
        add("walk", reconciler.run_walk)
        for table in Table:
            add(f"cleanup-{table}", partial(cleanup.run, table))
        add("reseal", reseal.run)
        add("overdue", cleanup.run_overdue)
        directories = [path for path in (config.secrets_dir, config.log_dir) if path is not None]
        add("database-watch", DatabaseWatch(postgres, metrics, clock, directories=directories).run)

        async def why_not_ready() -> str | None:
            if stalled := supervisor.stalled():
                return f"stalled: {', '.join(stalled)}"
            try:
                await retention.database_ms()
            except MailboxError:
                return "the database does not answer"
            return None

        await _listen(config, build_ops_app(metrics, supervisor, why_not_ready, reconciler.hints), stack)
        return cls(supervisor=supervisor, jobs=jobs, queue=queue, drain_seconds=config.drain_deadline_s)

    async def run(self, stopping: asyncio.Event) -> None:
        """Run all loops until `stopping`; then take no new jobs and give those in hand their time."""
        logger.info("worker ready")
        told = asyncio.create_task(self._stop_jobs(stopping))
        try:
            await self._supervisor.run(stopping, stop_seconds=STOP_SECONDS)
        finally:
            told.cancel()
        late = await self._jobs.drain(self._drain_seconds)
        try:
            await self._queue.leave()
        except QueueUnreachable:
            pass  # a name without messages does no harm
        logger.info("worker stopped", jobs_left_to_others=late)

    async def _stop_jobs(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self._jobs.stop()


async def _providers(
    config: WorkerConfig, keyring: Keyring, poster: HttpPoster, wall_seconds: Callable[[], float], stack: AsyncExitStack
) -> dict[str, Provider]:
    """Those that need no credentials, and those whose credentials are set. Raises CredentialsUnusable."""
    vapid = Vapid(keyring.vapid_key, contact=config.push_contact, wall_seconds=wall_seconds)
    providers: dict[str, Provider] = {"gateway": GatewayProvider(poster), "webpush": WebPushProvider(poster, vapid)}
    if config.apns_key_file is not None:
        key = ApnsCredentials.load(config.apns_key_file, str(config.apns_key_id), str(config.apns_team_id))
        providers["apns"] = ApnsProvider(
            await stack.enter_async_context(PlatformClient()),
            key,
            url=config.apns_url,
            alert_text=config.apns_alert_text,
            wall_seconds=wall_seconds,
        )
    if config.fcm_credentials_file is not None:
        account = ServiceAccount.load(config.fcm_credentials_file)
        client = await stack.enter_async_context(PlatformClient())
        providers["fcm"] = FcmProvider(client, account, url=config.fcm_url, wall_seconds=wall_seconds)
    return providers


async def _listen(config: WorkerConfig, app: web.Application, stack: AsyncExitStack) -> None:
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, config.ops_listen.host, config.ops_listen.port)
    await site.start()
    logger.info("operations port", port=runner.addresses[0][1])
