"""The rule of DESIGN, "Outbox, queue, wake push", line by line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from store.outbox import WakeRules
from worker.wake_decision import Done, DoneReason, Push, Wait, WaitReason, WakeFacts, decide, repeat_after

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RULES = WakeRules()


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def facts(**changes: Any) -> WakeFacts:
    """A device that is away, with one entry at position 10 that wants a wake, and a route."""
    values: dict[str, Any] = {
        "now": NOW,
        "active": True,
        "pending": True,
        "waiting": True,
        "position": 10,
        "has_route": True,
    }
    return WakeFacts(**(values | changes))


def pushed(seconds_ago: float, *, count: int = 1, position: int = 10) -> dict[str, Any]:
    return {"pushes_accepted": count, "push_began_at": ago(seconds_ago), "push_position": position}


@pytest.mark.parametrize(
    ("changes", "decision"),
    [
        ({}, Push()),
        ({"active": False}, Done(DoneReason.REVOKED)),
        # (i)
        ({"waiting": False}, Done(DoneReason.NOTHING_WAITS)),
        ({"pending": False, "waiting": False}, Done(DoneReason.NOTHING_WAITS)),
        ({"pending": False, "waiting": False, "has_route": False}, Done(DoneReason.NOTHING_WAITS)),
        # (iii)
        ({"has_route": False}, Done(DoneReason.NO_ROUTE)),
        ({"has_route": False, "online_until": NOW + timedelta(seconds=50)}, Done(DoneReason.NO_ROUTE)),
        # An online lease puts the push off, it never ends the intent; one that has run out counts for nothing.
        ({"online_until": NOW + timedelta(seconds=50)}, Wait(NOW + timedelta(seconds=50), WaitReason.ONLINE)),
        ({"online_until": NOW}, Push()),
        ({"online_until": ago(1), "contact_at": ago(60)}, Push()),
        # A push without contact is repeated, not before its time.
        (pushed(29), Wait(ago(29) + timedelta(seconds=30), WaitReason.COLLAPSED)),
        (pushed(30), Push()),
        (pushed(59, count=2), Wait(ago(59) + timedelta(seconds=60), WaitReason.COLLAPSED)),
        (pushed(29) | {"contact_at": ago(30)}, Wait(ago(29) + timedelta(seconds=30), WaitReason.COLLAPSED)),
        # Online goes before collapsed: while it is there nothing is sent anyway.
        (
            pushed(5) | {"online_until": NOW + timedelta(seconds=50)},
            Wait(NOW + timedelta(seconds=50), WaitReason.ONLINE),
        ),
        # (ii): contact after a push that began after the newest entry had committed.
        (pushed(29) | {"contact_at": ago(28)}, Done(DoneReason.CONTACT)),
        (pushed(29) | {"contact_at": ago(28), "online_until": NOW + timedelta(seconds=50)}, Done(DoneReason.CONTACT)),
        # The same instant is not after.
        (pushed(29) | {"contact_at": ago(29)}, Wait(ago(29) + timedelta(seconds=30), WaitReason.COLLAPSED)),
        # Something newer than that push: a push of its own, at once, since the device was there in between.
        (pushed(5, position=9) | {"contact_at": ago(4)}, Push()),
        (pushed(5, position=9), Wait(ago(5) + timedelta(seconds=30), WaitReason.COLLAPSED)),
        # (iv)
        (pushed(1199, count=12), Wait(ago(1199) + timedelta(seconds=1200), WaitReason.COLLAPSED)),
        (pushed(1200, count=12), Done(DoneReason.GAVE_UP)),
        (pushed(1200, count=11), Push()),
        (pushed(1200, count=12, position=9), Push()),  # newer mail has had no push yet
        (pushed(1200, count=12, position=9) | {"contact_at": ago(10)}, Push()),
        # Counts of an earlier opening: none accepted means none sent.
        ({"pushes_accepted": 0, "push_began_at": ago(1), "push_position": 10, "contact_at": ago(0)}, Push()),
    ],
)
def test_the_decision(changes: dict[str, Any], decision: object) -> None:
    assert decide(facts(**changes), RULES) == decision


def test_repeats_double_from_30_seconds_to_20_minutes() -> None:
    waits = [repeat_after(pushes, RULES).total_seconds() for pushes in range(1, 13)]
    assert waits == [30, 60, 120, 240, 480, 960, 1200, 1200, 1200, 1200, 1200, 1200]


def test_a_huge_count_does_not_overflow() -> None:
    assert repeat_after(10**9, RULES) == RULES.repeat_longest
