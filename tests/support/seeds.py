"""Seeds of random tests: new ones in every run, in the test's name, and set by hand to repeat a run."""

from __future__ import annotations

import os
import random

ENVIRONMENT_NAME = "MAILBOXD_TEST_SEED"


def random_seeds(count: int) -> list[int]:
    """`count` seeds for `pytest.mark.parametrize`; the one in MAILBOXD_TEST_SEED alone when it is set."""
    if given := os.environ.get(ENVIRONMENT_NAME):
        return [int(given)]
    return [random.SystemRandom().randrange(10**9) for _ in range(count)]
