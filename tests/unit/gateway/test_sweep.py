"""The sweep over many sessions: bounded, staggered, sooner once wakes are lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from gateway.metrics import GatewayMetrics
from gateway.sweep import Sweep
from protocol.ids import DeviceId
from runtime.supervise import Progress
from store.sessions import SWEEP_MAX, SessionState, SweepRequest
from tests.support.clock import FakeClock, settle
from tests.support.waiting import eventually

EPOCH = b"epoch"
SESSIONS = 20_000


class Comparisons:
    """Stands for the session store: every mailbox has something new."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.calls: list[tuple[float, list[DeviceId]]] = []
        self.at_once = 0
        self.at_once_max = 0

    async def sweep(self, requests: Sequence[SweepRequest]) -> Any:
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        self.calls.append((self._clock.monotonic(), [request.device for request in requests]))
        state = SessionState(session_epoch=1, instance_hash=None, attempt=None, known=True, revoked=False, head=9)
        return SimpleNamespace(now_ms=0, epoch=EPOCH, states=[state] * len(requests))


class Live(SimpleNamespace):
    """What the sweep knows of a session. Itself and no other, as a session is."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Swept:
    """A sweep over `count` live sessions."""

    def __init__(self, count: int) -> None:
        self.clock = FakeClock()
        self.store = Comparisons(self.clock)
        self.interval_s = 15.0
        self.woken: list[Any] = []
        connection = SimpleNamespace(heard_at=self.clock.monotonic(), is_open=True)
        self.sessions = {
            device: Live(
                device=device,
                connection=connection,
                session_epoch=1,
                epoch=EPOCH,
                renewed_at=connection.heard_at,
                contact=False,
                state=SimpleNamespace(sent=0, unacked_entries=0),
            )
            for device in (DeviceId(os.urandom(16)) for _ in range(count))
        }
        registry: Any = SimpleNamespace(live=lambda: list(self.sessions.values()), of_device=self.sessions.get)
        delivery: Any = SimpleNamespace(woken=lambda session, _head: self.woken.append(session))
        store: Any = self.store
        database_time: Any = SimpleNamespace(learn=lambda _ms: None)
        self.sweep = Sweep(
            sessions=store,
            registry=registry,
            delivery=delivery,
            database_time=database_time,
            clock=self.clock,
            interval_s=lambda: self.interval_s,
            metrics=GatewayMetrics(),
        )


@asynccontextmanager
async def sweeping(count: int) -> AsyncIterator[Swept]:
    swept = Swept(count)
    running = asyncio.create_task(swept.sweep.run(Progress(swept.clock)))
    try:
        yield swept
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_after_a_reconnect_all_sessions_are_compared_in_bounded_staggered_batches() -> None:
    async with sweeping(SESSIONS) as swept:
        await swept.clock.advance(20)  # the first round
        swept.store.calls.clear()
        swept.woken.clear()
        swept.sweep.everybody_soon()
        began = swept.clock.monotonic()
        await swept.clock.advance(14)
        moments = [moment - began for moment, _ in swept.store.calls]
        assert len(moments) == SESSIONS / SWEEP_MAX
        assert all(len(devices) <= SWEEP_MAX for _, devices in swept.store.calls)
        assert sorted(device for _, devices in swept.store.calls for device in devices) == sorted(swept.sessions)
        assert len(swept.woken) == SESSIONS
        assert swept.store.at_once_max == 1
        # One after the other with a pause, and all within half the interval.
        assert moments[0] < 0.1
        assert min(later - earlier for earlier, later in pairwise(moments)) > 0.3
        assert moments[-1] <= 7.5


async def test_a_session_that_is_asked_for_is_compared_between_the_batches_of_a_round() -> None:
    async with sweeping(SESSIONS) as swept:
        await settle()
        [(_, first)] = swept.store.calls
        session = next(session for device, session in swept.sessions.items() if device not in first)
        swept.sweep.soon(session)  # type: ignore[arg-type]
        await swept.clock.advance(0.4)
        assert [session.device] in [devices for _, devices in swept.store.calls]


async def test_once_wakes_are_lost_the_quick_rounds_begin_within_a_second_and_not_after_the_slow_one() -> None:
    async with sweeping(1) as swept:
        await settle()
        assert len(swept.store.calls) == 1
        swept.interval_s = 2.0
        swept.clock.move(2.0)
        await eventually(lambda: len(swept.store.calls) == 2, within_seconds=5, what="a second round")
