"""How often the cycle collector looks, in a process whose objects come and go by reference counts (ADR 0076)."""

from __future__ import annotations

import gc
from typing import Final

YOUNG_OBJECTS_MAX: Final = 20_000


def settle() -> None:
    """Call once when everything that lives as long as the process has been made.

    What is there now is never looked at again. From here on a collection comes when YOUNG_OBJECTS_MAX more containers
    were made than freed, instead of Python's 700, which one batch of requests in flight passes several times over. What
    a cycle keeps alive is freed that much later: a few megabytes at most.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX, 10, 10)
