"""What a gateway stands on: its keys, PostgreSQL and Redis, and the stores over them. Nothing here listens."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.auth import AuthService, TokenVerifier
from gateway.database_time import DatabaseTime
from gateway.metrics import GatewayMetrics
from protocol.cursor import CursorRing
from protocol.fingerprint import InstanceSecret
from protocol.ids import InstanceId
from runtime.clock import Clock
from runtime.config import GatewayConfig
from runtime.keyring import Keyring, SecretKey
from runtime.logs import DeviceTags
from store.acks import AckStore
from store.audit import AuditStore
from store.auth import ChallengeStore
from store.idempotency import RequestRecords
from store.instance import read_instance_id
from store.mailbox import MailboxReader
from store.policy import PolicyCache, PolicyStore
from store.postgres import Postgres
from store.rate_limit import RateLimiter
from store.redis_client import connect
from store.redis_names import instance_tag
from store.sessions import SessionStore
from store.shared_rates import SharedRates
from store.sql_files import load_sql
from store.submit import SubmitStore
from store.wake import WakeBus, WakeNames, lanes_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

STORE_DRAIN_S: Final = 5.0


class Backing(NamedTuple):
    """The stores of one process, and the connections below them."""

    keyring: Keyring
    instance_id: InstanceId
    database_time: DatabaseTime
    postgres: Postgres
    redis: Redis
    audit: AuditStore
    policy: PolicyCache
    wake: WakeBus
    shared_rates: SharedRates
    rates: RateLimiter
    submit: SubmitStore
    acks: AckStore
    reader: MailboxReader
    sessions: SessionStore
    records: RequestRecords
    challenges: ChallengeStore
    auth: AuthService
    cursors: CursorRing


async def open_backing(config: GatewayConfig, clock: Clock, metrics: GatewayMetrics, stack: AsyncExitStack) -> Backing:
    """Load the keys, connect, make the stores. `stack` drains and closes it all, the newest first.

    Raises MailboxError when the database cannot be reached, KeyringError for the secrets.
    """
    keyring = Keyring.load(config.secrets_dir)
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
    sessions = SessionStore(postgres, instance_key=keyring.fingerprint.key, heartbeat_s=config.heartbeat_s, clock=now)
    submit.wakes_due.append(wake.publish_worker)
    sessions.closed_with_mail.append(wake.publish_worker)
    for drain_store in (sessions.drain, reader.drain, acks.drain, submit.drain):  # the last one first
        stack.push_async_callback(drain_store, STORE_DRAIN_S)

    records = RequestRecords(secrets.fingerprint, secrets.fingerprint_old)
    challenges = ChallengeStore(postgres)
    verifier = TokenVerifier(instance_id, keyring.token_keys, clock_skew_s=config.token_clock_skew_s)
    auth = AuthService(postgres, challenges, verifier, instance_id, keyring.token_signing, clock)
    cursors = CursorRing(*keyring.cursor_ring)
    return Backing(
        keyring=keyring,
        instance_id=instance_id,
        database_time=database_time,
        postgres=postgres,
        redis=redis,
        audit=audit,
        policy=policy,
        wake=wake,
        shared_rates=shared_rates,
        rates=rates,
        submit=submit,
        acks=acks,
        reader=reader,
        sessions=sessions,
        records=records,
        challenges=challenges,
        auth=auth,
        cursors=cursors,
    )


class _Secrets:
    """The key ring's fingerprint secrets in the protocol's form."""

    def __init__(self, keyring: Keyring) -> None:
        self.fingerprint = _secret(keyring.fingerprint)
        old = keyring.fingerprint_old
        self.fingerprint_old = None if old is None else _secret(old)


def _secret(key: SecretKey) -> InstanceSecret:
    return InstanceSecret(key.key_id, key.key)
