"""One gateway process: how its parts are put together, started and stopped. It holds no state that PostgreSQL lacks."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, NoReturn

import structlog

from gateway.auth import AuthService, TokenVerifier
from gateway.byte_budget import ByteBudget
from gateway.come_back import ComeBack
from gateway.conflict_audit import ConflictAudit
from gateway.connection_limits import ConnectionLimits
from gateway.connection_registry import ConnectionRegistry
from gateway.database_time import DatabaseTime
from gateway.delivery import Delivery
from gateway.drain import Drain
from gateway.file_limit import connections_within, raise_file_limit
from gateway.flush_queue import FlushQueue
from gateway.handlers.ack import AckHandler
from gateway.handlers.defer import DeferHandler
from gateway.handlers.hello import HelloHandler
from gateway.handlers.ping import PingHandler
from gateway.handlers.pull import PullHandler
from gateway.handlers.reauth import ReauthHandler
from gateway.handlers.send import SendHandler
from gateway.http_app import build_http_server
from gateway.listener import Front, UpgradeLater
from gateway.mailbox_waiters import MailboxWaiters
from gateway.metrics import GatewayMetrics
from gateway.ops_app import build_ops_server
from gateway.ports import listen
from gateway.readiness import Readiness
from gateway.services import GatewayServices
from gateway.sweep import Sweep
from gateway.tls import TlsIdentity
from gateway.upgrade import UpgradeJudge
from gateway.wake_listener import WakeListener
from gateway.ws_door import FrameHandler, WsDoor
from protocol.cursor import CursorRing
from protocol.fingerprint import InstanceSecret
from protocol.frames import Ack, Defer, Hello, Ping, PullMailbox, Reauth, Send
from protocol.ids import InstanceId
from runtime import garbage
from runtime.clock import Clock, SystemClock
from runtime.config import GatewayConfig
from runtime.doorbell import Doorbell
from runtime.keyring import Keyring, SecretKey
from runtime.logs import DeviceTags, keep_files
from runtime.setting_types import ListenAddress
from runtime.supervise import Progress, Supervisor
from store.acks import AckStore
from store.audit import AuditStore
from store.auth import ChallengeStore
from store.idempotency import RequestRecords
from store.identities import IdentityStore
from store.instance import read_instance_id
from store.mailbox import MailboxReader
from store.policy import PolicyCache, PolicyStore
from store.postgres import Postgres
from store.prekeys import PrekeyStore
from store.push_routes import PushRouteStore
from store.push_seal import PushSeal
from store.rate_limit import RateLimiter
from store.redis_client import connect
from store.redis_names import instance_tag
from store.sessions import SessionStore
from store.shared_rates import SharedRates
from store.sql_files import load_sql
from store.submit import SubmitStore
from store.wake import WakeBus, WakeNames, lanes_of

HTTP_STOP_S: Final = 2.0
STORE_DRAIN_S: Final = 5.0

log = structlog.get_logger(__name__)


async def serve(config: GatewayConfig) -> int:
    """Serve until SIGTERM or SIGINT, then drain; returns the exit code. SIGHUP reads the TLS certificate again.

    Raises MailboxError when the database cannot be reached at the start, KeyringError for its secrets, OSError for
    its ports.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    reload_asked = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, reload_asked.set)  # before anybody can take it for ready
    room = connections_within(raise_file_limit(), config.connections_max)
    if room < config.connections_max:
        log.info("fewer connections than configured: too few open files allowed", connections_max=room)
    async with AsyncExitStack() as stack:
        gateway = await Gateway.open(config.model_copy(update={"connections_max": room}), SystemClock(), stack)
        garbage.settle()
        reloading = asyncio.create_task(gateway.reload_when(reload_asked), name="reloads")
        stack.callback(reloading.cancel)
        await gateway.run(stopping)
    return 0


class Gateway:
    """All parts of one process, made and joined."""

    def __init__(
        self,
        *,
        services: GatewayServices,
        door: WsDoor,
        listener: WakeListener,
        limits: ConnectionLimits,
        supervisor: Supervisor,
        ports: list[ListenAddress],
        tls: TlsIdentity | None,
    ) -> None:
        self.services = services
        self.limits = limits
        self.door = door
        self.listener = listener
        self._supervisor = supervisor
        self._tls = tls
        self.ports = ports  # where it listens: for devices, for operations

    @classmethod
    async def open(cls, config: GatewayConfig, clock: Clock, stack: AsyncExitStack) -> Gateway:
        """Connect, compose, listen. `stack` closes it all, the newest first."""
        loop = asyncio.get_running_loop()
        keyring = Keyring.load(config.secrets_dir)
        metrics = GatewayMetrics()
        tls = None
        if config.tls_certificate is not None and config.tls_key is not None:
            tls = TlsIdentity(config.tls_certificate, config.tls_key, metrics)
        postgres = Postgres(
            config.postgres_dsn,
            pool_min=config.postgres_pool_min,
            pool_max=config.postgres_pool_max,
            application_name="mailboxd gateway",
        )
        await postgres.open()
        stack.push_async_callback(postgres.close)
        redis = connect(config.redis_url)
        stack.push_async_callback(redis.aclose)
        instance_id = InstanceId(await read_instance_id(postgres))
        database_time = DatabaseTime(clock, await postgres.fetchval(load_sql("sessions")["database_ms"]))

        audit = AuditStore(postgres, DeviceTags(keyring.log_key, clock), clock)
        policy = await PolicyCache.open(PolicyStore(postgres, audit), clock)
        tag = instance_tag(instance_id)
        names = WakeNames(tag, keyring.fingerprint.key, lanes=lanes_of(redis))
        wake = WakeBus(redis, names, on_dropped=metrics.wakes_dropped.inc)
        stack.push_async_callback(wake.close)
        shared_rates = SharedRates(redis, prefix=f"mb:{{{tag}}}:", names_key=keyring.log_key, clock=clock)
        rates = RateLimiter(policy, shared_rates, clock, loopback_exempt=config.loopback_exempt)

        now = clock.monotonic
        secrets = _Secrets(keyring)
        submit = SubmitStore(postgres, policy, lambda: secrets, now)
        acks = AckStore(postgres, now)
        reader = MailboxReader(postgres, now)
        sessions = SessionStore(
            postgres, instance_key=keyring.fingerprint.key, heartbeat_s=config.heartbeat_s, clock=now
        )
        submit.wakes_due.append(wake.publish_worker)
        sessions.closed_with_mail.append(wake.publish_worker)
        for drain_store in (sessions.drain, reader.drain, acks.drain, submit.drain):  # the last one first
            stack.push_async_callback(drain_store, STORE_DRAIN_S)

        records = RequestRecords(secrets.fingerprint, secrets.fingerprint_old)
        challenges = ChallengeStore(postgres)
        verifier = TokenVerifier(instance_id, keyring.token_keys, clock_skew_s=config.token_clock_skew_s)
        auth = AuthService(postgres, challenges, verifier, instance_id, keyring.token_signing, clock)
        cursors = CursorRing(*keyring.cursor_ring)

        registry = ConnectionRegistry()
        flush_queue = FlushQueue(loop, now)
        inbound = ByteBudget(config.inbound_bytes_max)
        waiters = MailboxWaiters(wake.names, config.long_polls_max)
        come_back = ComeBack(now, lambda: policy().handshakes_per_second)
        sign_in_come_back = ComeBack(now, lambda: policy().handshakes_per_second)
        limits = ConnectionLimits(
            policy, now, connections_max=config.connections_max, loopback_exempt=config.loopback_exempt
        )
        drain = Drain(registry, waiters, clock, rate_per_s=config.drain_rate_per_s, deadline_s=config.drain_deadline_s)
        delivery = Delivery(
            registry=registry,
            reader=reader,
            wake=wake,
            waiters=waiters,
            flush_queue=flush_queue,
            database_time=database_time,
            metrics=metrics,
        )
        policy_bell = Doorbell()
        sweep = Sweep(
            sessions=sessions,
            registry=registry,
            delivery=delivery,
            database_time=database_time,
            clock=clock,
            interval_s=lambda: config.sweep_s if listener.alive else config.sweep_without_redis_s,
            metrics=metrics,
        )
        listener = WakeListener(
            redis=redis,
            bus=wake,
            registry=registry,
            delivery=delivery,
            sweep=sweep,
            waiters=waiters,
            clock=clock,
            metrics=metrics,
            on_policy=policy_bell.ring,
        )
        conflicts = ConflictAudit(audit, lambda: policy().version)
        send = SendHandler(submit, rates, delivery, inbound, conflicts, metrics)
        hello = HelloHandler(
            auth=auth,
            sessions=sessions,
            registry=registry,
            delivery=delivery,
            wake=wake,
            listener=listener,
            policy=policy,
            cursors=cursors,
            instance_id=instance_id,
            database_time=database_time,
            heartbeat_s=config.heartbeat_s,
            draining=lambda: drain.draining,
            now=now,
            metrics=metrics,
        )
        handlers: Mapping[type, FrameHandler] = {
            Hello: hello.websocket,
            Send: send.websocket,
            Ack: AckHandler(acks, delivery, metrics).websocket,
            PullMailbox: PullHandler(reader, delivery, database_time, rates.call_of_device).websocket,
            Defer: DeferHandler(delivery).websocket,
            Reauth: ReauthHandler(auth, database_time, rates.call_of_device).websocket,
            Ping: PingHandler().websocket,
        }
        door = WsDoor(
            config=config,
            clock=clock,
            handlers=handlers,
            registry=registry,
            delivery=delivery,
            sessions=sessions,
            listener=listener,
            flush_queue=flush_queue,
            budget=inbound,
            limits=limits,
            come_back=come_back,
            metrics=metrics,
        )
        supervisor = Supervisor(clock, on_failure=lambda name: metrics.loop_restarts.labels(loop=name).inc())
        readiness = Readiness(postgres, supervisor, clock, lambda: drain.draining)
        services = GatewayServices(
            config=config,
            instance_id=instance_id,
            clock=clock,
            database_time=database_time,
            keyring=keyring,
            cursors=cursors,
            postgres=postgres,
            redis=redis,
            policy=policy,
            submit=submit,
            acks=acks,
            reader=reader,
            sessions=sessions,
            wake=wake,
            identities=IdentityStore(postgres, instance_id, records, challenges, audit, policy),
            prekeys=PrekeyStore(postgres, records, policy),
            push_routes=PushRouteStore(postgres, PushSeal(*keyring.push_token_keys), records, policy),
            audit=audit,
            rate_limiter=rates,
            auth=auth,
            inbound=inbound,
            limits=limits,
            registry=registry,
            waiters=waiters,
            delivery=delivery,
            send=send,
            readiness=readiness,
            drain=drain,
            come_back=come_back,
            sign_in_come_back=sign_in_come_back,
            metrics=metrics,
        )
        judge = UpgradeJudge(
            limits=limits,
            call_of_address=rates.call_of_address,
            come_back=come_back,
            trusted_proxies=config.trusted_proxies,
            allowed_origins=config.allowed_origins,
            draining=lambda: drain.draining,
            metrics=metrics,
        )
        http = build_http_server(services, UpgradeLater(judge, door))
        ops = build_ops_server(services)
        front = Front(http=http, judge=judge, door=door, limits=limits, trusted_proxies=config.trusted_proxies, now=now)

        async def keep_time(progress: Progress) -> None:
            await door.tick_forever(progress, front.tick)

        async def hear_policy(progress: Progress) -> None:
            while True:
                progress()
                if await policy_bell.wait(at_most_seconds=10.0):
                    await policy.refresh()

        add = supervisor.add
        add("ticks", keep_time, stalled_after_seconds=15.0)
        add("sweep", sweep.run, stalled_after_seconds=60.0 + config.sweep_s)
        add("wakes", listener.subscriber.run, stalled_after_seconds=60.0)
        add("canary", listener.sing, stalled_after_seconds=60.0)
        add("policy", policy.run, stalled_after_seconds=60.0)
        add("policy-bell", hear_policy, stalled_after_seconds=60.0)
        add("logs", partial(keep_files, lambda: policy().log_retention_s, clock), stalled_after_seconds=120.0)
        add("conflicts", conflicts.run, stalled_after_seconds=120.0)
        add("rates", shared_rates.run, stalled_after_seconds=60.0)

        stack.push_async_callback(http.shutdown, HTTP_STOP_S)
        stack.push_async_callback(ops.shutdown, HTTP_STOP_S)
        ports = await listen(
            config,
            front=front,
            ops=ops,
            tls=tls,
            limits=limits,
            connections_per_address=lambda: policy().connections_per_ip,
            metrics=metrics,
            stack=stack,
        )
        return cls(
            services=services,
            door=door,
            listener=listener,
            limits=limits,
            supervisor=supervisor,
            ports=ports,
            tls=tls,
        )

    def reload(self) -> None:
        """What SIGHUP asks for: take the TLS certificate as it is on disk now. Settings are never read again."""
        if self._tls is None:
            log.info("nothing to reload: this gateway has no TLS certificate of its own")
        else:
            self._tls.reload()

    async def reload_when(self, asked: asyncio.Event) -> NoReturn:
        """Reload whenever `asked` is set; ends by cancellation."""
        while True:
            await asked.wait()
            asked.clear()
            self.reload()

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until `stopping`, then drain within the deadline. Raises LoopFailed when a loop is beyond restarting."""
        log.info("gateway ready", listen=str(self.ports[0]), ops_listen=str(self.ports[1]))
        stop_loops = asyncio.Event()
        # None of them ends by itself: waiting for that would only make every stop longer.
        loops = asyncio.create_task(self._supervisor.run(stop_loops, stop_seconds=0.0), name="loops")
        asked = asyncio.create_task(stopping.wait(), name="stopping")
        try:
            await asyncio.wait((loops, asked), return_when=asyncio.FIRST_COMPLETED)
            if not loops.done():
                log.info("gateway drains")
                # The port stays open: newcomers hear 503 and a come-back time, which is more than a refused connection.
                await self.services.drain.run(lambda: self.door.open_sockets)
        finally:
            asked.cancel()
            stop_loops.set()
            await loops
        log.info("gateway stopped")


class _Secrets:
    """The key ring's fingerprint secrets in the protocol's form."""

    def __init__(self, keyring: Keyring) -> None:
        self.fingerprint = _secret(keyring.fingerprint)
        old = keyring.fingerprint_old
        self.fingerprint_old = None if old is None else _secret(old)


def _secret(key: SecretKey) -> InstanceSecret:
    return InstanceSecret(key.key_id, key.key)
