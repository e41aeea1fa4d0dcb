"""Many worlds by seed: every confirmed send is delivered once, nothing else appears, all comes to rest.

MAILBOXD_TEST_SEED=n runs that one world, the same in every detail.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mailbox_client.engine import Engine
from mailbox_client.incoming import Incoming
from mailbox_client.local_store.memory import MemoryStore
from mailbox_client.outgoing import Outgoing
from mailbox_client.settings import ClientSettings
from protocol.client_message_id import OrdinalLease
from protocol.frames import Entry
from protocol.ids import DeviceId
from tests.simulation.world import SETTINGS, World, run

RUNS = 500
RUNS_AT_LENGTH = 10_000


def seeds(count: int) -> list[int]:
    if given := os.environ.get("MAILBOXD_TEST_SEED"):
        return [int(given)]
    first = random.SystemRandom().randrange(10**9)
    return list(range(first, first + count))


def run_all(count: int) -> list[dict[str, Any]]:
    """The verdicts that are not ok; ten are enough."""
    wanted = seeds(count)
    context = multiprocessing.get_context("spawn")
    bad: list[dict[str, Any]] = []
    with context.Pool(min(len(wanted), os.cpu_count() or 1)) as processes:
        for verdict in processes.imap_unordered(run, wanted, chunksize=5):
            if not verdict["ok"]:
                bad.append(verdict)
                if len(bad) >= 10:
                    break
        processes.terminate()
    return bad


@pytest.mark.timeout(300)
def test_500_worlds_deliver_every_confirmed_send_once_and_come_to_rest() -> None:
    assert not (bad := run_all(RUNS)), bad


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_10000_worlds_deliver_every_confirmed_send_once_and_come_to_rest() -> None:
    assert not (bad := run_all(RUNS_AT_LENGTH)), bad


def test_a_seed_reproduces_its_world() -> None:
    (seed,) = seeds(1)[:1]
    first, again = World(seed), World(seed)
    assert first.run() == again.run()
    assert first.schedule.now == again.schedule.now
    assert [client.store._messages.keys() for client in first.clients] == [
        client.store._messages.keys() for client in again.clients
    ]


# -- planted bugs: the world must notice each kind, or it proves nothing


class WithoutReconciliation(Outgoing):
    """Resends as soon as it is connected, without looking into the mailbox."""

    def connection_lost(self) -> list[Any]:
        events = super().connection_lost()
        self._open = True
        return events


class AckAtArrival(Incoming):
    """Acks what came, before the app has it."""

    def take_in(self, entries: tuple[Entry, ...], server_now: int, *, pushed: bool, walk: bool = False) -> None:  # type: ignore[override]
        super().take_in(entries, server_now, pushed=pushed, walk=walk)
        self._owe([entry.mid for entry in entries])


class ForgetsDuplicates(Incoming):
    """Has no memory of what was confirmed."""

    def confirm(self, mids: tuple[Any, ...]) -> None:  # type: ignore[override]
        super().confirm(mids)
        store = self._store
        assert isinstance(store, MemoryStore)
        for mid in mids:
            if mid in store._messages:
                store._forget(mid)


class CursorBeforeTheMessages(Incoming):
    """Lets the cursor move and loses what it moved past: the first entry of a batch of several."""

    def take_in(self, entries: tuple[Entry, ...], server_now: int, *, pushed: bool, walk: bool = False) -> None:  # type: ignore[override]
        super().take_in(entries[1:] or entries, server_now, pushed=pushed, walk=walk)


def with_parts(outgoing: type[Outgoing] = Outgoing, incoming: type[Incoming] = Incoming) -> Callable[..., Engine]:
    def make(store: MemoryStore, settings: ClientSettings, **how: Any) -> Engine:
        engine = Engine(store, settings, **how)
        with MemoryStore.transaction(store):
            engine._outgoing = outgoing(store, settings, how["random"])
            engine._incoming = incoming(store, settings, engine._numbers)
            engine._outgoing.connection_lost()
        return engine

    return make


def reserve_without_high_water(store: MemoryStore, device: DeviceId, _server_now_ms: int | None) -> OrdinalLease:
    lease = store.reserve_ordinals(device, ordinals=SETTINGS.lease_ordinals)
    if lease.first > 0:
        store._high_water[device] = lease.first - 1  # the next process begins here again
    return lease


def caught(plant: Callable[[World], None]) -> Iterator[str]:
    """The faults of the first world that notices the plant."""
    for seed in seeds(RUNS):
        world = World(seed)
        plant(world)
        try:
            verdict = world.run()
        except Exception as error:
            yield repr(error)
            return
        if not verdict["ok"]:
            yield from verdict["faults"]  # type: ignore[misc]
            return


@pytest.mark.parametrize(
    ("engine", "seen"),
    [
        (with_parts(outgoing=WithoutReconciliation), {"shown to be committed"}),
        (with_parts(incoming=AckAtArrival), {"acked what the app had not confirmed"}),
        (with_parts(incoming=ForgetsDuplicates), {"duplicated"}),
        # What was stepped over stays un-acked, until a daily walk finds it: too late for its order.
        (with_parts(incoming=CursorBeforeTheMessages), {"lost", "come to rest", "out_of_order"}),
    ],
    ids=["no reconciliation", "ack before hand-over", "no dedup memory", "cursor before the messages"],
)
def test_a_planted_bug_is_noticed(engine: Callable[..., Engine], seen: set[str]) -> None:
    def plant(world: World) -> None:
        world.make_engine = engine

    faults = list(caught(plant))
    assert any(one in fault for fault in faults for one in seen), faults


def test_a_reused_ordinal_is_noticed() -> None:
    def plant(world: World) -> None:
        world.reserve = reserve_without_high_water

    assert any("issued twice" in fault or "two sends" in fault or "above" in fault for fault in caught(plant))
