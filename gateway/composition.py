"""One gateway's parts, made and joined: the doors over the stores. It holds no state that PostgreSQL lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, NamedTuple

from gateway.backing import open_backing
from gateway.byte_budget import ByteBudget
from gateway.come_back import ComeBack
from gateway.conflict_audit import ConflictAudit
from gateway.connection_limits import ConnectionLimits
from gateway.connection_registry import ConnectionRegistry
from gateway.delivery import Delivery
from gateway.drain import Drain
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
from protocol.frames import Ack, Defer, Hello, Ping, PullMailbox, Reauth, Send
from runtime.clock import Clock
from runtime.config import GatewayConfig
from runtime.doorbell import Doorbell
from runtime.logs import keep_files
from runtime.setting_types import ListenAddress
from runtime.supervise import Progress, Supervisor
from store.identities import IdentityStore
from store.prekeys import PrekeyStore
from store.push_routes import PushRouteStore
from store.push_seal import PushSeal

HTTP_STOP_S: Final = 2.0


class Parts(NamedTuple):
    """What runs, what is asked while it runs, and where it listens: for devices, for operations."""

    services: GatewayServices
    door: WsDoor
    listener: WakeListener
    limits: ConnectionLimits
    supervisor: Supervisor
    ports: list[ListenAddress]
    tls: TlsIdentity | None


async def compose(config: GatewayConfig, clock: Clock, stack: AsyncExitStack) -> Parts:
    """Connect, compose, listen. `stack` closes it all, the newest first."""
    loop, now = asyncio.get_running_loop(), clock.monotonic
    metrics = GatewayMetrics()
    tls = None
    if config.tls_certificate is not None and config.tls_key is not None:
        tls = TlsIdentity(config.tls_certificate, config.tls_key, metrics)
    on = await open_backing(config, clock, metrics, stack)

    registry = ConnectionRegistry()
    flush_queue = FlushQueue(loop, now)
    inbound = ByteBudget(config.inbound_bytes_max)
    waiters = MailboxWaiters(on.wake.names, config.long_polls_max)
    come_back = ComeBack(now, lambda: on.policy().handshakes_per_second)
    sign_in_come_back = ComeBack(now, lambda: on.policy().handshakes_per_second)
    limits = ConnectionLimits(
        on.policy, now, connections_max=config.connections_max, loopback_exempt=config.loopback_exempt
    )
    drain = Drain(registry, waiters, clock, rate_per_s=config.drain_rate_per_s, deadline_s=config.drain_deadline_s)
    delivery = Delivery(
        registry=registry,
        reader=on.reader,
        wake=on.wake,
        waiters=waiters,
        flush_queue=flush_queue,
        database_time=on.database_time,
        metrics=metrics,
    )
    policy_bell = Doorbell()
    sweep = Sweep(
        sessions=on.sessions,
        registry=registry,
        delivery=delivery,
        database_time=on.database_time,
        clock=clock,
        interval_s=lambda: config.sweep_s if listener.alive else config.sweep_without_redis_s,
        metrics=metrics,
    )
    listener = WakeListener(
        redis=on.redis,
        bus=on.wake,
        registry=registry,
        delivery=delivery,
        sweep=sweep,
        waiters=waiters,
        clock=clock,
        metrics=metrics,
        on_policy=policy_bell.ring,
    )
    conflicts = ConflictAudit(on.audit, lambda: on.policy().version)
    send = SendHandler(on.submit, on.rates, delivery, inbound, conflicts, metrics)
    hello = HelloHandler(
        auth=on.auth,
        sessions=on.sessions,
        registry=registry,
        delivery=delivery,
        wake=on.wake,
        listener=listener,
        policy=on.policy,
        cursors=on.cursors,
        instance_id=on.instance_id,
        database_time=on.database_time,
        heartbeat_s=config.heartbeat_s,
        draining=lambda: drain.draining,
        now=now,
        metrics=metrics,
    )
    handlers: Mapping[type, FrameHandler] = {
        Hello: hello.websocket,
        Send: send.websocket,
        Ack: AckHandler(on.acks, delivery, metrics).websocket,
        PullMailbox: PullHandler(on.reader, delivery, on.database_time, on.rates.call_of_device).websocket,
        Defer: DeferHandler(delivery).websocket,
        Reauth: ReauthHandler(on.auth, on.database_time, on.rates.call_of_device).websocket,
        Ping: PingHandler().websocket,
    }
    door = WsDoor(
        config=config,
        clock=clock,
        handlers=handlers,
        registry=registry,
        delivery=delivery,
        sessions=on.sessions,
        listener=listener,
        flush_queue=flush_queue,
        budget=inbound,
        limits=limits,
        come_back=come_back,
        metrics=metrics,
    )
    supervisor = Supervisor(clock, on_failure=lambda name: metrics.loop_restarts.labels(loop=name).inc())
    readiness = Readiness(on.postgres, supervisor, clock, lambda: drain.draining)
    services = GatewayServices(
        config=config,
        instance_id=on.instance_id,
        clock=clock,
        database_time=on.database_time,
        keyring=on.keyring,
        cursors=on.cursors,
        postgres=on.postgres,
        redis=on.redis,
        policy=on.policy,
        submit=on.submit,
        acks=on.acks,
        reader=on.reader,
        sessions=on.sessions,
        wake=on.wake,
        identities=IdentityStore(on.postgres, on.instance_id, on.records, on.challenges, on.audit, on.policy),
        prekeys=PrekeyStore(on.postgres, on.records, on.policy),
        push_routes=PushRouteStore(on.postgres, PushSeal(*on.keyring.push_token_keys), on.records, on.policy),
        audit=on.audit,
        rate_limiter=on.rates,
        auth=on.auth,
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
        call_of_address=on.rates.call_of_address,
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
                await on.policy.refresh()

    add = supervisor.add
    add("ticks", keep_time, stalled_after_seconds=15.0)
    add("sweep", sweep.run, stalled_after_seconds=60.0 + config.sweep_s)
    add("wakes", listener.subscriber.run, stalled_after_seconds=60.0)
    add("canary", listener.sing, stalled_after_seconds=60.0)
    add("policy", on.policy.run, stalled_after_seconds=60.0)
    add("policy-bell", hear_policy, stalled_after_seconds=60.0)
    add("logs", partial(keep_files, lambda: on.policy().log_retention_s, clock), stalled_after_seconds=120.0)
    add("conflicts", conflicts.run, stalled_after_seconds=120.0)
    add("rates", on.shared_rates.run, stalled_after_seconds=60.0)

    stack.push_async_callback(http.shutdown, HTTP_STOP_S)
    stack.push_async_callback(ops.shutdown, HTTP_STOP_S)
    ports = await listen(
        config,
        front=front,
        ops=ops,
        tls=tls,
        limits=limits,
        connections_per_address=lambda: on.policy().connections_per_ip,
        metrics=metrics,
        stack=stack,
    )
    return Parts(services, door, listener, limits, supervisor, ports, tls)
