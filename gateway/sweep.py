"""The sweep: what makes a lost wake cost seconds and not messages.

Every few seconds (sooner without Redis) each live session is compared with the database, in slices: its mailbox's head
with what was pushed, its epoch with whose turn it is, its device with the revoked ones; and the leases of those that
showed life are renewed in the same call. A wake that says "look" gets one session looked at now; nothing that a wake
says is believed, so whoever can PUBLISH can log nobody out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from gateway.connection_registry import ConnectionRegistry
from gateway.database_time import DatabaseTime
from gateway.delivery import Delivery
from gateway.metrics import GatewayMetrics
from gateway.session import DeviceSession
from protocol.errors import CloseCode, ErrorCode, MailboxError
from protocol.server_session import Close
from runtime.clock import Clock
from runtime.doorbell import Doorbell
from runtime.supervise import Progress
from store.sessions import SWEEP_MAX, SessionState, SessionStore, SweepRequest

RENEW_AFTER_S: Final = 15.0  # a lease is written anew when the last sign of life is this much younger than it says
WINDOW_IDS_MAX: Final = 5_000  # ids in one question
RETRY_S: Final = 1.0
LOOK_S: Final = 1.0  # how late a change of the interval may be noticed

log = structlog.get_logger(__name__)


class Sweep:
    """Compares live sessions with the database."""

    def __init__(
        self,
        *,
        sessions: SessionStore,
        registry: ConnectionRegistry,
        delivery: Delivery,
        database_time: DatabaseTime,
        clock: Clock,
        interval_s: Callable[[], float],
        metrics: GatewayMetrics,
    ) -> None:
        """`interval_s`: how long one round over everybody may take."""
        self._sessions = sessions
        self._registry = registry
        self._delivery = delivery
        self._database_time = database_time
        self._clock = clock
        self._interval_s = interval_s
        self._metrics = metrics
        self._doorbell = Doorbell()
        self._urgent: dict[DeviceSession, None] = {}
        self._windows: dict[DeviceSession, None] = {}
        self._round_at = -math.inf  # when the last round began

    def soon(self, session: DeviceSession) -> None:
        """Look at this one now."""
        self._urgent[session] = None
        self._doorbell.ring()

    def window_soon(self, session: DeviceSession) -> None:
        """Entries in this one's window may have been acked elsewhere: look now."""
        self._windows[session] = None
        self._doorbell.ring()

    def everybody_soon(self) -> None:
        """Start a round now: wakes may have been lost."""
        self._round_at = -math.inf
        self._doorbell.ring()

    async def run(self, progress: Progress) -> None:
        """Sweep for ever; ends only by cancellation."""
        while True:
            progress()
            try:
                await self._look_now()
                if self._due_in() <= 0:
                    self._round_at = self._clock.monotonic()
                    await self._round(progress)
            except MailboxError as error:
                log.warning("the sweep could not compare", code=error.code.value)
                self._round_at = self._clock.monotonic() + RETRY_S - self._interval_s()
            await self._doorbell.wait(at_most_seconds=min(max(0.0, self._due_in()), LOOK_S))

    def _due_in(self) -> float:
        """Seconds to the next round, by the interval of this moment: once wakes are lost the next one comes sooner."""
        return self._round_at + self._interval_s() - self._clock.monotonic()

    async def _look_now(self) -> None:
        while self._urgent or self._windows:
            urgent, self._urgent = list(self._urgent), {}
            windows, self._windows = list(self._windows), {}
            try:
                for first in range(0, len(urgent), SWEEP_MAX):
                    await self._compare(urgent[first : first + SWEEP_MAX])
                await self._free_windows(windows)
            except MailboxError:
                # The next round looks at everybody anyway; a revoked device must not wait for it.
                self._urgent.update(dict.fromkeys(urgent))
                raise

    async def _round(self, progress: Progress) -> None:
        everybody = self._registry.live()
        slices = [everybody[first : first + SWEEP_MAX] for first in range(0, len(everybody), SWEEP_MAX)]
        pause_s = self._interval_s() / 2 / len(slices) if slices else 0.0
        for part in slices:
            await self._compare(part)
            await self._free_windows([session for session in part if session.state.unacked_entries])
            progress()
            if len(slices) > 1:
                await self._clock.sleep(pause_s)  # staggered: no herd of reads behind one round
                await self._look_now()

    async def _compare(self, sessions: Sequence[DeviceSession]) -> None:
        now = self._clock.monotonic()
        asked: list[tuple[DeviceSession, SweepRequest]] = []
        for session in sessions:
            device = session.device
            if device is None or self._registry.of_device(device) is not session:
                continue
            heard_at = session.connection.heard_at
            life_ms = None
            if session.contact or heard_at - session.renewed_at >= RENEW_AFTER_S:
                life_ms = int((now - heard_at) * 1000)
                session.renewed_at = heard_at
            asked.append((session, SweepRequest(device, session.session_epoch, life_ms, session.contact)))
            session.contact = False
        if not asked:
            return
        swept = await self._sessions.sweep([request for _, request in asked])
        self._database_time.learn(swept.now_ms)
        for (session, _), state in zip(asked, swept.states, strict=True):
            if session.connection.is_open:
                self._judge(session, state, swept.epoch)

    def _judge(self, session: DeviceSession, found: SessionState, epoch: bytes) -> None:
        if epoch != session.epoch:
            self._delivery.other_epoch(session)
        elif found.revoked:
            session.end(Close(CloseCode.REVOKED, "revoked", MailboxError(ErrorCode.DEVICE_REVOKED)))
        elif not found.known:
            session.end(Close(CloseCode.UNAUTHENTICATED, "unknown", MailboxError(ErrorCode.UNAUTHENTICATED)))
        elif found.session_epoch > session.session_epoch:
            self._replaced(session, found)
        elif found.head > session.state.sent:
            self._metrics.found_by_sweep.inc()
            self._delivery.woken(session, found.head)

    def _replaced(self, session: DeviceSession, found: SessionState) -> None:
        """Another session won in the database, on another gateway."""
        own = None if session.device is None else self._sessions.instance_hash(session.device, session.instance)
        same_process = own is not None and own == found.instance_hash
        session.close(CloseCode.NORMAL if same_process else CloseCode.REPLACED, "replaced")
        if session.device is not None:
            # What was committed here meanwhile was taken for this session's and told to nobody else.
            self._delivery.ring_elsewhere(session.device, found.head)

    async def _free_windows(self, sessions: Sequence[DeviceSession]) -> None:
        """Release from the windows what is not pending any more: acked elsewhere, expired, gone."""
        held = [
            (session, mid) for session in sessions if session.device is not None for mid in session.state.unacked_ids()
        ]
        for first in range(0, len(held), WINDOW_IDS_MAX):
            part = held[first : first + WINDOW_IDS_MAX]
            pending = await self._sessions.still_pending(
                [(session.device, mid) for session, mid in part if session.device is not None]
            )
            freed: dict[DeviceSession, None] = {}
            for (session, mid), waits in zip(part, pending, strict=True):
                if not waits:
                    session.state.release((mid,))
                    freed[session] = None
            for session in freed:
                self._delivery.recheck(session)
