"""A planted bug of each kind is noticed within the 500 worlds that `make test` runs.

`make test` plants the three that would hurt most; all others come with `make test-all`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from _pytest.mark.structures import ParameterSet

from mailbox_client.incoming import Incoming
from mailbox_client.outgoing import Outgoing
from tests.simulation.planted_bugs import (
    INCOMING,
    OUTGOING,
    reserve_by_high_water_alone,
    reserve_without_high_water,
    reserve_without_skipping,
    with_parts,
)
from tests.simulation.test_simulation import RUNS, seeds
from tests.simulation.world import World

AT_ONCE = {"WithoutReconciliation", "AckAtHandOver"}  # and the ordinal used again, below


def planted(bugs: Iterable[tuple[type, set[str]]]) -> list[ParameterSet]:
    return [
        pytest.param(bug, seen, id=bug.__name__, marks=() if bug.__name__ in AT_ONCE else pytest.mark.slow)
        for bug, seen in bugs
    ]


def caught(plant: Callable[[World], None], seen: set[str]) -> bool:
    """Whether one of the worlds notices the plant as what it is. Others may notice it as something else before."""
    for seed in seeds(RUNS):
        world = World(seed)
        world.impatient = True
        plant(world)
        try:
            faults = world.run()["faults"]
        except Exception as error:
            faults = [repr(error)]
        if any(one in fault for fault in faults for one in seen):
            return True
    return False


@pytest.mark.parametrize(("bug", "seen"), planted(OUTGOING))
def test_a_planted_bug_in_sending_is_noticed(bug: type[Outgoing], seen: set[str]) -> None:
    assert caught(lambda world: setattr(world, "make_engine", with_parts(outgoing=bug)), seen)


@pytest.mark.parametrize(("bug", "seen"), planted(INCOMING))
def test_a_planted_bug_in_receiving_is_noticed(bug: type[Incoming], seen: set[str]) -> None:
    assert caught(lambda world: setattr(world, "make_engine", with_parts(incoming=bug)), seen)


def test_a_reused_ordinal_is_noticed() -> None:
    seen = {"issued twice", "used for two sends", "above"}
    assert caught(lambda world: setattr(world, "reserve", reserve_without_high_water), seen)


@pytest.mark.slow
@pytest.mark.parametrize("bug", [reserve_by_high_water_alone, reserve_without_skipping])
def test_an_id_that_a_restored_phone_brings_back_is_noticed(bug: Callable[..., object]) -> None:
    assert caught(lambda world: setattr(world, "reserve", bug), {"issued twice"})
