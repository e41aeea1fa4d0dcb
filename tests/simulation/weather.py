"""How bad the network is, by seed. Probabilities are per event."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass
class Weather:
    latency_max_ms: int = 200
    pieces: float = 0.0  # of the writes: they arrive in several pieces, cut at any byte
    cut: float = 0.0  # of the writes: the connection breaks at one of their bytes
    black_hole: float = 0.0  # of the breaks: nobody is told
    refused: float = 0.0  # of the openings: it fails, in one of several ways
    blocked: bool = False  # a proxy that lets no upgrade through
    mute: bool = False  # a proxy that lets the upgrade through, and nothing that follows
    doubled: float = 0.0  # of the connections and requests: they reach the server a second time, later
    request_lost: float = 0.0  # an HTTP request that breaks at one of its bytes
    answer_lost: float = 0.0  # an HTTP request that is carried out, and whose answer breaks at one of its bytes


CALM = Weather(latency_max_ms=20)


def storm(random: Random, *, doubled: bool) -> Weather:
    """Weather for the bad part of a run; `doubled` says whether requests may come twice."""
    return Weather(
        latency_max_ms=random.choice([5, 200, 3_000]),
        pieces=random.choice([0.0, 0.2]),
        cut=random.choice([0.0, 0.01, 0.05, 0.2]),
        black_hole=random.choice([0.0, 0.3]),
        refused=random.choice([0.0, 0.1, 0.5]),
        blocked=random.random() < 0.12,
        mute=random.random() < 0.05,
        doubled=random.choice([0.0, 0.1, 0.3]) if doubled else 0.0,
        request_lost=random.choice([0.0, 0.05, 0.3]),
        answer_lost=random.choice([0.0, 0.05, 0.3]),
    )
