"""Opens and closes of one device keep their order through one flush."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import DeviceId
from store.coalescer import Waiting
from store.sessions import CloseRequest, OpenRequest, lease_ms, rounds_of, within_reason

DEVICES = [DeviceId(os.urandom(16)) for _ in range(3)]


def an_item(device: DeviceId, opens: bool, n: int) -> Waiting:  # type: ignore[type-arg]
    request = OpenRequest(device, None, None, None) if opens else CloseRequest(device, n, False)
    return Waiting(request, 1, 1, 0, float(n), lambda _result: None)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=12))
def test_no_device_twice_in_a_step_and_each_in_its_order(asked: list[tuple[int, bool]]) -> None:
    items = [an_item(DEVICES[device], opens, n) for n, (device, opens) in enumerate(asked)]
    order = []
    for closes, opens in rounds_of(items):
        for step in (closes, opens):
            devices = [item.item.device for item in step]
            assert len(set(devices)) == len(devices)
            order += step
    assert sorted(item.since for item in order) == [item.since for item in items]
    for device in DEVICES:
        mine = [item.since for item in order if item.item.device == device]
        assert mine == sorted(mine)


def test_a_close_and_the_open_behind_it_take_one_round() -> None:
    device = DEVICES[0]
    assert len(rounds_of([an_item(device, False, 1), an_item(device, True, 2)])) == 1
    assert len(rounds_of([an_item(device, True, 1), an_item(device, False, 2)])) == 2


def test_a_crowd_of_hellos_of_one_device_is_not_judged_one_by_one() -> None:
    crowd = [an_item(DEVICES[0], True, n) for n in range(50)] + [an_item(DEVICES[1], True, 50)]
    judged, excess = within_reason(crowd)
    assert judged == [*crowd[:10], crowd[50]]
    assert excess == crowd[10:50]


def test_a_lease_outlasts_the_heartbeat_and_ends_in_time_for_the_push() -> None:
    """DESIGN, "Stated times": a push at most 110 s after the commit at the default heartbeat."""
    assert 95_000 < lease_ms(45) <= 108_000
