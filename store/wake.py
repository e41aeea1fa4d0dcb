"""Wakes over Redis pub/sub: hints that there may be something to look at, never content, never an id.

A device's channel is named by a keyed hash. A lost wake costs seconds and no message: the gateways' sweep finds what it
would have told. So publishing never waits and never fails: it queues, one pipeline at a time goes out, and what does
not get through is dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

import structlog
from blake3 import blake3
from redis.asyncio import Redis

from protocol.ids import DeviceId
from runtime import faultpoints
from store.redis_client import REDIS_TROUBLE, is_cluster
from store.redis_places import EVERYWHERE, Message, RedisPlaces

PENDING_MAX: Final = 20_000  # for each place
PIPELINE_MAX: Final = 1_000
CLUSTER_LANES: Final = 32  # so many hash tags, hence slots, do the devices of an instance share on a cluster

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
    """The names of one instance in Redis: `mb:{<instance tag>}:…`; no id can be read from them.

    On a cluster the channels of devices are spread over lanes, `mb:{<instance tag>.<lane>}:w:…`, so that every shard
    carries a part of them and one command can name all that share a lane.
    """

    def __init__(self, instance_tag: str, channel_key: bytes, *, lanes: int = 1) -> None:
        """`instance_tag` tells instances apart that share a Redis; `channel_key`: 32 bytes; `lanes`: see `lanes_of`."""
        self._prefix = f"mb:{{{instance_tag}}}:".encode("ascii")
        tags = (instance_tag,) if lanes == 1 else tuple(f"{instance_tag}.{lane}" for lane in range(lanes))
        self._lanes = tuple(f"mb:{{{tag}}}:".encode("ascii") for tag in tags)
        self._key = channel_key
        self.everybody = self._prefix + b"all"
        self.outbox = self._prefix + b"outbox"

    def device(self, device: DeviceId) -> bytes:
        """The channel of one device."""
        name = blake3(b"mailboxd.wake-channel\x00" + device, key=self._key).digest(16)
        return self._lanes[name[0] % len(self._lanes)] + b"w:" + name.hex().encode("ascii")

    def canaries(self, gateway: bytes) -> list[bytes]:
        """The channels on which one gateway hears itself: one for every slot in which this instance has channels."""
        own = b"c:" + gateway.hex().encode("ascii")
        return [prefix + own for prefix in dict.fromkeys((self._prefix, *self._lanes))]


def lanes_of(redis: Redis) -> int:
    """How many lanes the channels of an instance have there."""
    return CLUSTER_LANES if is_cluster(redis) else 1


class Wake(NamedTuple):
    device: DeviceId
    position: int
    kind: WakeKind = WakeKind.ENTRY


_Key = tuple[bytes, bytes]  # channel, letter
_Left = tuple[list[Message], str]  # what did not get through, and why


class _Outlet:
    """What waits for one place, and the task that takes it there: a place that hangs keeps no other one waiting."""

    __slots__ = ("pending", "reachable", "task")

    def __init__(self) -> None:
        self.pending: dict[_Key, int] = {}
        self.task: asyncio.Task[None] | None = None
        self.reachable = True  # how the last pipeline went


class WakeBus:
    """The publishing side. `publish` is called on the hot path: a dictionary step a device, no task, no waiting."""

    def __init__(
        self, redis: Redis, names: WakeNames, *, on_dropped: Callable[[int], None] = lambda _count: None
    ) -> None:
        """`on_dropped` is told how many wakes did not get through."""
        self._places = RedisPlaces(redis)
        self.names = names
        self._on_dropped = on_dropped
        self._outlets: dict[str, _Outlet] = {}

    @property
    def reachable(self) -> bool:
        """The last pipeline went through, to every place that wakes go to now."""
        return all(outlet.reachable for place, outlet in self._outlets.items() if self._places.owns(place))

    def publish(self, wakes: Iterable[Wake]) -> None:
        """Queue wakes; of several of one kind for one device the highest position goes out."""
        for device, position, kind in wakes:
            self._put((self.names.device(device), kind.value), position)

    def publish_revoked(self, devices: Iterable[DeviceId]) -> None:
        """Tell the sessions of revoked devices."""
        self.publish([Wake(device, 0, WakeKind.REVOKED) for device in devices])

    def publish_policy(self, version: int) -> None:
        """Tell every gateway that the policy changed."""
        self._put((self.names.everybody, WakeKind.POLICY.value), version)

    def publish_worker(self) -> None:
        """Ring the worker: an intent may be due."""
        self._put((self.names.outbox, b"o"), 0)

    def publish_raw(self, channel: bytes, letter: bytes, number: int) -> None:
        """Queue one message for a channel of `names`; the canary's way."""
        self._put((channel, letter), number)

    async def close(self) -> None:
        """Wait for the pipelines in flight; the socket's timeout bounds it."""
        tasks = [outlet.task for outlet in self._outlets.values() if outlet.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    def _put(self, key: _Key, number: int) -> None:
        place = self._place(key[0])
        outlet = self._outlets.get(place)
        if outlet is None:
            outlet = self._outlets[place] = _Outlet()
        pending = outlet.pending
        if pending.get(key, -1) < number:
            pending[key] = number
        if len(pending) > PENDING_MAX:
            self._on_dropped(len(pending))
            pending.clear()
        elif outlet.task is None or outlet.task.done():
            outlet.task = asyncio.get_running_loop().create_task(self._flush(place, outlet), name="wake-publish")

    def _place(self, channel: bytes) -> str:
        return self._places.of_slot(self._places.slot(channel)) or EVERYWHERE

    async def _flush(self, place: str, outlet: _Outlet) -> None:
        while outlet.pending:
            batch, outlet.pending = outlet.pending, {}
            if len(batch) > PIPELINE_MAX:
                items = iter(batch.items())
                batch = dict(islice(items, PIPELINE_MAX))
                outlet.pending = dict(items)
            messages = [(channel, b"%b %d" % (letter, number)) for (channel, letter), number in batch.items()]
            await faultpoints.reach("wake.before_publish")
            left, reason = await self._publish(place, messages)
            if left and self._places.sharded:
                left, reason = await self._elsewhere(left)
            if left:
                if outlet.reachable:
                    log.warning("wakes do not get through", error=reason)
                outlet.reachable = False
                self._on_dropped(len(left) + len(outlet.pending))
                outlet.pending.clear()
                break
            if not outlet.reachable:
                log.info("wakes get through again")
            outlet.reachable = True
        if not self._places.owns(place):
            self._outlets.pop(place, None)  # a shard that is gone

    async def _publish(self, place: str, messages: list[Message]) -> _Left:
        try:
            return await self._places.publish(place, messages), "refused"
        except REDIS_TROUBLE as error:
            return messages, type(error).__name__

    async def _elsewhere(self, messages: list[Message]) -> _Left:
        """Once more, by a map of slots that was read anew: a slot may have moved, or a shard have another address."""
        try:
            await self._places.learn(anew=True)
        except REDIS_TROUBLE as error:
            return messages, type(error).__name__
        by_place: dict[str, list[Message]] = {}
        for message in messages:
            by_place.setdefault(self._place(message[0]), []).append(message)
        left, reason = by_place.pop(EVERYWHERE, []), "nobody owns the slot"
        for place, part in by_place.items():
            lost, why = await self._publish(place, part)
            if lost:
                left, reason = left + lost, why
        return left, reason
