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

from protocol.ids import DeviceId
from store.redis_client import REDIS_TROUBLE

PENDING_MAX: Final = 20_000
PIPELINE_MAX: Final = 1_000

log = structlog.get_logger(__name__)


class WakeKind(bytes, Enum):
    """What may have happened. The letter is the wire form between gateways and never changes its meaning."""

    ENTRY = b"e"  # an entry was committed at this position
    ACK = b"a"  # entries were acked by another way
    REVOKED = b"r"  # the device was revoked
    SESSION = b"s"  # a session with this epoch took over
    EVENTS = b"v"  # something that PUSH_EVENTS tells (prekeys, route)
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
        """Tell the sessions of revoked devices, and every gateway, which may know them from HTTP."""
        for device in devices:
            channel = self.names.device(device)
            self._pending[(channel, WakeKind.REVOKED.value)] = 0
            self._pending[(self.names.everybody, WakeKind.REVOKED.value + b":" + channel)] = 0
        self._start()

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
