"""Going away without a storm: nobody new comes in, everybody is told to go, at a set rate, within the deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from gateway.connection_registry import ConnectionRegistry
from gateway.mailbox_waiters import MailboxWaiters
from gateway.session import DeviceSession
from protocol.errors import CloseCode
from runtime.clock import Clock

STEP_S: Final = 0.05
GRACE_S: Final = 2.0  # between GOAWAY and 1012, where nothing is in flight
LAST_SHARE: Final = 0.8  # of the deadline: from then on what is in flight is not waited for
CLOSE_S: Final = 1.0  # for the last closing handshakes

log = structlog.get_logger(__name__)


class Drain:
    """Begins once. From `begin` on upgrades get 503 and HELLOs 4503."""

    def __init__(
        self, registry: ConnectionRegistry, waiters: MailboxWaiters, clock: Clock, *, rate_per_s: int, deadline_s: float
    ) -> None:
        self._registry = registry
        self._waiters = waiters
        self._clock = clock
        self._rate_per_s = rate_per_s
        self._deadline_s = deadline_s
        self._draining = False

    @property
    def draining(self) -> bool:
        return self._draining

    def begin(self) -> None:
        """Take nobody new."""
        self._draining = True
        self._waiters.release_all()

    async def run(self, open_sockets: Callable[[], int]) -> None:
        """Send everybody away: GOAWAY, then 1012 once nothing is in flight, at the latest at the deadline.

        `open_sockets`: WebSockets whose closing handshake may still be on its way.
        """
        self.begin()
        began = self._clock.monotonic()
        staying = list(self._registry.everybody())
        # All of them must have heard GOAWAY in half the deadline: if the set rate is too slow for that, it is raised.
        rate = max(self._rate_per_s, len(staying) / max(self._deadline_s / 2, STEP_S))
        told: dict[DeviceSession, float] = {}
        allowance = 1.0
        while staying or told:
            now = self._clock.monotonic()
            allowance = min(allowance + rate * STEP_S, len(staying) + 1.0)
            while staying and allowance >= 1:
                session = staying.pop()
                allowance -= 1
                if session.connection.is_open:
                    session.state.leaving()
                    session.go_away("restart")
                    told[session] = now
            late = now - began >= self._deadline_s * LAST_SHARE
            for session, at in list(told.items()):
                if not session.connection.is_open:
                    del told[session]
                elif late or (now - at >= min(GRACE_S, self._deadline_s / 4) and not session.state.in_flight):
                    session.close(CloseCode.RESTART, "restart")
                    del told[session]
            if now - began >= self._deadline_s:
                break
            await self._clock.sleep(STEP_S)
        for session in [*staying, *told]:
            session.close(CloseCode.RESTART, "restart")
        closing_until = self._clock.monotonic() + CLOSE_S
        while open_sockets() and self._clock.monotonic() < closing_until:
            await self._clock.sleep(STEP_S)
        log.info("drained", seconds=round(self._clock.monotonic() - began, 1))
