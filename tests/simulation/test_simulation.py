"""Many worlds by seed: every confirmed send is delivered once, nothing else appears, all comes to rest.

MAILBOXD_TEST_SEED=n runs that one world, the same in every detail.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from typing import Any

import pytest

from tests.simulation.world import World, run

RUNS = 500
RUNS_AT_LENGTH = 10_000


def seeds(count: int) -> list[int]:
    if given := os.environ.get("MAILBOXD_TEST_SEED"):
        return [int(given)]
    first = random.SystemRandom().randrange(10**9)
    return list(range(first, first + count))


def run_all(count: int) -> list[dict[str, Any]]:
    """The verdicts that are not ok; ten are enough."""
    wanted = seeds(count)
    context = multiprocessing.get_context("spawn")
    bad: list[dict[str, Any]] = []
    with context.Pool(min(len(wanted), os.cpu_count() or 1)) as processes:
        for verdict in processes.imap_unordered(run, wanted, chunksize=5):
            if not verdict["ok"]:
                bad.append(verdict)
                if len(bad) >= 10:
                    break
        processes.terminate()
    return bad


@pytest.mark.timeout(300)
def test_500_worlds_deliver_every_confirmed_send_once_and_come_to_rest() -> None:
    assert not (bad := run_all(RUNS)), bad


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_10000_worlds_deliver_every_confirmed_send_once_and_come_to_rest() -> None:
    assert not (bad := run_all(RUNS_AT_LENGTH)), bad


def test_a_seed_reproduces_its_world() -> None:
    (seed,) = seeds(1)[:1]
    first, again = World(seed), World(seed)
    assert first.run() == again.run()
    assert first.schedule.now == again.schedule.now
    assert [device.store._messages.keys() for device in first.devices] == [
        device.store._messages.keys() for device in again.devices
    ]
