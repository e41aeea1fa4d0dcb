"""The design of the wake intent, explored: every interleaving of its steps within small bounds.

Each step is one commit or one Redis command; between any two of them a process may die. Held in every reachable state:
no intent is done while something at or below its newest position is un-acked, unpushed and has a route; nor, since a
provider may swallow a push, while the device was never shown it and fewer pushes than the limit went out. And from
every reachable state the loops alone, without a new submit, bring the push about.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest

RECOVERY_STEPS_MAX: Final = 60
GIVEN_UP: Final = 2


class Row(NamedTuple):
    """The outbox row. `due`: its time has come; of a published one: its deadline has passed."""

    state: str
    due: bool
    pushes: int = 0  # without contact between them; GIVEN_UP stands for the 12
    push_position: int = 0


class Worker(NamedTuple):
    """A handler at work, with what follows from what it read when it began."""

    phase: str  # begun or pushed
    position: int
    is_done: bool  # so it decided
    generation_is_old: bool = False
    route_is_old: bool = False


class State(NamedTuple):
    head: int = 0  # also wake_position: every entry here wants a wake
    acked: int = 0  # everything up to here; ACKs out of order add nothing to this rule
    wake_open: bool = False
    route: bool = True
    row: Row | None = None
    dead: bool = False  # a dead letter lies there
    contact: bool = False  # one that counts, since the newest push began
    push_head: int = 0  # the newest entry when the newest push began; 0 once a contact counts
    shown: int = 0  # ghost: the newest entry that a HELLO or pull could have shown the device
    in_hand: bool = False  # claimed and not yet in the queue
    queued: bool = False  # in the stream, handed out or not
    workers: tuple[Worker, ...] = ()
    pushed: int = 0  # ghost: the newest entry that a push over the present route began after


class Bounds(NamedTuple):
    positions: int
    workers: int
    any_ack_counts: bool = False  # the rule as it must not be


def waiting(state: State) -> bool:
    return state.acked < state.head


def is_done(state: State) -> bool:
    """The rule of worker/wake_decision.py for a device that is away and a repeat that is due."""
    row = state.row
    assert row is not None
    covered = row.pushes > 0 and row.push_position >= state.head
    return not waiting(state) or not state.route or (covered and (state.contact or row.pushes == GIVEN_UP))


def with_new_generation(state: State) -> State:
    return state._replace(workers=tuple(sorted(worker._replace(generation_is_old=True) for worker in state.workers)))


def with_new_route(state: State) -> State:
    workers = tuple(sorted(worker._replace(route_is_old=True) for worker in state.workers))
    return state._replace(workers=workers, pushed=0)


def reopened(state: State) -> State:
    """What a submit, a new route or the reconciler do where no intent is open."""
    if state.row is None:
        return state._replace(wake_open=True, row=Row("pending", True))
    if state.row.state != "completed":
        return state._replace(wake_open=True)
    row = state.row._replace(state="pending", due=True, pushes=0)
    return with_new_generation(state._replace(wake_open=True, row=row))


def in_contact(state: State) -> State:
    """wake_contact_made, the trigger."""
    row = state.row
    if not state.contact and row is not None and row.state in ("pending", "retry_wait"):
        row = row._replace(due=True)
    return state._replace(contact=True, push_head=0, row=row)


def steps(state: State, bounds: Bounds) -> Iterator[tuple[str, State]]:
    row = state.row
    if state.head < bounds.positions:
        submitted = state._replace(head=state.head + 1)
        yield "submit", submitted if submitted.wake_open else reopened(submitted)
    if state.acked < state.shown:
        # Of what was shown, which may be older than the newest push: then it says nothing about that one.
        acked = state._replace(acked=state.acked + 1)
        yield "ack", in_contact(acked) if bounds.any_ack_counts or acked.acked >= acked.push_head else acked
    if not state.contact or state.shown < state.head:
        yield "hello or pull", in_contact(state._replace(shown=state.head))
    if state.route:
        yield "route deleted", with_new_route(state._replace(route=False))
    yield "new route", _announced(state)
    if row is not None:
        yield from _row_steps(state, row)
    yield from _queue_steps(state, bounds)
    for number, worker in enumerate(state.workers):
        others = state._replace(workers=state.workers[:number] + state.workers[number + 1 :])
        yield "worker dies", others  # its message stays with the group
        yield from _worker_steps(state, worker, others)


def _announced(state: State) -> State:
    """wake_route_changed_v1."""
    state = with_new_route(state._replace(route=True))
    if waiting(state) and not state.wake_open:
        state = reopened(state)
    row = state.row
    if row is None or row.state == "completed":
        return state
    published = row.state == "published"
    row = row._replace(state=row.state if published else "pending", due=row.due if published else True, pushes=0)
    return with_new_generation(state._replace(row=row))


def _row_steps(state: State, row: Row) -> Iterator[tuple[str, State]]:
    if not row.due and row.state in ("pending", "retry_wait", "published"):
        yield "time passes", state._replace(row=row._replace(due=True))
    if row.due and row.state in ("pending", "retry_wait"):
        if is_done(state):
            yield "claim: done", state._replace(wake_open=False, row=row._replace(state="completed", due=False))
        elif not state.in_hand:
            yield "claim: publish", state._replace(row=row._replace(state="published", due=False), in_hand=True)
    if row.state == "published":
        if row.due:
            yield "reconcile", state._replace(row=row._replace(state="pending"))
        if not state.dead:
            yield "bury", state._replace(wake_open=False, dead=True, row=None)
    if state.dead:
        published = row.state == "published"
        merged = row._replace(state=row.state if published else "pending", due=row.due if published else True, pushes=0)
        yield "requeue merges", with_new_generation(state._replace(dead=False, wake_open=True, row=merged))


def _queue_steps(state: State, bounds: Bounds) -> Iterator[tuple[str, State]]:
    row = state.row
    if state.dead and row is None:
        requeued = state._replace(dead=False, wake_open=True, row=Row("pending", True))
        yield "requeue", with_new_generation(requeued)
    if state.in_hand:
        yield "xadd", state._replace(in_hand=False, queued=True)
        yield "dispatcher dies", state._replace(in_hand=False)
    if state.queued:
        yield "settled or flushed", state._replace(queued=False)
        if row is not None and row.state == "published" and len(state.workers) < bounds.workers:
            # The message stays until it is settled, so another worker may be given it as well.
            begun = tuple(sorted((*state.workers, Worker("begun", state.head, is_done(state)))))
            yield "begin", state._replace(workers=begun, row=row._replace(due=False))


def _worker_steps(state: State, worker: Worker, others: State) -> Iterator[tuple[str, State]]:
    row = state.row
    open_row = row if row is not None and row.state in ("published", "pending") else None
    if worker.phase == "begun" and not worker.is_done:
        # The push begins after the facts were read: what was committed then is announced by it.
        announced = state.pushed if worker.route_is_old else max(state.pushed, worker.position)
        pushing = tuple(sorted((*others.workers, worker._replace(phase="pushed"))))
        yield "push", state._replace(workers=pushing, pushed=announced, contact=False, push_head=state.head)
        if open_row is not None:
            due = worker.generation_is_old
            put_off = open_row._replace(state="pending" if due else "retry_wait", due=due)
            yield "provider trouble", others._replace(row=put_off)
    elif open_row is None:
        yield "record: not open any more", others
    elif worker.phase == "begun":
        if worker.generation_is_old or state.head > worker.position:
            yield "complete: newer came", others._replace(row=open_row._replace(state="pending", due=True))
        else:
            completed = open_row._replace(state="completed", due=False)
            yield "complete", others._replace(wake_open=False, row=completed)
    elif worker.generation_is_old:
        yield "record: newer came", others._replace(row=open_row._replace(state="pending", due=True))
    else:
        # The count starts again when there was a contact before this push; whether there was is not followed here.
        for pushes in {1, min(GIVEN_UP, open_row.pushes + 1)}:
            yield "record", others._replace(row=Row("retry_wait", state.contact, pushes, worker.position))


def forgotten(state: State) -> bool:
    """Done, although something un-acked was never announced over the route that is there, or announced and not seen."""
    closed = not state.wake_open and not state.dead and waiting(state) and state.route
    given_up = state.row is not None and state.row.pushes == GIVEN_UP
    return closed and (state.pushed < state.head or (state.shown < state.head and not given_up))


RECOVERY: Final = ("push", "complete", "record", "xadd", "claim", "begin", "reconcile", "time passes")


def recovers(state: State, bounds: Bounds) -> bool:
    """Everything in flight is lost; then the loops run by themselves until nothing is left to do."""
    state = state._replace(workers=(), in_hand=False, queued=False)
    for _ in range(RECOVERY_STEPS_MAX):
        if not waiting(state) or not state.route or state.pushed >= state.head:
            return True
        choices = list(steps(state, bounds))
        state = next((to for prefix in RECOVERY for name, to in choices if name.startswith(prefix)), state)
    return False


Explored = dict[State, tuple[State, str] | None]


def explored(bounds: Bounds) -> Explored:
    """Every reachable state, with how it was first come to."""
    seen: Explored = {State(): None}
    frontier = [State()]
    while frontier:
        state = frontier.pop()
        for name, following in steps(state, bounds):
            if following not in seen:
                seen[following] = (state, name)
                frontier.append(following)
    return seen


def way_to(state: State, seen: Explored) -> str:
    way = []
    while (come := seen[state]) is not None:
        way.append(f"{come[1]} -> {state}")
        state = come[0]
    return "\n".join(reversed(way))


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(positions=2, workers=1),
        Bounds(positions=1, workers=2),
        pytest.param(Bounds(positions=3, workers=1), marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param(Bounds(positions=2, workers=2), marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
    ids=str,
)
def test_in_every_interleaving_no_wake_is_forgotten(bounds: Bounds) -> None:
    seen = explored(bounds)
    assert len(seen) > 5_000
    for state in seen:
        is_open = state.row is not None and state.row.state != "completed"
        assert not forgotten(state), way_to(state, seen)
        assert state.wake_open == is_open, way_to(state, seen)
        assert state.dead or recovers(state, bounds), way_to(state, seen)


def test_if_every_ack_counted_as_contact_a_swallowed_push_would_be_forgotten() -> None:
    """The device acks what it fetched before, just as the push for newer mail goes out and gets lost."""
    seen = explored(Bounds(positions=2, workers=1, any_ack_counts=True))
    assert any(forgotten(state) for state in seen)
