"""Wakes from other processes, and the proof that they still arrive.

Hearing nothing can mean that nothing happens or that the subscription is dead without an error. So every gateway sends
itself a canary over Redis; when it stops arriving, the subscription is made anew and everybody here is compared with
the database.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from typing import Final

import structlog
from redis.asyncio import Redis

from gateway.connection_registry import ConnectionRegistry
from gateway.delivery import Delivery
from gateway.mailbox_waiters import MailboxWaiters
from gateway.metrics import GatewayMetrics
from gateway.sweep import Sweep
from protocol.ids import DeviceId
from runtime.clock import Clock
from runtime.supervise import Progress
from store.wake import WakeBus, WakeKind
from store.wake_link import Heard
from store.wake_subscriber import WakeSubscriber

CANARY_S: Final = 2.0
CANARY_DEAD_S: Final = 10.0

log = structlog.get_logger(__name__)


class WakeListener:
    """Turns what is heard into hints for sessions and waiting requests."""

    def __init__(
        self,
        *,
        redis: Redis,
        bus: WakeBus,
        registry: ConnectionRegistry,
        delivery: Delivery,
        sweep: Sweep,
        waiters: MailboxWaiters,
        clock: Clock,
        metrics: GatewayMetrics,
        on_policy: Callable[[], None],
    ) -> None:
        """`on_policy` is called when the policy may have changed."""
        self._bus = bus
        self._registry = registry
        self._delivery = delivery
        self._sweep = sweep
        self._waiters = waiters
        self._clock = clock
        self._metrics = metrics
        self._on_policy = on_policy
        # Looked up once: wakes come by the thousand a second.
        self._counters = {kind.value: metrics.wakes_in.labels(kind=kind.name.lower()) for kind in WakeKind}
        self._unknown = metrics.wakes_in.labels(kind="unknown")
        # On a cluster one for every slot of ours: each subscription there can be dead by itself.
        self._canaries = dict.fromkeys(bus.names.canaries(secrets.token_bytes(8)), clock.monotonic())
        self.subscriber = WakeSubscriber(
            redis,
            clock,
            on_heard=self._heard,
            on_subscribed=self._subscribed,
            on_connected=self._connected,
        )
        for canary in self._canaries:
            self.subscriber.want(canary)
        self.subscriber.want(bus.names.everybody)
        waiters.on_first = self.subscriber.want
        waiters.on_last = self.subscriber.drop

    def listen(self, device: DeviceId) -> bytes:
        """Hear the wakes of a device; gives its channel, which the caller hands back to `forget` once."""
        channel = self._bus.names.device(device)
        self.subscriber.want(channel)
        return channel

    def forget(self, channel: bytes) -> None:
        self.subscriber.drop(channel)

    def needs_no_second_look(self, channel: bytes) -> bool:
        """Whoever reads from now on misses nothing on this channel, or is looked at again once it is heard."""
        return self.subscriber.hears(channel) or not self.subscriber.reaches(channel)

    @property
    def canary_age_s(self) -> float:
        """Seconds since this gateway last heard itself; of several subscriptions, on the one that is silent longest."""
        return self._clock.monotonic() - min(self._canaries.values())

    @property
    def alive(self) -> bool:
        """Wakes arrive, as far as anybody can know."""
        return self.subscriber.connected and self.canary_age_s < CANARY_DEAD_S

    async def sing(self, progress: Progress) -> None:
        """Send the canary and look for it; ends only by cancellation."""
        number = 0
        while True:
            number += 1
            for canary in self._canaries:
                self._bus.publish_raw(canary, b"c", number)
            await self._clock.sleep(CANARY_S)
            self._metrics.canary_age.set(self.canary_age_s)
            self._metrics.redis_reachable.set(self.alive and self._bus.reachable)
            await self._break_off_the_silent()
            progress()

    async def _break_off_the_silent(self) -> None:
        now = self._clock.monotonic()
        silent = [canary for canary, heard_at in self._canaries.items() if now - heard_at >= CANARY_DEAD_S]
        broken = [canary for canary in silent if self.subscriber.reaches(canary)]
        if broken:
            log.warning("a wake subscription is silent; making a new one")
        for canary in broken:
            self._canaries[canary] = now
            await self.subscriber.break_off(canary)

    def _heard(self, heard: Heard) -> None:
        if heard.channel in self._canaries:
            self._canaries[heard.channel] = self._clock.monotonic()
            return
        if heard.channel == self._bus.names.everybody:
            if heard.letter == WakeKind.POLICY.value:
                self._on_policy()
            return
        self._counters.get(heard.letter, self._unknown).inc()
        if self._waiters.waiting:
            self._waiters.ring_channel(heard.channel)
        session = self._registry.of_channel(heard.channel)
        if session is None:
            return
        match heard.letter:
            case WakeKind.ENTRY.value:
                self._delivery.woken(session, heard.number)
            case WakeKind.ACK.value:
                self._sweep.window_soon(session)
            case WakeKind.REVOKED.value:
                self._sweep.soon(session)
            case WakeKind.SESSION.value:
                if heard.number > session.session_epoch:
                    self._sweep.soon(session)
            case WakeKind.FILLING.value:
                self._delivery.tell_session(session, "mailbox_filling")
            case WakeKind.PREKEYS.value:
                self._delivery.tell_session(session, "prekeys_low", left=heard.number)
            case WakeKind.ROUTE.value:
                self._delivery.tell_session(session, "push_route_gone")
            case _:
                pass  # of a later version

    def _subscribed(self, channel: bytes) -> None:
        session = self._registry.of_channel(channel)
        if session is not None and not session.listening:
            # Its first read may have been made before the channel could be heard.
            session.listening = True
            self._delivery.recheck(session)

    def _connected(self, channels: Collection[bytes]) -> None:
        now = self._clock.monotonic()
        self._canaries.update({canary: now for canary in self._canaries if canary in channels})
        self._metrics.subscriber_restarts.inc()
        self._sweep.everybody_soon()
        self._waiters.ring_all()
