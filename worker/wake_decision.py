"""When is a wake intent done, when does it wait, and when is there a push to send: the rule, pure.

The dispatcher applies the same rule set-based in SQL (`wake_verdict_v1`); a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from store.outbox import Job, WakeRules


class DoneReason(StrEnum):
    """Stored in the outbox; a reason never changes its meaning."""

    NO_MAILBOX = "no_mailbox"
    REVOKED = "revoked"
    NOTHING_WAITS = "nothing_waits"  # (i)
    CONTACT = "contact"  # (ii)
    NO_ROUTE = "no_route"  # (iii)
    GAVE_UP = "gave_up"  # (iv)


class WaitReason(StrEnum):
    ONLINE = "online"
    COLLAPSED = "collapsed"  # the last push was a moment ago


@dataclass(frozen=True, slots=True)
class Done:
    reason: DoneReason


@dataclass(frozen=True, slots=True)
class Wait:
    until: datetime
    reason: WaitReason


@dataclass(frozen=True, slots=True)
class Push:
    """Send one now."""


Decision = Done | Wait | Push


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeFacts:
    """One moment of one device. All instants are the database's."""

    now: datetime
    active: bool  # the mailbox is there and not revoked
    pending: bool  # by the counters: something but echoes is un-acked, expired or not
    waiting: bool  # something unexpired but echoes is un-acked at or below `position`
    position: int  # of the newest entry that wants a wake
    has_route: bool
    online_until: datetime | None = None
    contact_at: datetime | None = None
    pushes_accepted: int = 0
    push_began_at: datetime | None = None
    push_position: int | None = None


def facts_of(job: Job) -> WakeFacts:
    return WakeFacts(
        now=job.now,
        active=job.active,
        pending=job.pending,
        waiting=job.waiting,
        position=job.wake_position,
        has_route=job.route is not None,
        online_until=job.online_until,
        contact_at=job.contact_at,
        pushes_accepted=job.pushes_accepted,
        push_began_at=job.push_began_at,
        push_position=job.push_position,
    )


def decide(facts: WakeFacts, rules: WakeRules) -> Decision:
    """DESIGN, "Outbox, queue, wake push": an online lease puts the push off and never ends the intent.

    The cheap questions come first: `waiting` is looked up in the envelopes, and only for a device that is away.
    """
    if not facts.active:
        return Done(DoneReason.REVOKED)
    if not facts.pending:
        return Done(DoneReason.NOTHING_WAITS)
    if not facts.has_route:
        return Done(DoneReason.NO_ROUTE)
    repeat_at = _repeat_at(facts, rules)
    if facts.pushes_accepted > 0 and repeat_at is None and _covered(facts):
        return Done(DoneReason.CONTACT)
    if facts.online_until is not None and facts.online_until > facts.now:
        return Wait(facts.online_until, WaitReason.ONLINE)
    if not facts.waiting:
        return Done(DoneReason.NOTHING_WAITS)
    if repeat_at is not None:
        if repeat_at > facts.now:
            return Wait(repeat_at, WaitReason.COLLAPSED)
        # What came after the newest push has had none yet: giving up would leave it without.
        if facts.pushes_accepted >= rules.pushes_max and _covered(facts):
            return Done(DoneReason.GAVE_UP)
    return Push()


def repeat_after(pushes: int, rules: WakeRules) -> timedelta:
    """How long after the n-th push without contact the next one begins: doubling, bounded."""
    return min(rules.repeat_first * (1 << min(max(pushes - 1, 0), 20)), rules.repeat_longest)


def _repeat_at(facts: WakeFacts, rules: WakeRules) -> datetime | None:
    """When the newest push is to be repeated; None without one, or once the device was in contact after it."""
    if facts.pushes_accepted == 0 or facts.push_began_at is None:
        return None
    if facts.contact_at is not None and facts.contact_at > facts.push_began_at:
        return None
    return facts.push_began_at + repeat_after(facts.pushes_accepted, rules)


def _covered(facts: WakeFacts) -> bool:
    """The newest push began after the newest entry had committed."""
    return facts.push_position is not None and facts.push_position >= facts.position
