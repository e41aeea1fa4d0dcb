"""The WebSocket door of one process: makes sessions of accepted upgrades, keeps their time, and sees them out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final

import structlog

from gateway.byte_budget import ByteBudget
from gateway.come_back import ComeBack
from gateway.connection_limits import ConnectionLimits
from gateway.connection_registry import ConnectionRegistry
from gateway.delivery import Delivery
from gateway.flush_queue import FlushQueue
from gateway.metrics import GatewayMetrics
from gateway.session import DeviceSession
from gateway.timer_wheel import TimerWheel
from gateway.wake_listener import WakeListener
from gateway.ws_connection import WsConnection
from protocol.errors import CloseCode
from runtime.clock import Clock
from runtime.config import GatewayConfig
from runtime.supervise import Progress
from store.sessions import CloseRequest, SessionStore

TICK_S: Final = 1.0
STUCK_BUDGET_S: Final = 10.0  # how long half-sent frames may keep the inbound budget exhausted

FrameHandler = Callable[[DeviceSession, Any, int], None]

log = structlog.get_logger(__name__)


class WsDoor:
    """Owns what all WebSocket connections share. One tick a second looks at those whose time has come."""

    def __init__(
        self,
        *,
        config: GatewayConfig,
        clock: Clock,
        handlers: Mapping[type, FrameHandler],
        registry: ConnectionRegistry,
        delivery: Delivery,
        sessions: SessionStore,
        listener: WakeListener,
        flush_queue: FlushQueue,
        budget: ByteBudget,
        limits: ConnectionLimits,
        come_back: ComeBack,
        metrics: GatewayMetrics,
    ) -> None:
        """`handlers`: what serves each kind of frame; called with the session, the frame and its size."""
        self.config = config
        self.handlers = handlers
        self.delivery = delivery
        self.come_back = come_back
        self.metrics = metrics
        self.now = clock.monotonic
        self._clock = clock
        self._registry = registry
        self._sessions = sessions
        self._listener = listener
        self._flush_queue = flush_queue
        self.budget = budget
        self._limits = limits
        self._numbers = count(1)
        self.open_sockets = 0  # those in their closing handshake included
        self._wheel: TimerWheel[DeviceSession] = TimerWheel(self.now())
        self._budget_stuck_since = 0.0

    def take_over(self, transport: asyncio.Transport, address: str, early: bytes) -> None:
        """Start a session on a transport to which the accepting answer to an upgrade was written.

        `address` was counted by the limits and is given back at the end. `early`: what came behind the request's head.
        """
        connection = WsConnection(self._flush_queue, self.budget, address, self._connection_gone)
        self.open_sockets += 1
        now = self.now()
        session = DeviceSession(self, connection, next(self._numbers), now)
        self._registry.add(session)
        connection.start(transport, session, now)
        session.schedule()
        if early:
            connection.data_received(early)

    def schedule(self, session: DeviceSession, at_s: float) -> None:
        """Look at the session at that second, or before."""
        if not session.check_at or at_s < session.check_at:
            session.check_at = at_s
            self._wheel.add(session, at_s)

    def session_ended(self, session: DeviceSession) -> None:
        """Nothing comes in from it any more, and nothing is pushed to it; its close frame may still be on its way."""
        self.delivery.forget(session)
        state = session.state
        if self._registry.remove(session) and session.device is not None:
            unfinished = bool(state.unacked_entries) or not state.at_head
            self._sessions.close(CloseRequest(session.device, session.session_epoch, unfinished))
            self.delivery.ring_elsewhere(session.device, state.sent)
        state.release(state.unacked_ids())  # the wheel may remember the session for a while, not its window
        if session.channel:
            self._listener.forget(session.channel)
        self.schedule(session, self.now() + TICK_S)

    def _connection_gone(self, connection: WsConnection) -> None:
        self.open_sockets -= 1
        self._limits.give_back_address(connection.address)
        self._limits.closed()

    async def tick_forever(self, progress: Progress, also: Callable[[], None]) -> None:
        """Keep time for ever, and for whoever else hangs on it; ends only by cancellation."""
        while True:
            await self._clock.sleep(TICK_S)
            self.tick()
            also()
            progress()

    def tick(self) -> None:
        """Look at everybody whose second has come."""
        now = self.now()
        for session in self._wheel.due(now):
            if now < session.check_at:
                continue  # it was looked at since, for an earlier deadline
            session.check_at = 0.0
            again = session.check(now)
            if again:
                self.schedule(session, again)
        self.delivery.tick()
        self._relieve_budget(now)
        metrics = self.metrics
        metrics.take_tally()
        metrics.websockets.set(len(self._registry))
        metrics.sessions.set(self._registry.sessions)
        metrics.connections.set(self._limits.connections)
        metrics.inbound_bytes.set(self.budget.used)

    def _relieve_budget(self, now: float) -> None:
        """Half-sent frames must not hold the whole budget: after a while the largest of them have to go."""
        if not self.budget.exceeded:
            self._budget_stuck_since = 0.0
        elif not self._budget_stuck_since:
            self._budget_stuck_since = now
        elif now - self._budget_stuck_since >= STUCK_BUDGET_S:
            holding = [session for session in self._registry.everybody() if session.connection.held_bytes]
            for session in sorted(holding, key=lambda session: session.connection.held_bytes, reverse=True):
                session.close_come_back(CloseCode.UNAVAILABLE)
                if self.budget.used <= self.budget.bytes_max:
                    break
