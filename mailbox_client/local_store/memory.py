"""The store for tests, simulations and throw-away devices: the same promises, gone with the process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

from mailbox_client.local_store import (
    FINISHED,
    MessageState,
    SendState,
    StoredAccount,
    StoredMessage,
    StoredSend,
    StoreFault,
)
from protocol.client_message_id import LEASE_ORDINALS, OrdinalLease, next_lease
from protocol.frames import Entry, SendEnvelope
from protocol.ids import ClientMessageId, DeviceId, MessageId

Key = TypeVar("Key")
Value = TypeVar("Value")


class _Kept:
    """One message row."""

    __slots__ = ("arrival", "crashes", "entry", "seen_at", "state")

    def __init__(self, arrival: int, entry: Entry, seen_at: int, state: MessageState, crashes: int) -> None:
        self.arrival = arrival
        self.entry = entry
        self.seen_at = seen_at
        self.state = state
        self.crashes = crashes


class MemoryStore:
    """A LocalStore in dictionaries. A transaction that raises is undone step by step, as SQLite would."""

    was_reset = False
    blocks = False

    def __init__(self) -> None:
        self._account: StoredAccount | None = None
        self._cursor: str | None = None
        self._noted: dict[str, int] = {}
        self._high_water: dict[DeviceId, int] = {}
        self._sends: dict[ClientMessageId, StoredSend] = {}
        self._send_order = 0
        self._messages: dict[MessageId, _Kept] = {}
        self._by_state: dict[MessageState, dict[MessageId, None]] = {state: {} for state in MessageState}
        self._arrivals = 0
        self._owed: dict[MessageId, None] = {}
        self._undo: list[Callable[[], object]] | None = None
        self._reserving = Lock()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._undo is not None:
            raise StoreFault("transactions do not nest")
        self._undo = []
        try:
            yield
        except BaseException:
            for step in reversed(self._undo):
                step()
            raise
        finally:
            self._undo = None

    def close(self) -> None:
        """Nothing to let go of; the content stays, so that a test can open an engine on it again."""

    def reset(self) -> None:
        self.set_cursor(None)
        for mid in list(self._messages):
            self._forget(mid)
        self.ack_paid(list(self._owed))

    # -- account, cursor, server time

    def account(self) -> StoredAccount | None:
        return self._account

    def save_account(self, account: StoredAccount) -> None:
        before = self._account
        self._later_undo(lambda: setattr(self, "_account", before))
        self._account = account

    def cursor(self) -> str | None:
        return self._cursor

    def set_cursor(self, cursor: str | None) -> None:
        before = self._cursor
        self._later_undo(lambda: setattr(self, "_cursor", before))
        self._cursor = cursor

    def noted_ms(self, name: str) -> int | None:
        return self._noted.get(name)

    def note_ms(self, name: str, instant_ms: int) -> None:
        self._put(self._noted, name, instant_ms)

    # -- client message ids

    def reserve_ordinals(
        self, device: DeviceId, *, server_now_ms: int | None = None, ordinals: int = LEASE_ORDINALS, skip: int = 0
    ) -> OrdinalLease:
        with self._reserving:
            lease = next_lease(self._high_water.get(device), server_now_ms=server_now_ms, ordinals=ordinals, skip=skip)
            self._high_water[device] = lease.last
            return lease

    # -- sends

    def add_send(self, send: StoredSend) -> None:
        before = self._send_order
        self._later_undo(lambda: setattr(self, "_send_order", before))
        self._send_order = max(before, send.order)
        self._put(self._sends, send.cmid, send)

    def save_send(self, send: StoredSend) -> None:
        kept = send._replace(envelopes=_without_bodies(send)) if send.state in FINISHED else send
        self._put(self._sends, send.cmid, kept)

    def send(self, cmid: ClientMessageId) -> StoredSend | None:
        return self._sends.get(cmid)

    def sends(self, *states: SendState) -> list[StoredSend]:
        return sorted((s for s in self._sends.values() if s.state in states), key=lambda send: send.order)

    def last_send_order(self) -> int:
        return self._send_order

    # -- messages

    def message_state(self, mid: MessageId) -> MessageState | None:
        kept = self._messages.get(mid)
        return kept.state if kept is not None else None

    def hold(self, entry: Entry, seen_at: int) -> None:
        if entry.mid in self._messages:
            raise StoreFault("a message is held once")
        before = self._arrivals
        self._later_undo(lambda: setattr(self, "_arrivals", before))
        self._arrivals += 1
        self._put(self._messages, entry.mid, _Kept(self._arrivals, entry, seen_at, MessageState.HELD, 0))
        self._put(self._by_state[MessageState.HELD], entry.mid, None)

    def held(self, limit: int) -> list[StoredMessage]:
        kept = [self._messages[mid] for mid in self._by_state[MessageState.HELD]]
        kept.sort(key=lambda row: row.arrival)
        return [StoredMessage(row.arrival, row.entry, row.state, row.crashes) for row in kept[:limit]]

    def in_state(self, state: MessageState) -> list[MessageId]:
        return sorted(self._by_state[state], key=lambda mid: self._messages[mid].arrival)

    def set_state(self, mids: Iterable[MessageId], state: MessageState) -> None:
        for mid in mids:
            kept = self._messages.get(mid)
            if kept is not None:
                entry, crashes = kept.entry, kept.crashes
                if state is MessageState.CONFIRMED:
                    entry, crashes = entry._replace(body=None), 0
                self._move(mid, kept, entry, state, crashes)

    def count_crash(self, crashes_max: int) -> list[MessageId]:
        deferred = []
        for mid in self.in_state(MessageState.HANDED_OVER):
            kept = self._messages[mid]
            crashes = kept.crashes + 1
            if crashes >= crashes_max:
                deferred.append(mid)
            state = MessageState.DEFERRED if crashes >= crashes_max else MessageState.HELD
            self._move(mid, kept, kept.entry, state, crashes)
        return deferred

    # -- ACKs owed

    def owe_ack(self, mids: Iterable[MessageId]) -> None:
        for mid in mids:
            self._put(self._owed, mid, None)

    def acks_owed(self) -> list[MessageId]:
        return list(self._owed)

    def ack_paid(self, mids: Sequence[MessageId]) -> None:
        for mid in mids:
            self._drop(self._owed, mid)

    # -- dedup memory

    def prune(self, before_ms: int) -> None:
        for mid in list(self._by_state[MessageState.CONFIRMED]):
            if self._messages[mid].seen_at < before_ms:
                self._forget(mid)
        for cmid, send in list(self._sends.items()):
            if send.state is not SendState.PENDING and (send.created_at or 0) < before_ms:
                self._drop(self._sends, cmid)

    # -- undo

    def _later_undo(self, step: Callable[[], object]) -> None:
        if self._undo is None:
            raise StoreFault("writes need a transaction")
        self._undo.append(step)

    def _put(self, table: MutableMapping[Key, Value], key: Key, value: Value) -> None:
        if key in table:
            before = table[key]
            self._later_undo(lambda: table.__setitem__(key, before))
        else:
            self._later_undo(lambda: table.__delitem__(key))
        table[key] = value

    def _drop(self, table: MutableMapping[Key, Value], key: Key) -> None:
        if key in table:
            before = table.pop(key)
            self._later_undo(lambda: table.__setitem__(key, before))

    def _move(self, mid: MessageId, kept: _Kept, entry: Entry, state: MessageState, crashes: int) -> None:
        self._drop(self._by_state[kept.state], mid)
        self._put(self._messages, mid, _Kept(kept.arrival, entry, kept.seen_at, state, crashes))
        self._put(self._by_state[state], mid, None)

    def _forget(self, mid: MessageId) -> None:
        self._drop(self._by_state[self._messages[mid].state], mid)
        self._drop(self._messages, mid)


def _without_bodies(send: StoredSend) -> tuple[SendEnvelope, ...]:
    return tuple(envelope._replace(body=b"") for envelope in send.envelopes)
