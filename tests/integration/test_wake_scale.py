"""20,000 subscriptions in one process: what they cost, and that none is missing after the connection was lost."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from protocol.ids import DeviceId
from runtime.clock import SystemClock
from runtime.supervise import Progress
from store.redis_client import connect
from store.wake import Wake, WakeBus, WakeNames, lanes_of
from store.wake_link import Heard
from store.wake_subscriber import WakeSubscriber
from tests.support.valkey import valkey_cluster
from tests.support.waiting import eventually

SUBSCRIPTIONS: Final = 20_000
# Measured: 400 bytes each and 0.3 s. Several times as much, so that only another order of growth fails here.
BYTES_EACH_MAX: Final = 2_500
CPU_SECONDS_MAX: Final = 3.0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Crowd:
    """A subscriber with all those devices, and a bus that wakes them."""

    def __init__(self, url: str) -> None:
        self.redis = connect(url)
        self.names = WakeNames("tag", b"k" * 32, lanes=lanes_of(self.redis))
        self.devices = [DeviceId(os.urandom(16)) for _ in range(SUBSCRIPTIONS)]
        self.channels = [self.names.device(device) for device in self.devices]
        self.heard: set[bytes] = set()
        self.subscribed = 0
        self.heard_again: list[int] = []
        self.subscriber = WakeSubscriber(
            self.redis,
            SystemClock(),
            on_heard=self._heard,
            on_subscribed=self._subscribed,
            on_connected=self._connected,
        )
        self.bus = WakeBus(self.redis, self.names)

    def _heard(self, heard: Heard) -> None:
        self.heard.add(heard.channel)

    def _subscribed(self, _channel: bytes) -> None:
        self.subscribed += 1

    def _connected(self, channels: Collection[bytes]) -> None:
        self.heard_again.append(len(channels))

    async def all_subscribed(self) -> None:
        await eventually(lambda: self.subscribed >= SUBSCRIPTIONS, within_seconds=60, what="all are subscribed")

    async def all_are_woken(self) -> None:
        self.heard.clear()
        for first in range(0, SUBSCRIPTIONS, 5_000):
            self.bus.publish([Wake(device, 1) for device in self.devices[first : first + 5_000]])
            await eventually(partial(self._hears_from, first + 5_000), within_seconds=30, what="each is woken")

    def _hears_from(self, count: int) -> bool:
        return len(self.heard) >= count


async def costs_little_and_misses_none(url: str) -> None:
    crowd = Crowd(url)
    running = asyncio.create_task(crowd.subscriber.run(Progress(SystemClock())))
    try:
        gc.collect()
        before, cpu, began = resident_bytes(), time.process_time(), time.perf_counter()
        for channel in crowd.channels:
            crowd.subscriber.want(channel)
        await crowd.all_subscribed()
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        each = (resident_bytes() - before) / SUBSCRIPTIONS
        await crowd.all_are_woken()

        crowd.subscribed = 0
        crowd.heard_again.clear()
        began_again, cpu_again = time.perf_counter(), time.process_time()
        for link, _ in list(crowd.subscriber._links.values()):
            await link.break_off()
        await crowd.all_subscribed()
        again, cpu_again = time.perf_counter() - began_again, time.process_time() - cpu_again
        await eventually(
            lambda: sum(crowd.heard_again) == SUBSCRIPTIONS, what="all are told that they missed something"
        )
        await crowd.all_are_woken()
        figures = {
            "bytes each": round(each),
            "subscribed in s": round(seconds, 2),
            "cpu s": round(cpu, 2),
            "subscribed again in s": round(again, 2),
            "cpu s again": round(cpu_again, 2),
        }
        print(figures)
        assert each < BYTES_EACH_MAX, figures
        assert max(cpu, cpu_again) < CPU_SECONDS_MAX, figures
        await crowd.bus.close()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await crowd.redis.aclose()


async def test_20_000_subscriptions_cost_little_and_come_back_after_a_lost_connection(redis_url: str) -> None:
    await costs_little_and_misses_none(redis_url)


@pytest.mark.slow
async def test_20_000_subscriptions_on_a_cluster(tmp_path: Path) -> None:
    async with valkey_cluster(tmp_path) as cluster:
        await costs_little_and_misses_none(cluster.url)
