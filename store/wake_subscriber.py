"""The hearing side of wakes: every channel that somebody here wants, each at the place where it lives.

On one server there is one link for all. On a cluster there is one for each shard that has a slot of ours; when a slot
moves, or a shard is lost and its replica takes over, its channels go to another link. A dead shard keeps only its own
channels deaf, and for those the sweep looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

import structlog
from redis.asyncio import Redis

from runtime.clock import Clock
from runtime.doorbell import Doorbell
from runtime.supervise import Progress
from store.redis_client import REDIS_TROUBLE
from store.redis_places import RedisPlaces
from store.wake_link import RECONNECT_FIRST_S, RECONNECT_MAX_S, Heard, LinkEvents, WakeLink

LOOK_S: Final = 5.0
STUCK_S: Final = 60.0  # a link that shows no life for so long holds back this loop's own sign of it
STOP_S: Final = 0.5
CANCELS_MAX: Final = 4

log = structlog.get_logger(__name__)


class WakeSubscriber:
    """Counts who wants which channel, and keeps the links that hear them."""

    def __init__(
        self,
        redis: Redis,
        clock: Clock,
        *,
        on_heard: Callable[[Heard], None],
        on_subscribed: Callable[[bytes], None],
        on_connected: Callable[[Collection[bytes]], None],
    ) -> None:
        """The callbacks run in the loop and must not raise.

        `on_subscribed`: that channel is heard from now on. `on_connected`: those channels are heard again; what was
        published for them while they were not is lost.
        """
        self._places = RedisPlaces(redis)
        self._clock = clock
        self._events = LinkEvents(on_heard, on_subscribed, on_connected, self._trouble)
        self._wanted: dict[bytes, int] = {}
        self._slots: dict[int, dict[bytes, None]] = {}
        self._homes: dict[int, WakeLink] = {}
        self._links: dict[str, tuple[WakeLink, asyncio.Task[None]]] = {}
        self._doorbell = Doorbell()
        self._anew = False  # the map of slots may be wrong
        self._retired = 0

    @property
    def connected(self) -> bool:
        """Every wanted channel has a link that is up."""
        return bool(self._slots) and all(slot in self._homes and self._homes[slot].connected for slot in self._slots)

    @property
    def restarts(self) -> int:
        """How often a connection was made anew, or left."""
        return self._retired + sum(link.restarts for link, _ in self._links.values())

    def hears(self, channel: bytes) -> bool:
        """True once Redis confirmed the subscription."""
        link = self._homes.get(self._places.slot(channel))
        return link is not None and link.hears(channel)

    def reaches(self, channel: bytes) -> bool:
        """The channel's link is up, and a new channel on it is confirmed alone; else `on_connected` will tell."""
        link = self._homes.get(self._places.slot(channel))
        return link is not None and link.connected

    def want(self, channel: bytes) -> None:
        """Subscribe; counted, so that each `want` has its `drop`."""
        count = self._wanted.get(channel, 0)
        self._wanted[channel] = count + 1
        if not count:
            slot = self._places.slot(channel)
            self._slots.setdefault(slot, {})[channel] = None
            link = self._homes.get(slot)
            if link is None:
                self._doorbell.ring()
            else:
                link.want(channel)

    def drop(self, channel: bytes) -> None:
        count = self._wanted.get(channel, 0)
        if count > 1:
            self._wanted[channel] = count - 1
        elif count:
            del self._wanted[channel]
            slot = self._places.slot(channel)
            self._slots[slot].pop(channel, None)
            link = self._homes.get(slot)
            if link is not None:
                link.drop(channel)

    async def break_off(self, channel: bytes) -> None:
        """This channel's subscription seems dead although nothing says so: make a new one, where it lives now."""
        link = self._homes.get(self._places.slot(channel))
        if link is not None:
            await link.break_off()

    async def run(self, progress: Progress) -> None:
        """Hear for ever; ends only by cancellation."""
        pause = RECONNECT_FIRST_S
        try:
            while True:
                if all(self._clock.monotonic() - link.alive_at < STUCK_S for link, _ in self._links.values()):
                    progress()
                try:
                    await self._arrange()
                    pause = RECONNECT_FIRST_S
                except REDIS_TROUBLE as error:
                    if pause == RECONNECT_FIRST_S:
                        log.warning("no shard tells who owns the slots", error=type(error).__name__)
                    await self._clock.sleep(pause)
                    pause = min(pause * 2, RECONNECT_MAX_S)
                    self._trouble()
                await self._doorbell.wait(at_most_seconds=LOOK_S)
        finally:
            await self._end(list(self._links))
            self._homes.clear()

    async def _arrange(self) -> None:
        """Give every channel to the link of the place where it lives."""
        anew, self._anew = self._anew, False
        await self._places.learn(anew=anew)
        for slot, channels in self._slots.items():
            place, home = self._places.of_slot(slot), self._homes.get(slot)
            if place is None:
                self._anew = True  # nobody owns it now: ask again at the next look
                continue
            if home is not None:
                if home.place == place:
                    continue
                for channel in channels:
                    home.drop(channel)
            self._homes[slot] = link = self._link(place)
            link.adopt(channels)
        homes = {link.place for link in self._homes.values()}
        await self._end([place for place in self._links if place not in homes])
        for _, task in self._links.values():
            if task.done():
                task.result()  # a fault in the program: our supervisor tells, and starts all of it anew

    def _link(self, place: str) -> WakeLink:
        if place not in self._links:
            link = WakeLink(self._places, place, self._clock, self._events)
            task = asyncio.create_task(link.run(), name="wake-link")
            task.add_done_callback(lambda _: self._doorbell.ring())
            self._links[place] = link, task
        return self._links[place][0]

    async def _end(self, places: Collection[str]) -> None:
        tasks: set[asyncio.Task[None]] = set()
        for place in places:
            link, task = self._links.pop(place)
            self._retired += link.restarts
            link.stop()
            tasks.add(task)
        for _ in range(CANCELS_MAX):  # one that meets the result of a write is swallowed below
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=STOP_S)

    def _trouble(self) -> None:
        self._anew = True
        self._doorbell.ring()
