"""A database that is away ends no loop: it waits, says so once, and goes on when the database answers again."""

from __future__ import annotations

from typing import Final

import structlog

from protocol.errors import ErrorCode, MailboxError
from runtime.clock import Clock
from runtime.supervise import LoopBody, Progress

logger = structlog.get_logger(__name__)

PAUSE_SECONDS: Final = 1.0


def through_outages(name: str, body: LoopBody, clock: Clock) -> LoopBody:
    """The same loop, begun again a second after it met UNAVAILABLE; every other error goes through.

    Waiting counts as progress: being alive is not being ready, and a restart would not bring the database back.
    """

    async def run(progress: Progress) -> None:
        away = False
        while True:
            turns = progress.turns
            try:
                return await body(progress)
            except MailboxError as error:
                if error.code is not ErrorCode.UNAVAILABLE:
                    raise
                if not away or progress.turns > turns:  # once an outage, however often it is tried
                    logger.warning("waits for the database", loop=name, error=str(error))
                away = True
            progress()
            await clock.sleep(PAUSE_SECONDS)

    return run
