"""Hears the gateways' rings for the dispatcher over Redis pub/sub. A hint only: the dispatcher polls as well."""

from __future__ import annotations

from typing import Any, Final

import structlog
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from runtime.clock import Clock
from runtime.doorbell import Doorbell
from runtime.supervise import Progress
from store.redis_client import REDIS_TROUBLE
from store.redis_places import EVERYWHERE, RedisPlaces

logger = structlog.get_logger(__name__)

QUIET_SECONDS_MAX: Final = 15.0  # then the connection is asked whether it lives
ANSWER_SECONDS_MAX: Final = 5.0
RECONNECT_SECONDS: Final = 1.0


class BellListener:
    """One subscription. A connection that is dead without an error is noticed by the missing answer to a PING."""

    def __init__(self, redis: Redis, channel: bytes, bell: Doorbell, clock: Clock) -> None:
        self._places = RedisPlaces(redis)
        self._channel = channel
        self._bell = bell
        self._clock = clock

    async def run(self, progress: Progress) -> None:
        """Listen for ever, over as many connections as it takes; ends by cancellation only."""
        hearing, anew = True, False
        while True:
            progress()
            try:
                await self._places.learn(anew=anew)
                anew = True  # whatever ends this connection may be a slot that has moved
                place = self._places.of_slot(self._places.slot(self._channel))
                connection = await self._places.connect(place or EVERYWHERE)
                try:
                    if not hearing:
                        logger.info("rings are heard again")
                    hearing = True
                    await self._listen(connection, progress)
                finally:
                    await connection.disconnect(nowait=True)
            except REDIS_TROUBLE as error:
                if hearing:  # once per outage
                    logger.warning("rings are not heard; the outbox is polled", error=type(error).__name__)
                hearing = False
            self._bell.ring()  # what was rung meanwhile was not heard
            await self._clock.sleep(RECONNECT_SECONDS)

    async def _listen(self, connection: Any, progress: Progress) -> None:
        await connection.send_command(self._places.subscribe, self._channel)
        asked = False
        while True:
            # None at the end of that time. Left to the shorter one of the socket, silence would end the subscription.
            heard = await connection.read_response(timeout=ANSWER_SECONDS_MAX if asked else QUIET_SECONDS_MAX)
            progress()
            if heard is None:
                if asked:
                    raise TimeoutError
                await connection.send_command("PING", check_health=False)
                asked = True
                continue
            if isinstance(heard, list) and heard[:1] == [b"sunsubscribe"]:
                raise RedisConnectionError("the slot has moved")
            asked = False
            self._bell.ring()
