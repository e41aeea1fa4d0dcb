"""How long to wait before the next try."""

from __future__ import annotations


def full_jitter(base_ms: int, cap_ms: int, attempt: int, random: float) -> int:
    """Full jitter: a uniform share of min(cap, base·2^attempt), so that many clients never come back together.

    `attempt` counts from 1, `random` is drawn from [0, 1) by the caller.
    """
    return int(random * min(cap_ms, base_ms << min(attempt, 30)))
