"""What an entry means, whichever way it came: a message to hold, or the proof that a send was committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mailbox_client.events import CaughtUp, Event, Transport
from mailbox_client.incoming import Incoming
from mailbox_client.local_store import LocalStore
from mailbox_client.outgoing import Outgoing
from mailbox_client.reading import Reading
from mailbox_client.server_time import ServerTime
from mailbox_client.settings import ClientSettings
from protocol.frames import Entry


class Arrivals:
    """Joins what is received, what is sent, how far the mailbox was read: sends are matched before echoes are acked."""

    def __init__(
        self,
        store: LocalStore,
        settings: ClientSettings,
        outgoing: Outgoing,
        incoming: Incoming,
        reading: Reading,
        time: ServerTime,
        notify: Callable[..., None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._outgoing = outgoing
        self._incoming = incoming
        self._reading = reading
        self._time = time
        self._notify = notify

    def take_in(self, now: int, entries: Sequence[Entry], *, pushed: bool, walk: bool = False) -> None:
        events: list[Event] = []
        for entry in entries:
            if entry.cmid is not None:
                events += self._outgoing.entry_seen(entry.cmid, entry.accepted_at)
        self._notify(*events)
        self._incoming.take_in(entries, self._time.known(now), pushed=pushed, walk=walk)

    def reached_watermark(self, now: int, transport: Transport) -> None:
        """The stream stands at the watermark: the unmatched sends may go again (seed 002)."""
        server_now = self._time.known(now)
        if self._reading.reached_watermark(server_now):
            self._notify(CaughtUp(transport))
            self._notify(*self._outgoing.reconciled(server_now))

    def walked(self, now: int, entries: Sequence[Entry], cursor: str, more: bool) -> None:
        """A page of the walk from the oldest entry on. After the last one, what is old and done is forgotten."""
        self.take_in(now, entries, pushed=False, walk=True)
        server_now = self._time.known(now)
        if self._reading.walk_page_came(cursor, more, server_now):
            self._incoming.retry_deferred()
            self._store.prune(server_now - self._settings.dedup_age_ms)
