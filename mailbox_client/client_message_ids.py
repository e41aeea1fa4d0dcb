"""The issuer of client message ids: leased ordinals, issued-but-not-consumed set, fail closed (seed 003).

Synchronous and thread-safe; it never touches the store. Who drives it reserves leases and adds them: one to begin with
and a spare as soon as `wants_lease` says so, long before the current one runs out.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from mailbox_client.errors import IdNotUsable
from protocol.client_message_id import OUTSTANDING_MAX, OrdinalLease, derive
from protocol.ids import ZERO_ID, ClientMessageId, DeviceId

NO_ID: Final = ClientMessageId(ZERO_ID)


class ClientMessageIds:
    """Never issues one id twice, whatever the clock does and however often the process starts.

    An id counts as issued from `issue` until `consume`; at most `outstanding_max` are, past it issuing pauses. Ordinals
    of a lease that end unused are skipped for ever: they cost nothing.
    """

    def __init__(self, device: DeviceId, lease: OrdinalLease, *, outstanding_max: int = OUTSTANDING_MAX) -> None:
        self._device = device
        self._current = lease
        self._next = lease.first
        self._spare: OrdinalLease | None = None
        self._outstanding: set[ClientMessageId] = set()
        self._outstanding_max = outstanding_max
        self._mutex = Lock()

    @property
    def outstanding(self) -> int:
        return len(self._outstanding)

    @property
    def current_first(self) -> int:
        """Where the lease in use begins."""
        return self._current.first

    @property
    def wants_lease(self) -> bool:
        """True once half of the current lease is used and no spare is here: time enough to reserve one."""
        used, whole = self._next - self._current.first, self._current.last - self._current.first
        return self._spare is None and 2 * used >= whole

    def add_lease(self, lease: OrdinalLease) -> None:
        """Take a freshly reserved lease as the spare. It lies above the current one, as the store promises."""
        with self._mutex:
            if lease.first <= self._current.last or (self._spare is not None and lease.first <= self._spare.last):
                raise ValueError("a lease must lie above those already here")
            if self._spare is None:
                self._spare = lease
            # Else two reservations crossed: skipping the newer one is always safe.

    def start_again_at(self, lease: OrdinalLease) -> None:
        """Issue from this lease on and skip the rest of what is here: the server's time moved the floor above it.

        Ids already issued stay valid.
        """
        with self._mutex:
            if lease.first <= self._current.last:
                raise ValueError("a lease must lie above the current one")
            self._current, self._next, self._spare = lease, lease.first, None

    def issue(self) -> ClientMessageId:
        """The next id, or `NO_ID` (all zero) when none can be issued: too many outstanding, or no ordinal left."""
        with self._mutex:
            if len(self._outstanding) >= self._outstanding_max:
                return NO_ID
            while True:
                if self._next > self._current.last:
                    if self._spare is None:
                        return NO_ID
                    self._current, self._spare = self._spare, None
                    self._next = self._current.first
                cmid = derive(self._device, self._next)
                self._next += 1
                if cmid is not None:  # None: this ordinal hashes to the invalid sentinel and is skipped
                    self._outstanding.add(cmid)
                    return cmid

    def consume(self, cmid: ClientMessageId) -> None:
        """Use an issued id for a send. Raises IdNotUsable for zero, for one not issued here, and for a second use."""
        with self._mutex:
            if cmid == NO_ID or cmid not in self._outstanding:
                raise IdNotUsable("this client message id was not issued here, or is used already")
            self._outstanding.remove(cmid)
