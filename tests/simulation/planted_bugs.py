"""Clients that are wrong in one way each. A world that does not notice one of them proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any
from unittest.mock import patch

from blake3 import blake3

from mailbox_client.engine import Engine
from mailbox_client.events import Event
from mailbox_client.incoming import Incoming
from mailbox_client.local_store import MessageState
from mailbox_client.local_store.memory import MemoryStore
from mailbox_client.outgoing import Outgoing
from protocol.client_message_id import OrdinalLease
from protocol.errors import ErrorCode
from protocol.frames import Ack, Entry, Send, SendResult
from protocol.ids import ClientMessageId, DeviceId, MessageId
from protocol.limits import WireLimits
from tests.simulation.device import SETTINGS
from tests.simulation.model_server import START_MS

# -- sending


class WithoutReconciliation(Outgoing):
    """Resends as soon as it is connected, without looking into the mailbox."""

    def connection_lost(self) -> list[Event]:
        events = super().connection_lost()
        self._open = True
        return events


class ReconcilesAndMatchesNothing(Outgoing):
    """Reads the mailbox to the watermark, and does not see its own sends there."""

    def entry_seen(self, cmid: ClientMessageId, accepted_at: int) -> list[Event]:
        return []


class ResendsInReverse(Outgoing):
    """Forgets the old order of what it sends again."""

    def connection_lost(self) -> list[Event]:
        events = super().connection_lost()
        self._pending = dict(reversed(self._pending.items()))
        return events


class NewIdForEachTry(Outgoing):
    """Sends again under another client message id."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self._tries = 0

    def take(self, now: int, limits: WireLimits | None, sends_max: int) -> tuple[list[Send], list[Event]]:
        sends, events = super().take(now, limits, sends_max)
        self._tries += len(sends)
        for at, send in enumerate(sends):
            if self._tries > 3:
                other = blake3(send.cmid + self._tries.to_bytes(4, "big")).digest(16)
                sends[at] = send._replace(cmid=ClientMessageId(other))
        return sends, events


class NewMessageIdsForEachTry(Outgoing):
    """Makes the envelopes anew when it sends again, under the old client message id."""

    def take(self, now: int, limits: WireLimits | None, sends_max: int) -> tuple[list[Send], list[Event]]:
        sends, events = super().take(now, limits, sends_max)
        anew = [
            send._replace(
                envelopes=tuple(
                    envelope._replace(mid=MessageId(blake3(envelope.mid + now.to_bytes(8, "big")).digest(16)))
                    for envelope in send.envelopes
                )
            )
            for send in sends
        ]
        return anew, events


class ConfirmsByEchoAndByAnswer(Outgoing):
    """Takes the echo and the SEND_ACK of one send for two confirmations."""

    def entry_seen(self, cmid: ClientMessageId, accepted_at: int) -> list[Event]:
        pending = self._pending.get(cmid)
        events = super().entry_seen(cmid, accepted_at)
        if pending is not None and not events:
            twin = Outgoing(self._store, self._settings, self._random)
            events = [twin._confirm_by_entry(twin._pending[cmid], accepted_at)]
            self._save(pending, pending.stored)
        return events


class ForgetsWhoWasRefused(Outgoing):
    """After a refusal for some it confirms the rest, and sends it never."""

    def failed(
        self, now: int, cmid: ClientMessageId, code: ErrorCode, at: Sequence[int] | None, retry_after_ms: int | None
    ) -> list[Event]:
        pending = self._pending.get(cmid)
        if pending is None or not at or len(at) == len(pending.stored.envelopes):
            return super().failed(now, cmid, code, at, retry_after_ms)
        super().failed(now, cmid, code, at, retry_after_ms)
        rest = [SendResult(envelope.mid, START_MS + now, START_MS + now) for envelope in pending.stored.envelopes]
        return self.answered(cmid, False, rest)


# -- receiving


class AckAtArrival(Incoming):
    """Acks what came, before the app has it."""

    def take_in(self, entries: Sequence[Entry], server_now: int, *, pushed: bool, walk: bool = False) -> None:
        super().take_in(entries, server_now, pushed=pushed, walk=walk)
        self._owe([entry.mid for entry in entries])


class AckAtHandOver(Incoming):
    """Acks what the app was given, before it is done with it."""

    def hand_over(self, limit: int) -> Any:
        messages = super().hand_over(limit)
        self._owe([message.entry.mid for message in messages])
        return messages


class ForgetsDuplicates(Incoming):
    """Has no memory of what was confirmed."""

    def confirm(self, mids: Sequence[MessageId]) -> None:
        super().confirm(mids)
        store = self._store
        assert isinstance(store, MemoryStore)
        for mid in mids:
            if mid in store._messages:
                store._forget(mid)


class DropsDuplicatesWithoutAck(Incoming):
    """Does not say again that it has what it has: the mailbox never empties."""

    def take_in(self, entries: Sequence[Entry], server_now: int, *, pushed: bool, walk: bool = False) -> None:
        unknown = [e for e in entries if self._store.message_state(e.mid) is not MessageState.CONFIRMED]
        super().take_in(unknown, server_now, pushed=pushed, walk=walk)

    def connection_lost(self) -> None:
        for mids in self._acks_in_flight.values():
            self._store.ack_paid(mids)
        self._acks_in_flight.clear()
        super().connection_lost()


class CursorBeforeTheMessages(Incoming):
    """Lets the cursor move and loses what it moved past: the first entry of a batch of several."""

    def take_in(self, entries: Sequence[Entry], server_now: int, *, pushed: bool, walk: bool = False) -> None:
        super().take_in(entries[1:] or entries, server_now, pushed=pushed, walk=walk)


class HandsOverWithoutNoting(Incoming):
    """Does not remember what it gave to the app, and gives it again."""

    def hand_over(self, limit: int) -> Any:
        messages = super().hand_over(limit)
        self.give_back([message.entry.mid for message in messages])
        return messages


class NeverMakesRoom(Incoming):
    """Waits behind a full window for a watermark that lies beyond it."""

    def make_room(self, *, at_once: bool = False) -> None:
        pass


class AcksWithoutEnd(Incoming):
    """Sends every ACK at once, however many are unanswered."""

    def take_acks(self, in_flight_max: int = 0) -> list[Ack]:
        acks = []
        while self._owed:
            acks += super().take_acks(in_flight_max=1_000_000)
        spent = [Ack(next(self._refs), ack.mids) for ack in acks for _ in range(9)]
        self._acks_in_flight.update((ack.ref, ack.mids) for ack in spent)
        return acks + spent


def with_parts(outgoing: type[Outgoing] = Outgoing, incoming: type[Incoming] = Incoming) -> Callable[..., Engine]:
    """Engines in which one part is replaced."""

    def make(*how: Any, **named: Any) -> Engine:
        with patch.multiple("mailbox_client.engine", Outgoing=outgoing, Incoming=incoming):
            return Engine(*how, **named)

    return make


# -- client message ids


def reserve_without_high_water(
    store: MemoryStore, device: DeviceId, _server_now_ms: int | None, _random: Random
) -> OrdinalLease:
    """The next process begins where this one began."""
    lease = store.reserve_ordinals(device, ordinals=SETTINGS.lease_ordinals)
    if lease.first > 0:
        store._high_water[device] = lease.first - 1
    return lease


def reserve_by_high_water_alone(
    store: MemoryStore, device: DeviceId, _server_now_ms: int | None, _random: Random
) -> OrdinalLease:
    """Right until a backup brings an old high water back."""
    return store.reserve_ordinals(device, ordinals=SETTINGS.lease_ordinals)


def reserve_without_skipping(
    store: MemoryStore, device: DeviceId, server_now_ms: int | None, _random: Random
) -> OrdinalLease:
    """Right until an app sends on a restored backup before it has heard the server."""
    return store.reserve_ordinals(device, server_now_ms=server_now_ms, ordinals=SETTINGS.lease_ordinals)


OUTGOING: Iterable[tuple[type[Outgoing], set[str]]] = (
    (WithoutReconciliation, {"shown to be committed"}),
    (ReconcilesAndMatchesNothing, {"shown to be committed"}),
    (ResendsInReverse, {"behind a later send"}),
    (NewIdForEachTry, {"never issued", "two client message ids"}),
    (NewMessageIdsForEachTry, {"used for two sends"}),
    (ConfirmsByEchoAndByAnswer, {"two outcomes"}),
    (ForgetsWhoWasRefused, {"lost"}),
)
INCOMING: Iterable[tuple[type[Incoming], set[str]]] = (
    (AckAtArrival, {"acked what the app had not confirmed"}),
    (AckAtHandOver, {"acked what the app had not confirmed"}),
    (ForgetsDuplicates, {"duplicated"}),
    (DropsDuplicatesWithoutAck, {"come to rest"}),
    # What was stepped over stays un-acked, until a daily walk finds it: too late for its order.
    (CursorBeforeTheMessages, {"lost", "come to rest", "out_of_order"}),
    (HandsOverWithoutNoting, {"has it in hand"}),
    (NeverMakesRoom, {"holds its own sends up"}),
    (AcksWithoutEnd, {"ACKs in flight"}),
)
