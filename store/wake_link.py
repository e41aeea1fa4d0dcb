"""One connection for subscriptions, to one place: every channel that is wanted there, made anew whenever it breaks.

It speaks SUBSCRIBE on a raw connection and not through the library's own pub/sub: one task reads, one writes, and what
is wanted is known here, so nothing depends on the state of a connection that may be dead (ADR 0042).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple

import structlog
from redis.exceptions import ConnectionError as RedisConnectionError

from runtime.clock import Clock
from runtime.doorbell import Doorbell
from store.redis_client import REDIS_TROUBLE
from store.redis_places import RedisPlaces

SUBSCRIBE_MAX: Final = 500  # channels in one command
SILENT_S: Final = 20.0  # the canary sings more often than this: silence means a dead connection
LOOK_S: Final = 2.0  # how often somebody looks for silence
HEARD_AT_ONCE: Final = 64
RECONNECT_FIRST_S: Final = 0.1
RECONNECT_MAX_S: Final = 2.0

log = structlog.get_logger(__name__)


class Heard(NamedTuple):
    """One message from a subscribed channel."""

    channel: bytes
    letter: bytes
    number: int


class LinkEvents(NamedTuple):
    """What a link tells; the callbacks run in the loop and must not raise."""

    heard: Callable[[Heard], None]
    subscribed: Callable[[bytes], None]  # this channel is heard from now on
    connected: Callable[[Collection[bytes]], None]  # these are heard again: what came meanwhile was missed
    trouble: Callable[[], None]  # the place may be the wrong one by now


class WakeLink:
    """Hears the channels of one place. What was published while it was down is lost; `connected` says so."""

    def __init__(self, places: RedisPlaces, place: str, clock: Clock, events: LinkEvents) -> None:
        self.place = place
        self._places = places
        self._clock = clock
        self._events = events
        self._wanted: dict[bytes, None] = {}
        self._asked: dict[bytes, bool] = {}  # changes that were not sent yet
        self._leaving: dict[bytes, int] = {}  # asked to be forgotten, not confirmed
        self._heard_channels: set[bytes] = set()
        self._unconfirmed: set[bytes] = set()  # of those that somebody may have called on while nobody heard
        self._doorbell = Doorbell()
        self._connection: Any = None
        self._stopping = False
        self.restarts = 0
        self.alive_at = clock.monotonic()

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def hears(self, channel: bytes) -> bool:
        """True once Redis confirmed the subscription."""
        return channel in self._heard_channels

    def want(self, channel: bytes) -> None:
        self._wanted[channel] = None
        self._asked[channel] = True
        if self._connection is None:
            self._unconfirmed.add(channel)
        self._doorbell.ring()

    def adopt(self, channels: Iterable[bytes]) -> None:
        """Want these, which were wanted before: when they are heard, `connected` is told."""
        for channel in channels:
            self._unconfirmed.add(channel)
            self.want(channel)

    def drop(self, channel: bytes) -> None:
        self._wanted.pop(channel, None)
        self._asked[channel] = False
        self._doorbell.ring()

    async def break_off(self) -> None:
        """The subscription seems dead although nothing says so: make a new one."""
        if self._connection is not None:
            await self._connection.disconnect(nowait=True)

    def stop(self) -> None:
        """`run` returns soon; also where a cancellation is swallowed below it."""
        self._stopping = True
        self._connection = None
        self._doorbell.ring()

    async def run(self) -> None:
        """Hear until stopped or cancelled. Reconnects by itself, with a growing pause."""
        pause, down = RECONNECT_FIRST_S, False
        while not self._stopping:
            self.alive_at = self._clock.monotonic()
            connection = None
            try:
                connection = await self._places.connect(self.place)
                await self._subscribe_all(connection)
                pause, down = RECONNECT_FIRST_S, False
                await self._hear(connection)
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
            self._events.trouble()
            await self._clock.sleep(pause)
            pause = min(pause * 2, RECONNECT_MAX_S)

    async def _subscribe_all(self, connection: Any) -> None:
        self._asked.clear()
        self._leaving.clear()
        self._unconfirmed = set(self._wanted)
        await self._say(connection, self._places.subscribe, self._wanted)

    async def _say(self, connection: Any, command: bytes, channels: Iterable[bytes]) -> None:
        by_slot: dict[int, list[bytes]] = {}
        for channel in channels:
            by_slot.setdefault(self._places.slot(channel), []).append(channel)
        for part in by_slot.values():
            for first in range(0, len(part), SUBSCRIBE_MAX):
                await connection.send_command(command, *part[first : first + SUBSCRIBE_MAX])

    async def _hear(self, connection: Any) -> None:
        if self._stopping:
            return  # and the cancellation that belongs to it was swallowed by what was being sent
        self._connection = connection
        # The library's own limit is a timer for each message, dearer than reading it. Silence ends it all here instead.
        connection.socket_timeout = None
        self.alive_at = self._clock.monotonic()
        asking = asyncio.create_task(self._ask(connection), name="wake-subscribe")
        hearing = asyncio.create_task(self._listen(connection), name="wake-listen")
        try:
            while not (await asyncio.wait((asking, hearing), timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                if self._clock.monotonic() - self.alive_at >= SILENT_S:
                    raise RedisConnectionError("a subscription is silent")
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
            leaving = [channel for channel, wanted in asked.items() if not wanted]
            for channel in leaving:
                self._leaving[channel] = self._leaving.get(channel, 0) + 1
            await self._say(connection, self._places.subscribe, [c for c, wanted in asked.items() if wanted])
            await self._say(connection, self._places.unsubscribe, leaving)
            await self._doorbell.wait(at_most_seconds=60.0)

    async def _listen(self, connection: Any) -> None:
        turns = 0
        while self._connection is connection:
            message = await connection.read_response()
            self.alive_at = self._clock.monotonic()
            if not isinstance(message, list) or len(message) != 3:
                raise RedisConnectionError("not an answer to a subscription")
            kind, channel, payload = message
            if kind in (b"message", b"smessage"):
                letter, _, number = payload.partition(b" ")
                if number.isdigit():
                    self._events.heard(Heard(channel, letter, int(number)))
            elif kind in (b"subscribe", b"ssubscribe"):
                self._subscribed(channel)
            elif kind in (b"unsubscribe", b"sunsubscribe"):
                self._unsubscribed(channel)
            turns += 1
            if turns % HEARD_AT_ONCE == 0:
                await asyncio.sleep(0)  # a flood of wakes must not hold the loop

    def _subscribed(self, channel: bytes) -> None:
        self._heard_channels.add(channel)
        self._events.subscribed(channel)
        self._answered(channel)

    def _answered(self, channel: bytes) -> None:
        if channel in self._unconfirmed:
            self._unconfirmed.discard(channel)
            if not self._unconfirmed:
                self._events.connected(self._wanted.keys())  # from here on nothing is missed; before, maybe

    def _unsubscribed(self, channel: bytes) -> None:
        self._heard_channels.discard(channel)
        asked = self._leaving.pop(channel, 0)
        if asked > 1:
            self._leaving[channel] = asked - 1
        elif not asked and channel in self._wanted:
            raise RedisConnectionError("the slot has moved")  # the shard takes its leave of those it was kept for
        self._answered(channel)
