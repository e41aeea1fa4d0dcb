"""Received messages: durable before anything else, once to the app, ACK only after it confirmed (DESIGN, "client SDK").

HELD → HANDED_OVER → CONFIRMED, with DEFERRED beside. The durable cursor moves in the transaction that holds the
entries, so that everything before it is here; an ACK is owed durably from the moment of the confirmation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from mailbox_client.events import Event, MessagesDeferred
from mailbox_client.local_store import LocalStore, MessageState, StoredMessage
from mailbox_client.settings import ClientSettings
from protocol.frames import Ack, Defer, Entry
from protocol.ids import MessageId
from protocol.limits import ACK_MAX

ACKS_IN_FLIGHT_MAX: Final = 8
ENTRY_OVERHEAD_BYTES: Final = 128  # an upper bound of what a frame adds to one body


@dataclass(slots=True)
class _Window:
    """What this session pushed and we neither acked nor deferred: what fills the server's window.

    The server may have freed more: what expired, and what an ACK named that went another way (over HTTP, or late on a
    connection before this one).
    """

    sizes: dict[MessageId, int] = field(default_factory=dict)
    bytes: int = 0

    def add(self, entry: Entry) -> None:
        size = ENTRY_OVERHEAD_BYTES + len(entry.body or b"")
        self.bytes += size - self.sizes.get(entry.mid, 0)
        self.sizes[entry.mid] = size

    def free(self, mids: Iterable[MessageId]) -> None:
        for mid in mids:
            self.bytes -= self.sizes.pop(mid, 0)


class Incoming:
    """The received messages of one device.

    Promise: each message id reaches the app once while the dedup memory lasts, and again only if the process ended
    between hand-over and confirmation; nothing is acked that the app has not confirmed, and everything that it has.
    """

    def __init__(self, store: LocalStore, settings: ClientSettings, refs: Iterator[int]) -> None:
        self._store = store
        self._settings = settings
        self._refs = refs
        self._owed: deque[MessageId] = deque(store.acks_owed())
        self._acks_in_flight: dict[int, tuple[MessageId, ...]] = {}
        self._to_defer: list[MessageId] = []
        self._window = _Window()
        self._waiting = len(store.in_state(MessageState.HELD))
        self._unconfirmed = self._waiting + len(store.in_state(MessageState.HANDED_OVER))

    @property
    def waiting(self) -> int:
        """Messages that can be handed over."""
        return self._waiting

    @property
    def unconfirmed(self) -> int:
        return self._unconfirmed

    @property
    def acks_in_flight(self) -> int:
        return len(self._acks_in_flight)

    def after_crash(self) -> list[Event]:
        """Say that the process before this one ended without closing: what it had handed over is handed over again."""
        deferred = self._store.count_crash(self._settings.crashes_max)
        self._waiting = len(self._store.in_state(MessageState.HELD))
        self._unconfirmed = self._waiting
        return [MessagesDeferred(tuple(deferred), after_crashes=True)] if deferred else []

    # -- the wire: entries

    def take_in(self, entries: Sequence[Entry], server_now: int, *, pushed: bool, walk: bool = False) -> None:
        """Hold what is new, owe ACKs again for what is done, and defer again what was deferred.

        `pushed` entries fill the session's window; a `walk` from the oldest on brings deferred messages back.
        """
        owed: list[MessageId] = []
        brought_back: list[MessageId] = []
        for entry in entries:
            if pushed:
                self._window.add(entry)
            if entry.echo:
                owed.append(entry.mid)  # its send is settled in this same transaction
                continue
            state = self._store.message_state(entry.mid)
            if state is None:
                self._store.hold(entry, server_now)
                self._waiting += 1
                self._unconfirmed += 1
            elif state is MessageState.CONFIRMED:
                owed.append(entry.mid)
            elif state is MessageState.DEFERRED:
                if walk:
                    brought_back.append(entry.mid)
                elif pushed:
                    self._to_defer.append(entry.mid)
        if owed:
            self._owe(owed)
        if brought_back:
            self._hold_again(brought_back)
        # The server never has more than that un-acked: what is more has left its window in a way that is not told here.
        # Nobody says which of them, so all are deferred, as to make room, and both windows are empty again.
        if len(self._window.sizes) > self._settings.window_entries:
            self._to_defer.extend(self._window.sizes)

    def make_room(self, *, at_once: bool = False) -> None:
        """While something behind the window is needed (the watermark, one's own echoes) no slow app may block it.

        Everything in the window is durably here, so it is deferred there and handed over from here: `at_once`, or when
        the window is half full.
        """
        window = self._window
        if (
            at_once
            or 2 * len(window.sizes) >= self._settings.window_entries
            or 2 * window.bytes >= self._settings.window_bytes
        ):
            owed = set(self._owed)
            self._to_defer.extend(mid for mid in window.sizes if mid not in owed)

    def connection_lost(self) -> None:
        """Forget the session; ACKs without an answer are owed again (they are in the store all the time)."""
        for mids in self._acks_in_flight.values():
            self._owed.extend(mids)
        self._acks_in_flight.clear()
        self._to_defer.clear()
        self._window = _Window()

    # -- the wire: ACKs and DEFERs

    def take_acks(self, in_flight_max: int = ACKS_IN_FLIGHT_MAX) -> list[Ack]:
        """ACKs to send now, at most 100 ids each."""
        acks = []
        while self._owed and len(self._acks_in_flight) < in_flight_max:
            mids = tuple(self._owed.popleft() for _ in range(min(ACK_MAX, len(self._owed))))
            ref = next(self._refs)
            self._acks_in_flight[ref] = mids
            self._window.free(mids)  # as the server does; the answer may come behind what it pushes then
            acks.append(Ack(ref, mids))
        return acks

    def acked(self, ref: int) -> None:
        mids = self._acks_in_flight.pop(ref, None)
        if mids is not None:
            self._store.ack_paid(mids)

    def ack_failed(self, ref: int) -> None:
        """The ACK was answered with an error: its ids are owed again."""
        self._owed.extend(self._acks_in_flight.pop(ref, ()))

    def is_ack(self, ref: int) -> bool:
        return ref in self._acks_in_flight

    def take_defers(self) -> list[Defer]:
        mids = list(dict.fromkeys(mid for mid in self._to_defer if mid in self._window.sizes))
        self._to_defer.clear()
        self._window.free(mids)
        return [Defer(tuple(mids[at : at + ACK_MAX])) for at in range(0, len(mids), ACK_MAX)]

    # -- the app

    def hand_over(self, limit: int) -> tuple[StoredMessage, ...]:
        """The oldest waiting messages, marked as handed over.

        One that was in the app's hands at a crash goes alone, so that the next crash blames no innocent neighbours.
        """
        messages: list[StoredMessage] = []
        for message in self._store.held(limit):
            if message.crashes and messages:
                break
            messages.append(message)
            if message.crashes:
                break
        self._store.set_state([message.entry.mid for message in messages], MessageState.HANDED_OVER)
        self._waiting -= len(messages)
        return tuple(messages)

    def give_back(self, mids: Sequence[MessageId]) -> None:
        """Messages that were handed over and not looked at are held again; this is no crash."""
        back = [mid for mid in mids if self._store.message_state(mid) is MessageState.HANDED_OVER]
        self._store.set_state(back, MessageState.HELD)
        self._waiting += len(back)

    def confirm(self, mids: Sequence[MessageId]) -> None:
        """The app is done: the ACK is owed from here on, whatever happens."""
        done = []
        for mid in dict.fromkeys(mids):
            state = self._store.message_state(mid)
            if state is None or state is MessageState.CONFIRMED:
                continue
            done.append(mid)
            self._waiting -= state is MessageState.HELD
            self._unconfirmed -= state is not MessageState.DEFERRED
        self._store.set_state(done, MessageState.CONFIRMED)
        self._owe(done)

    def defer(self, mids: Sequence[MessageId]) -> list[Event]:
        """The app cannot finish these now: they leave the window and come back with `retry_deferred`."""
        aside = []
        for mid in dict.fromkeys(mids):
            state = self._store.message_state(mid)
            if state in (MessageState.HELD, MessageState.HANDED_OVER):
                aside.append(mid)
                self._waiting -= state is MessageState.HELD
                self._unconfirmed -= 1
        self._store.set_state(aside, MessageState.DEFERRED)
        self._to_defer.extend(aside)
        return [MessagesDeferred(tuple(aside), after_crashes=False)] if aside else []

    def retry_deferred(self) -> None:
        """Every deferred message waits again."""
        self._hold_again(self._store.in_state(MessageState.DEFERRED))

    # -- inside

    def _hold_again(self, mids: Sequence[MessageId]) -> None:
        self._store.set_state(mids, MessageState.HELD)
        self._waiting += len(mids)
        self._unconfirmed += len(mids)

    def _owe(self, mids: Sequence[MessageId]) -> None:
        self._store.owe_ack(mids)
        in_hand = set(self._owed).union(*self._acks_in_flight.values()) if self._owed or self._acks_in_flight else ()
        self._owed.extend(mid for mid in dict.fromkeys(mids) if mid not in in_hand)
