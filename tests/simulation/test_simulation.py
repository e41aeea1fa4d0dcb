"""Many worlds by seed: every confirmed send is delivered once, nothing else appears, all comes to rest.

MAILBOXD_TEST_SEED=n runs that one world, the same in every detail.
"""

from __future__ import annotations

import multiprocessing
import os
import random

import pytest

from tests.simulation.world import World, run

RUNS = 500
RUNS_AT_LENGTH = 10_000


def seeds(count: int) -> list[int]:
    if given := os.environ.get("MAILBOXD_TEST_SEED"):
        return [int(given)]
    first = random.SystemRandom().randrange(10**9)
    return list(range(first, first + count))


def bad_worlds(count: int) -> list[str]:
    """A line for each world that is not ok, with its seed in full; ten are enough."""
    wanted = seeds(count)
    context = multiprocessing.get_context("spawn")
    bad: list[str] = []
    with context.Pool(min(len(wanted), os.cpu_count() or 1)) as processes:
        for verdict in processes.imap_unordered(run, wanted, chunksize=5):
            if not verdict["ok"]:
                bad.append(f"MAILBOXD_TEST_SEED={verdict['seed']}: {'; '.join(verdict['faults'])}")
                if len(bad) >= 10:
                    break
        processes.terminate()
    return bad


def fail_with(bad: list[str]) -> None:
    """`pytest.fail` prints its text whole, where an assertion's values are cut."""
    if bad:
        text = "\n".join(bad)
        pytest.fail(
            f"repeat one world by its seed: MAILBOXD_TEST_SEED=n pytest tests/simulation/test_simulation.py\n{text}",
            pytrace=False,
        )


@pytest.mark.timeout(300)
def test_500_worlds_deliver_every_confirmed_send_once_and_come_to_rest() -> None:
    fail_with(bad_worlds(RUNS))


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_10000_worlds_deliver_every_confirmed_send_once_and_come_to_rest() -> None:
    fail_with(bad_worlds(RUNS_AT_LENGTH))


def test_a_bad_world_is_told_with_its_seed_in_full() -> None:
    lines = [f"MAILBOXD_TEST_SEED={seed}: {'the window: 17, and the bound is 16; ' * 20}" for seed in (123456789, 7)]
    with pytest.raises(pytest.fail.Exception) as failed:
        fail_with(lines)
    assert all(line in str(failed.value) for line in lines)


def test_a_seed_reproduces_its_world() -> None:
    (seed,) = seeds(1)[:1]
    first, again = World(seed), World(seed)
    assert first.run() == again.run()
    assert first.schedule.now == again.schedule.now
    assert [device.store._messages.keys() for device in first.devices] == [
        device.store._messages.keys() for device in again.devices
    ]
