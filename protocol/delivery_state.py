"""What one session has been sent, may be sent now, and has said about it (DESIGN, "Delivery"; WIRE, `caught_up`).

The push stream is one number, `sent`: everything at or below it was pushed, or need not be, in this session. It only
rises, so an entry is pushed once. Rows between two entries of a page are nobody's (acked, expired): `sent` steps over
them, which is also how the stream gets past a watermark whose entries have all gone another way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from protocol.ids import MessageId
from protocol.limits import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX

# What an entry takes in a batch beside its body, and the batch around its entries; so that bodies read up to
# READ_BYTES_MAX always make a frame below BATCH_BYTES_MAX.
ENTRY_OVERHEAD_BYTES: Final = 112
READ_BYTES_MAX: Final = BATCH_BYTES_MAX - BATCH_ENTRIES_MAX * ENTRY_OVERHEAD_BYTES - 1_024
# A wake tells of one new entry, seldom of many. Asking for little lets the reads of many sessions share a query; if
# there is more, the next read asks for all that fits.
SHALLOW_ENTRIES: Final = 16
SHALLOW_BYTES: Final = 64 * 1024

_new: Final = tuple.__new__  # as the class's own constructor, without the Python function around it


class PageEntry(Protocol):
    """An entry of a mailbox page, as the reader gives it: only what the window needs to know."""

    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def entry(self) -> Any: ...  # with `mid` and `expires_at`


class ReadPlan(NamedTuple):
    """A read that the session has use for: un-acked, unexpired entries behind `after`, in order."""

    after: int
    entries_max: int
    bytes_max: int


class BatchEnd(NamedTuple):
    """How the pushed batch ends: what its cursor stands for, and its two flags."""

    position: int
    more: bool
    caught_up: bool


class DeliveryState:
    """The un-acked window and the push stream of one session.

    Entries go out in batches: `offer` (from memory) and `read_finished` (from a page) take entries into the batch being
    made, `take_batch` ends it. Every entry taken counts as un-acked at once.
    """

    __slots__ = (
        "_batch_bytes",
        "_batch_entries",
        "_caught_up_said",
        "_deep",
        "_heard",
        "_more",
        "_next_size",
        "_open",
        "_probe",
        "_reading",
        "_recheck",
        "_stale",
        "_unacked",
        "_unacked_bytes",
        "_window_bytes",
        "_window_entries",
        "sent",
        "watermark",
    )

    def __init__(self) -> None:
        self.sent = 0
        self.watermark = 0
        self._open = False
        self._window_entries = 0
        self._window_bytes = 0
        self._unacked: dict[MessageId, tuple[int, int]] = {}  # size and expires_at of what the client holds un-acked
        self._unacked_bytes = 0
        self._stale = False  # there is a reason to look into the mailbox that no complete read has answered
        self._heard = 0  # the highest position hinted at since the last read started
        self._recheck = False  # a reason without a position came since the last read started
        self._reading = False
        self._deep = False  # the last page was not the end of the mailbox
        self._more = False  # something un-acked is known to lie above `sent`
        self._next_size = 0  # of the entry that did not fit the window; 0: not known
        self._probe = False  # something below may have gone: worth a look although the window is full
        self._caught_up_said = False
        self._batch_entries = 0
        self._batch_bytes = 0

    # Opening and ending

    def start(
        self, *, start: int, head: int, pending: bool, window_entries: int, window_bytes: int, fresh: bool = False
    ) -> None:
        """Begin to deliver behind `start` (0: the oldest un-acked entry), with the watermark at `head`.

        `pending`: something un-acked and unexpired lies above `start`, by the same snapshot as `head`. `fresh`: that
        snapshot was taken after this session could hear wakes, so without `pending` there is nothing to read first.
        """
        self.watermark = head
        self.sent = start if pending else max(start, head)
        self._more = pending
        self._window_entries = window_entries
        self._window_bytes = window_bytes
        self._open = True
        self._stale = self._stale or pending or not fresh

    def stop(self) -> None:
        """Deliver nothing more: the session met another epoch, lost its place, or ends."""
        self._open = False

    # Reasons to look

    def hint(self, position: int) -> None:
        """Somebody says that an entry was committed at `position`. Hints may be late, repeated or wrong."""
        if position > self.sent:
            self._stale = True
            self._more = True
            self._heard = max(self._heard, position)

    def recheck(self) -> None:
        """Anything may have happened unheard (reconnect to Redis, sweep, entries acked elsewhere or expired)."""
        self._stale = True
        self._recheck = True
        self._next_size = 0
        self._probe = True

    # Pushing from memory

    def may_push_from_memory(self, previous_head: int) -> bool:
        """True when the stream stands exactly at the head before the new entry and no read may bring it as well."""
        return self._open and not self._reading and self.sent == previous_head

    def offer(self, position: int, previous_head: int, mid: MessageId, size: int, expires_at: int) -> bool:
        """Take a just committed entry into the batch. False: it does not go this way; if need be a read will fetch it.

        Called in commit order. The caller has looked at its transport first, and calls `hint` where that is full.
        """
        entries = self._batch_entries
        if (
            self.sent != previous_head
            or self._reading
            or not self._open
            or (entries and (entries >= BATCH_ENTRIES_MAX or self._batch_bytes + size > READ_BYTES_MAX))
            or not self._fits(size)
        ):
            self.hint(position)  # which ignores what was sent already
            return False
        self.sent = position
        self._take(mid, size, expires_at)
        return True

    # Pushing from a page

    def read_wanted(self) -> ReadPlan | None:
        """The read to make now, None if there is no use for one. Ask only while the transport's buffer is low."""
        if not self._stale or self._reading or not self._open:
            return None
        room_entries = self._window_entries - len(self._unacked)
        room_bytes = self._window_bytes - self._unacked_bytes
        if self._unacked and (room_entries <= 0 or room_bytes <= 0 or room_bytes < self._next_size):
            if self._probe and self.sent < self.watermark:
                return ReadPlan(self.sent, 1, 1)  # only to learn whether the stream may step over the watermark
            return None
        # Below the watermark one entry more is read than fits: where it stands tells how far the stream may step on.
        if self.sent < self.watermark:
            room_entries += 1
        elif not self._deep:
            room_entries = min(room_entries, SHALLOW_ENTRIES)
            room_bytes = min(room_bytes, SHALLOW_BYTES)
        return ReadPlan(self.sent, min(room_entries, BATCH_ENTRIES_MAX), max(1, min(room_bytes, READ_BYTES_MAX)))

    @property
    def up_to_date(self) -> bool:
        """There is no reason to look into the mailbox."""
        return not self._stale

    @property
    def waits_for_window(self) -> bool:
        """There is a reason to look into the mailbox, and the client has to free its window first."""
        return self._stale and self._open and not self._reading and self.read_wanted() is None

    def read_started(self) -> None:
        """The read is on its way: until it is back nothing is pushed from memory and no second one starts."""
        self._reading = True
        self._heard = 0
        self._recheck = False
        self._probe = False

    def read_failed(self) -> None:
        """The read brought nothing: it is wanted again (when, is the caller's backoff)."""
        self._reading = False
        self._probe = True

    def read_finished(self, entries: Sequence[PageEntry], head: int, more: bool) -> range:
        """Take from a page what the window lets through. Gives the indices of `entries` that go into the batch.

        `entries` and `head` come from one snapshot; `more`: un-acked entries lie behind the page.
        """
        self._reading = False
        if not self._open:
            return range(0)
        first = 0
        for row in entries:
            if row.position > self.sent:
                break
            first += 1
        last = first
        for row in entries[first:]:
            if not self._fits(row.size):
                # Nothing un-acked lies between the last taken one and this one, so the stream may stand just below it.
                self.sent = row.position - 1
                self._next_size = row.size
                self._more = True
                return range(first, last)
            self._next_size = 0
            self.sent = row.position
            self._take(row.entry.mid, row.size, row.entry.expires_at)
            last += 1
        self._more = self._deep = more
        if more:
            # The next entry may stand above the watermark: worth a look, should there be no room for it.
            self._probe = self.sent < self.watermark
        else:
            self.sent = max(self.sent, head)
            # What was heard while reading may or may not be in this page: the head tells. A hint above every head costs
            # one more read and no endless ones.
            self._more = self._heard > self.sent
            self._stale = self._more or self._recheck
        return range(first, last)

    def take_batch(self) -> BatchEnd | None:
        """End the batch being made; None when there is nothing to send.

        A batch without entries is due once: when the stream has reached the watermark and nothing has said so yet.
        """
        if not self._open:
            return None
        caught_up = self.sent >= self.watermark
        if not self._batch_entries and (self._caught_up_said or not caught_up):
            return None
        self._batch_entries = 0
        self._batch_bytes = 0
        self._caught_up_said = caught_up
        return _new(BatchEnd, (self.sent, self._more, caught_up))

    # The window

    def _fits(self, size: int) -> bool:
        unacked = self._unacked
        return not unacked or (len(unacked) < self._window_entries and self._unacked_bytes + size <= self._window_bytes)

    def _take(self, mid: MessageId, size: int, expires_at: int) -> None:
        self._unacked[mid] = (size, expires_at)
        self._unacked_bytes += size
        self._batch_entries += 1
        self._batch_bytes += size

    def release(self, mids: Iterable[MessageId]) -> int:
        """Free the slots of entries that were acked (here or elsewhere) or deferred; how many. Unknown ids are fine."""
        unacked = self._unacked
        before = len(unacked)
        for mid in mids:
            held = unacked.pop(mid, None)
            if held is not None:
                self._unacked_bytes -= held[0]
        return before - len(unacked)

    def expire(self, now_ms: int) -> int:
        """Free the slots of entries that have expired by `now_ms` (database time); how many there were."""
        gone = [mid for mid, (_, expires_at) in self._unacked.items() if expires_at <= now_ms]
        return self.release(gone)

    def next_expiry_ms(self) -> int | None:
        """When the first slot will be freed by expiry, in database time; None when nothing is un-acked."""
        return min((expires_at for _, expires_at in self._unacked.values()), default=None)

    def unacked_ids(self) -> list[MessageId]:
        """What the client holds un-acked, oldest first: for asking whether it was acked elsewhere."""
        return list(self._unacked)

    @property
    def unacked_entries(self) -> int:
        return len(self._unacked)

    @property
    def unacked_bytes(self) -> int:
        return self._unacked_bytes

    @property
    def at_head(self) -> bool:
        """As far as is known nothing un-acked lies above what was pushed."""
        return not (self._stale or self._more)

    @property
    def caught_up(self) -> bool:
        """A batch has said that the stream is past the watermark."""
        return self._caught_up_said
