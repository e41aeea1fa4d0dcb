"""Wakes over Redis pub/sub: hints that there may be something to look at, never content, never an id.

A device's channel is named by a keyed hash. A lost wake costs seconds and no message: the gateways' sweep finds what it
would have told. So publishing never waits and never fails: it queues, one pipeline at a time goes out, and what does
not get through is dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, NamedTuple

import structlog
from blake3 import blake3
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from protocol.ids import DeviceId
from runtime.clock import Clock
from runtime.doorbell import Doorbell
from runtime.supervise import Progress
from store.redis_client import REDIS_TROUBLE, subscriber_connection

PENDING_MAX: Final = 20_000
PIPELINE_MAX: Final = 1_000
SUBSCRIBE_MAX: Final = 500  # channels in one command
SILENT_S: Final = 20.0  # the canary sings more often than this: silence means a dead connection
HEARD_AT_ONCE: Final = 64
RECONNECT_FIRST_S: Final = 0.1
RECONNECT_MAX_S: Final = 2.0

log = structlog.get_logger(__name__)


class WakeKind(bytes, Enum):
    """What may have happened. The letter is the wire form between gateways and never changes its meaning."""

    ENTRY = b"e"  # an entry was committed at this position
    ACK = b"a"  # entries were acked by another way
    REVOKED = b"r"  # the device was revoked
    SESSION = b"s"  # a session with this epoch took over
    FILLING = b"f"  # the mailbox is nearly full
    PREKEYS = b"k"  # so many one-time prekeys are left
    ROUTE = b"g"  # the push route is gone
    POLICY = b"p"  # to all gateways: the policy changed


class WakeNames:
    """The names of one instance in Redis: `mb:{<instance tag>}:…`; no id can be read from them."""

    def __init__(self, instance_tag: str, channel_key: bytes) -> None:
        """`instance_tag` tells instances apart that share a Redis; `channel_key`: 32 bytes."""
        self._prefix = f"mb:{{{instance_tag}}}:".encode("ascii")
        self._key = channel_key
        self.everybody = self._prefix + b"all"
        self.outbox = self._prefix + b"outbox"

    def device(self, device: DeviceId) -> bytes:
        """The channel of one device."""
        return (
            self._prefix + b"w:" + blake3(b"mailboxd.wake-channel\x00" + device, key=self._key).hexdigest(16).encode()
        )

    def canary(self, gateway: bytes) -> bytes:
        """The channel on which one gateway hears itself."""
        return self._prefix + b"c:" + gateway.hex().encode("ascii")


class Wake(NamedTuple):
    device: DeviceId
    position: int
    kind: WakeKind = WakeKind.ENTRY


class WakeBus:
    """The publishing side. `publish` is called on the hot path: a dictionary step a device, no task, no waiting."""

    def __init__(
        self, redis: Redis, names: WakeNames, *, on_dropped: Callable[[int], None] = lambda _count: None
    ) -> None:
        """`on_dropped` is told how many wakes did not get through."""
        self._redis = redis
        self.names = names
        self._on_dropped = on_dropped
        self._pending: dict[tuple[bytes, bytes], int] = {}
        self._task: asyncio.Task[None] | None = None
        self.reachable = True  # how the last pipeline went

    def publish(self, wakes: Iterable[Wake]) -> None:
        """Queue wakes; of several of one kind for one device the highest position goes out."""
        pending = self._pending
        for device, position, kind in wakes:
            key = (self.names.device(device), kind.value)
            if pending.get(key, -1) < position:
                pending[key] = position
        self._start()

    def publish_revoked(self, devices: Iterable[DeviceId]) -> None:
        """Tell the sessions of revoked devices."""
        self.publish([Wake(device, 0, WakeKind.REVOKED) for device in devices])

    def publish_policy(self, version: int) -> None:
        """Tell every gateway that the policy changed."""
        self._pending[(self.names.everybody, WakeKind.POLICY.value)] = version
        self._start()

    def publish_worker(self) -> None:
        """Ring the worker: an intent may be due."""
        self._pending[(self.names.outbox, b"o")] = 0
        self._start()

    def publish_raw(self, channel: bytes, letter: bytes, number: int) -> None:
        """Queue one message for a channel of `names`; the canary's way."""
        self._pending[(channel, letter)] = number
        self._start()

    async def close(self) -> None:
        """Wait for the pipeline in flight; the socket's timeout bounds it."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _start(self) -> None:
        if len(self._pending) > PENDING_MAX:
            self._on_dropped(len(self._pending))
            self._pending.clear()
        elif self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._flush(), name="wake-publish")

    async def _flush(self) -> None:
        while self._pending:
            batch = self._pending
            self._pending = {}
            if len(batch) > PIPELINE_MAX:
                items = iter(batch.items())
                batch = dict(item for item, _ in zip(items, range(PIPELINE_MAX), strict=False))
                self._pending = dict(items)
            try:
                pipeline: Any = self._redis.pipeline(transaction=False)
                for (channel, letter), number in batch.items():
                    pipeline.execute_command("PUBLISH", channel, b"%b %d" % (letter, number))
                await pipeline.execute(raise_on_error=False)
            except REDIS_TROUBLE as error:
                if self.reachable:
                    log.warning("wakes do not get through", error=type(error).__name__)
                self.reachable = False
                self._on_dropped(len(batch) + len(self._pending))
                self._pending.clear()
                return
            if not self.reachable:
                log.info("wakes get through again")
            self.reachable = True


class Heard(NamedTuple):
    """One message from a subscribed channel."""

    channel: bytes
    letter: bytes
    number: int


class WakeSubscriber:
    """The hearing side: one connection, every channel that somebody here wants, made anew whenever it breaks.

    What was published while it was down is lost; `on_connected` says that it may have been.
    """

    def __init__(
        self,
        redis: Redis,
        clock: Clock,
        *,
        on_heard: Callable[[Heard], None],
        on_subscribed: Callable[[bytes], None],
        on_connected: Callable[[], None],
    ) -> None:
        """The callbacks run in the loop and must not raise. `on_subscribed`: that channel is heard from now on."""
        self._redis = redis
        self._clock = clock
        self._on_heard = on_heard
        self._on_subscribed = on_subscribed
        self._on_connected = on_connected
        self._wanted: dict[bytes, int] = {}
        self._asked: dict[bytes, bool] = {}  # changes that were not sent yet
        self._heard_channels: set[bytes] = set()
        self._unconfirmed: set[bytes] = set()  # of those that were wanted when the connection was made
        self._doorbell = Doorbell()
        self._connection: Any = None
        self.restarts = 0

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def hears(self, channel: bytes) -> bool:
        """True once Redis confirmed the subscription."""
        return channel in self._heard_channels

    def want(self, channel: bytes) -> None:
        """Subscribe; counted, so that each `want` has its `drop`."""
        count = self._wanted.get(channel, 0)
        self._wanted[channel] = count + 1
        if not count:
            self._asked[channel] = True
            self._doorbell.ring()

    def drop(self, channel: bytes) -> None:
        count = self._wanted.get(channel, 0)
        if count > 1:
            self._wanted[channel] = count - 1
        elif count:
            del self._wanted[channel]
            self._asked[channel] = False
            self._doorbell.ring()

    async def break_off(self) -> None:
        """The subscription seems dead although nothing says so: make a new one."""
        if self._connection is not None:
            await self._connection.disconnect(nowait=True)

    async def run(self, progress: Progress) -> None:
        """Hear for ever; ends only by cancellation. Reconnects by itself, with a growing pause."""
        pause, down = RECONNECT_FIRST_S, False
        while True:
            progress()
            connection = None
            try:
                connection = await subscriber_connection(self._redis)
                await self._subscribe_all(connection)
                self._connection = connection
                pause, down = RECONNECT_FIRST_S, False
                await self._hear(connection, progress)
            except REDIS_TROUBLE as error:
                if not down:
                    log.warning("wakes are not heard", error=type(error).__name__)  # once an outage
                down = True
            finally:
                self._connection = None
                self._heard_channels.clear()
                self.restarts += 1
                if connection is not None:
                    await connection.disconnect(nowait=True)
            await self._clock.sleep(pause)
            pause = min(pause * 2, RECONNECT_MAX_S)

    async def _subscribe_all(self, connection: Any) -> None:
        self._asked.clear()
        channels = list(self._wanted)
        self._unconfirmed = set(channels)
        for first in range(0, len(channels), SUBSCRIBE_MAX):
            await connection.send_command("SUBSCRIBE", *channels[first : first + SUBSCRIBE_MAX])

    async def _hear(self, connection: Any, progress: Progress) -> None:
        asking = asyncio.create_task(self._ask(connection), name="wake-subscribe")
        hearing = asyncio.create_task(self._listen(connection, progress), name="wake-listen")
        try:
            await asyncio.wait((asking, hearing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # A cancellation can be swallowed below us (asyncio.wait_for before Python 3.12): both look at this too.
            self._connection = None
            self._doorbell.ring()
            asking.cancel()
            hearing.cancel()
            results = await asyncio.gather(asking, hearing, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _ask(self, connection: Any) -> None:
        while self._connection is connection:
            asked, self._asked = self._asked, {}
            for command, state in ((b"SUBSCRIBE", True), (b"UNSUBSCRIBE", False)):
                channels = [channel for channel, wanted in asked.items() if wanted is state]
                for first in range(0, len(channels), SUBSCRIBE_MAX):
                    await connection.send_command(command, *channels[first : first + SUBSCRIBE_MAX])
            await self._doorbell.wait(at_most_seconds=60.0)

    async def _listen(self, connection: Any, progress: Progress) -> None:
        turns = 0
        while self._connection is connection:
            message = await connection.read_response(timeout=SILENT_S)
            progress()
            if not isinstance(message, list) or len(message) != 3:
                raise RedisConnectionError("not an answer to a subscription")
            kind, channel, payload = message
            if kind == b"message":
                letter, _, number = payload.partition(b" ")
                if number.isdigit():
                    self._on_heard(Heard(channel, letter, int(number)))
            elif kind == b"subscribe":
                self._heard_channels.add(channel)
                self._on_subscribed(channel)
                if self._unconfirmed:
                    self._unconfirmed.discard(channel)
                    if not self._unconfirmed:
                        self._on_connected()  # from here on nothing is missed; before, something may have been
            elif kind == b"unsubscribe":
                self._heard_channels.discard(channel)
            turns += 1
            if turns % HEARD_AT_ONCE == 0:
                await asyncio.sleep(0)  # a flood of wakes must not hold the loop
