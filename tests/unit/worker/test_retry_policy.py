from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from worker.retry_policy import Backoff, RetryPolicy

BACKOFF = Backoff(timedelta(seconds=2), timedelta(minutes=10))


def test_waits_double_up_to_the_longest() -> None:
    waits = [BACKOFF.wait(times, 1.0).total_seconds() for times in range(1, 12)]
    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]


@given(times=st.integers(-5, 10**9), chance=st.floats(0, 1, exclude_max=True))
def test_a_wait_lies_between_half_and_all_of_its_step(times: int, chance: float) -> None:
    wait = BACKOFF.wait(times, chance)
    assert timedelta(seconds=1) <= wait <= BACKOFF.longest
    assert BACKOFF.wait(times, 0.0) <= wait


@given(times=st.integers(1, 50), asked=st.integers(0, 10**6), chance=st.floats(0, 1, exclude_max=True))
def test_a_providers_wish_is_never_undercut_up_to_half_an_hour(times: int, asked: int, chance: float) -> None:
    policy = RetryPolicy()
    wait = policy.trouble_wait(times, timedelta(seconds=asked), chance)
    assert wait >= min(timedelta(seconds=asked), policy.retry_after_longest)
    assert wait <= max(policy.trouble.longest, policy.retry_after_longest * 1.1)
