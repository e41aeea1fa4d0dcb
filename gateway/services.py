"""What the doors work with: made once by `gateway.composition`, passed on, never looked up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a list of parts: importing it must not load them all
    from redis.asyncio import Redis

    from gateway.auth import AuthService
    from gateway.byte_budget import ByteBudget
    from gateway.come_back import ComeBack
    from gateway.connection_limits import ConnectionLimits
    from gateway.connection_registry import ConnectionRegistry
    from gateway.database_time import DatabaseTime
    from gateway.delivery import Delivery
    from gateway.drain import Drain
    from gateway.handlers.send import SendHandler
    from gateway.mailbox_waiters import MailboxWaiters
    from gateway.metrics import GatewayMetrics
    from gateway.readiness import Readiness
    from protocol.cursor import CursorRing
    from protocol.ids import InstanceId
    from runtime.clock import Clock
    from runtime.config import GatewayConfig
    from runtime.keyring import Keyring
    from store.acks import AckStore
    from store.audit import AuditStore
    from store.identities import IdentityStore
    from store.mailbox import MailboxReader
    from store.policy import PolicyCache
    from store.postgres import Postgres
    from store.prekeys import PrekeyStore
    from store.push_routes import PushRouteStore
    from store.rate_limit import RateLimiter
    from store.sessions import SessionStore
    from store.submit import SubmitStore
    from store.wake import WakeBus


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayServices:
    """The parts of one gateway process. Both doors get the same object."""

    config: GatewayConfig
    instance_id: InstanceId
    clock: Clock
    database_time: DatabaseTime
    keyring: Keyring
    cursors: CursorRing
    postgres: Postgres
    redis: Redis
    policy: PolicyCache
    submit: SubmitStore
    acks: AckStore
    reader: MailboxReader
    sessions: SessionStore
    wake: WakeBus
    identities: IdentityStore
    prekeys: PrekeyStore
    push_routes: PushRouteStore
    audit: AuditStore
    rate_limiter: RateLimiter
    auth: AuthService
    inbound: ByteBudget  # of both doors
    limits: ConnectionLimits
    registry: ConnectionRegistry
    waiters: MailboxWaiters  # pulls over HTTP that wait for mail
    delivery: Delivery
    send: SendHandler
    readiness: Readiness
    drain: Drain
    come_back: ComeBack
    sign_in_come_back: ComeBack  # slots of their own: a flood of sign-ins puts nobody else's return off
    metrics: GatewayMetrics
