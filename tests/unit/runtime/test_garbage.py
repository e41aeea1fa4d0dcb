"""The cycle collector of a serving process."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from runtime import garbage


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def test_a_batch_of_requests_in_flight_sets_no_collection_off() -> None:
    garbage.settle()
    before = collections()
    for _ in range(50):
        in_flight = [[n] for n in range(5_000)]
        del in_flight
    assert collections() == before


def test_cycles_are_freed_all_the_same() -> None:
    garbage.settle()
    before = collections()
    for _ in range(2 * garbage.YOUNG_OBJECTS_MAX):
        Cycle()
    assert collections() > before
    assert sum(type(thing) is Cycle for thing in gc.get_objects()) <= garbage.YOUNG_OBJECTS_MAX
