"""Delivery: committed first, then pushed (DESIGN, "Delivery").

An entry reaches a live session in one of two ways: from memory, right after its commit, where the session stands
exactly at the head before it; else by a read of the mailbox, for which `DeliveryState` keeps the reason until a read
that was complete has answered it. Everything here runs between two steps of the loop: no task, no timer, no query per
entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from gateway.connection_registry import ConnectionRegistry
from gateway.database_time import DatabaseTime
from gateway.flush_queue import FlushQueue
from gateway.mailbox_waiters import MailboxWaiters
from gateway.metrics import GatewayMetrics
from gateway.session import DeviceSession
from protocol.codec import encode_entry, encode_mailbox_batch
from protocol.errors import CloseCode, MailboxError
from protocol.ids import DeviceId, MessageId
from protocol.server_session import Phase
from store.mailbox import MailboxReader
from store.records import Page, ReadRequest, StoredEntry, Submitted
from store.wake import Wake, WakeBus, WakeKind

TELL_AGAIN_S: Final = 60.0  # the same event is not told more often

log = structlog.get_logger(__name__)


class Delivery:
    """Moves what is committed to the sessions of this process, and rings the other gateways."""

    def __init__(
        self,
        *,
        registry: ConnectionRegistry,
        reader: MailboxReader,
        wake: WakeBus,
        waiters: MailboxWaiters,
        flush_queue: FlushQueue,
        database_time: DatabaseTime,
        metrics: GatewayMetrics,
    ) -> None:
        self._registry = registry
        self._reader = reader
        self._wake = wake
        self._waiters = waiters
        self._flush_queue = flush_queue
        self._database_time = database_time
        self._tally = metrics.tally
        self._here: dict[DeviceSession, list[StoredEntry]] = {}
        self._elsewhere: dict[DeviceId, int] = {}
        self._filling_told: set[DeviceId] = set()  # in this minute
        self._filling_until = 0.0
        self._retry: dict[DeviceSession, None] = {}
        self._blocked: dict[DeviceSession, int] = {}  # waits for window; when its next slot frees by expiry, in ms

    # From memory

    def stored(self, submitted: Submitted) -> None:
        """Note what a commit put where. Called for every SEND, in commit order; `committed` moves it on."""
        for entry in submitted.stored:
            session = self._registry.of_device(entry.device)
            if session is None:
                # Commit order: the last position is the highest.
                self._elsewhere[entry.device] = entry.position
            elif session.epoch != submitted.epoch:
                self.other_epoch(session)
                self._elsewhere[entry.device] = entry.position
            else:
                entries = self._here.get(session)
                if entries is None:
                    self._here[session] = [entry]
                else:
                    entries.append(entry)
        for device in submitted.filling:
            if device not in self._filling_told:
                self._filling_told.add(device)
                self.tell(device, "mailbox_filling")

    def committed(self) -> None:
        """The batch's callers were told: push to the sessions here, let everything out, ring the other gateways."""
        here, self._here = self._here, {}
        for session, entries in here.items():
            self._push(session, entries)
        if self._elsewhere:
            elsewhere, self._elsewhere = self._elsewhere, {}
            self._wake.publish([Wake(device, position) for device, position in elsewhere.items()])
            for device in elsewhere:
                self._waiters.ring_device(device)

    def _push(self, session: DeviceSession, entries: Sequence[StoredEntry]) -> None:
        state = session.state
        if not session.connection.has_room:
            state.hint(entries[-1].position)
            return
        batch = [
            encode_entry(entry)
            for device, position, previous_head, entry, size in entries
            if state.offer(position, previous_head, entry.mid, size, entry.expires_at)
        ]
        self._emit(session, batch)
        if len(batch) != len(entries):
            self.pump(session)
        self._tally.from_memory += len(batch)
        if self._waiters.waiting and session.device is not None:
            self._waiters.ring_device(session.device)

    def _emit(self, session: DeviceSession, batch: Sequence[bytes]) -> None:
        """Send the batch that was put together, or the empty one that says `caught_up`, if it is due."""
        end = session.state.take_batch()
        if end is None or session.cursors is None:
            return
        cursor = session.cursors.seal(end.position, self._database_time.now_ms(), session.epoch)
        session.connection.send(encode_mailbox_batch(None, batch, cursor, end.more, end.caught_up))

    # From the mailbox

    def begin(self, session: DeviceSession) -> None:
        """WELCOME is written: say `caught_up` if the session starts so, and read what waits for it."""
        self._emit(session, ())
        self.pump(session)

    def pump(self, session: DeviceSession) -> None:
        """Read for this session if there is a reason, and room for what would come."""
        if session.state.up_to_date:
            return
        plan = session.state.read_wanted()
        device = session.device
        if plan is None:
            if session.state.unacked_entries:
                self._watch_window(session)
            return
        if device is None or not session.connection.has_room:
            return  # `writable` comes back here
        session.state.read_started()
        try:
            self._reader.put(ReadRequest(device, *plan), lambda page: self._read(session, page), session=session.number)
        except MailboxError:
            self._read_failed(session)

    def _read(self, session: DeviceSession, page: Page | MailboxError) -> None:
        state = session.state
        if isinstance(page, MailboxError):
            self._read_failed(session)
            return
        if page.epoch != session.epoch:
            self.other_epoch(session)
            return
        taken = state.read_finished(page.entries, page.head, page.more)
        self._emit(session, [encode_entry(page.entries[n].entry) for n in taken])
        self._tally.from_mailbox += len(taken)
        self.pump(session)

    def _read_failed(self, session: DeviceSession) -> None:
        session.state.read_failed()
        self._retry[session] = None

    # Hints

    def woken(self, session: DeviceSession, position: int) -> None:
        """A wake says that an entry was committed at `position`. It may be late, repeated or wrong."""
        session.state.hint(position)
        self.pump(session)

    def recheck(self, session: DeviceSession) -> None:
        """Wakes may have been lost, or entries have gone: look into the mailbox once."""
        session.state.recheck()
        self.pump(session)

    def acked(self, device: DeviceId, mids: Iterable[MessageId]) -> None:
        """Entries were acked by another way than the device's session: its window frees, wherever it is."""
        session = self._registry.of_device(device)
        if session is None:
            self._wake.publish([Wake(device, 0, WakeKind.ACK)])
        else:
            session.state.release(mids)
            self.recheck(session)

    def tell(self, device: DeviceId, kind: str, **values: int) -> None:
        """PUSH_EVENTS for a device, wherever its session is; the same kind at most once a minute."""
        session = self._registry.of_device(device)
        if session is not None:
            self.tell_session(session, kind, **values)
            return
        wake = {"mailbox_filling": WakeKind.FILLING, "prekeys_low": WakeKind.PREKEYS, "push_route_gone": WakeKind.ROUTE}
        self._wake.publish([Wake(device, values.get("left", 0), wake[kind])])

    def tell_session(self, session: DeviceSession, kind: str, **values: int) -> None:
        now = self._flush_queue.now()
        if session.told is None:
            session.told = {}
        if now - session.told.get(kind, -TELL_AGAIN_S) < TELL_AGAIN_S:
            return
        session.told[kind] = now
        session.tell({"kind": kind, **values})

    def ring_elsewhere(self, device: DeviceId, position: int) -> None:
        """A session of the device ended here: if it has another one elsewhere, that one looks."""
        self._wake.publish([Wake(device, position)])

    # Other ends

    def other_epoch(self, session: DeviceSession) -> None:
        """The database is in another history than this session began in: it neither pushes nor seals any more."""
        if session.state.phase is Phase.LIVE or session.state.phase is Phase.LEAVING:
            log.warning("a session met another epoch of the database")
            session.state.stop()
            session.go_away("restart")
            session.close(CloseCode.RESTART)

    def forget(self, session: DeviceSession) -> None:
        """The session ended."""
        self._here.pop(session, None)
        self._retry.pop(session, None)
        self._blocked.pop(session, None)

    # Time

    def tick(self) -> None:
        """Once a second: repeat failed reads, free the slots of what expired in blocked windows."""
        now = self._flush_queue.now()
        if now >= self._filling_until:
            self._filling_told.clear()
            self._filling_until = now + TELL_AGAIN_S
        retry, self._retry = self._retry, {}
        for session in retry:
            self.pump(session)
        if not self._blocked:
            return
        now_ms = self._database_time.now_ms()
        for session in [session for session, at_ms in self._blocked.items() if at_ms <= now_ms]:
            del self._blocked[session]
            self.expire(session)

    def expire(self, session: DeviceSession) -> None:
        """Free the window of what has expired."""
        if session.state.expire(self._database_time.now_ms()):
            self.recheck(session)

    def _watch_window(self, session: DeviceSession) -> None:
        if session in self._blocked or not session.state.waits_for_window:
            return
        expiry_ms = session.state.next_expiry_ms()
        if expiry_ms is not None:
            self._blocked[session] = expiry_ms
