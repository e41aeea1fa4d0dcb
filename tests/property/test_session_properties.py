"""One session against a small mailbox, in every order of commits, hints, reads, ACKs, expiry and lost wakes.

The model is the mailbox itself; the shell around the session is as stupid as the rules allow: it offers what was
committed, passes hints on late, twice or never, reads when told, and writes what it is given.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.client_session import ClientSession
from protocol.delivery_state import ReadPlan
from protocol.frames import Ack, Defer, Entry, Hello, MailboxBatch, Welcome
from protocol.limits import WireLimits
from protocol.server_session import ServerSession

CLOCK_START_MS = 1_000
sizes = st.integers(0, 60)
picks = st.integers(0, 10**6)


class Row(NamedTuple):
    position: int
    entry: Entry
    size: int


class Mailbox(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[Any, Row] = {}  # everything ever committed
        self.acked: set[Any] = set()
        self.head = 0
        self.now_ms = CLOCK_START_MS
        self.late_hints: list[int] = []
        self.unheard: set[int] = set()  # committed, and no hint came for it or anything newer
        self.session: ServerSession | None = None
        self.client = ClientSession(opened_at=0.0)
        self.page: tuple[list[Row], int, bool] | None = None
        self.pushed: list[Any] = []
        self.deferred: set[Any] = set()
        self.start = 0
        self.watermark = 0
        self.refs = 0

    # The mailbox

    def commit(self, size: int, lifetime: int) -> tuple[Row, int]:
        previous, self.head = self.head, self.head + 1 + size % 3
        mid: Any = self.head.to_bytes(16, "big")
        entry = Entry(mid, 1, bytes(size), self.now_ms, self.now_ms + lifetime)
        self.rows[mid] = Row(self.head, entry, size)
        return self.rows[mid], previous

    def pending(self, after: int) -> list[Row]:
        rows = [
            row
            for mid, row in self.rows.items()
            if mid not in self.acked and row.entry.expires_at > self.now_ms and row.position > after
        ]
        return sorted(rows)

    def read(self, plan: ReadPlan) -> tuple[list[Row], int, bool]:
        rows = self.pending(plan.after)
        page: list[Row] = []
        for row in rows[: plan.entries_max]:
            if page and sum(taken.size for taken in page) + row.size > plan.bytes_max:
                break
            page.append(row)
        return page, self.head, len(page) < len(rows)

    @initialize(
        before=st.lists(sizes, max_size=6),
        start_at=st.integers(0, 6),
        entries=st.integers(1, 4),
        size=st.integers(1, 100),
        fresh=st.booleans(),
    )
    def connect(self, before: list[int], start_at: int, entries: int, size: int, fresh: bool) -> None:
        positions = [0] + [self.commit(bytes_, 10_000)[0].position for bytes_ in before]
        self.start = positions[min(start_at, len(before))]
        self.watermark = self.head
        self.session = ServerSession(opened_at=0.0, heartbeat_s=45)
        hello = Hello("token", window_entries=entries, window_bytes=size)
        self.client.sending(hello, 30, 0.0)
        self.session.receive(hello, 30, 0.0)
        pending = bool(self.pending(self.start))
        self.session.welcome(
            start=self.start, head=self.head, pending=pending, token_ends_at=1e9, reauth_at=1e9, fresh=fresh
        )
        limits = WireLimits(2**22, 2**16, 60, 60, 60)
        self.client.receive(Welcome("s", 0, 45, 0, limits, "w", pending), 0.0)
        self.flush({})

    # The shell

    @property
    def live(self) -> ServerSession:
        assert self.session is not None
        return self.session

    def flush(self, batch: dict[Any, Row]) -> None:
        end = self.live.take_batch()
        if end is None:
            assert not batch
            return
        entries = tuple(row.entry for row in batch.values())
        for mid, row in batch.items():
            assert mid not in self.pushed, "an entry is pushed once in a session"
            assert row.position > self.start
            self.pushed.append(mid)
        assert [self.rows[mid].position for mid in self.pushed] == sorted(
            self.rows[mid].position for mid in self.pushed
        )
        missed = [row for row in self.pending(self.start) if row.entry.mid not in self.pushed]
        assert all(row.position > end.position for row in missed), "the cursor steps over nothing that waits"
        if end.caught_up:
            assert all(row.position > self.watermark for row in missed), "caught up means caught up"
        # Raises ContractBroken when caught_up is repeated empty or taken back, or an un-acked entry comes again.
        self.client.receive(MailboxBatch(None, entries, str(end.position), end.more, end.caught_up), 1.0)

    @rule(size=sizes, lifetime=st.sampled_from([100, 10_000]), transport_is_low=st.booleans())
    def commit_here(self, size: int, lifetime: int, transport_is_low: bool) -> None:
        row, previous = self.commit(size, lifetime)
        if not transport_is_low:
            self.live.hint(row.position)
        elif self.live.offer(row.position, previous, row.entry.mid, row.size, row.entry.expires_at):
            self.flush({row.entry.mid: row})

    @rule(batch=st.lists(sizes, min_size=2, max_size=5))
    def commit_several_here_at_once(self, batch: list[int]) -> None:
        committed = [self.commit(size, 10_000) for size in batch]
        taken = {
            row.entry.mid: row
            for row, previous in committed
            if self.live.offer(row.position, previous, row.entry.mid, row.size, row.entry.expires_at)
        }
        self.flush(taken)

    @rule(size=sizes, fate=st.sampled_from(["now", "late", "lost"]))
    def commit_elsewhere(self, size: int, fate: str) -> None:
        row, _ = self.commit(size, 10_000)
        self.unheard.add(row.position)
        if fate == "now":
            self.hint(row.position)
        elif fate == "late":
            self.late_hints.append(row.position)

    def hint(self, position: int) -> None:
        self.live.hint(position)
        self.unheard = {unheard for unheard in self.unheard if unheard > position}

    @precondition(lambda self: self.late_hints)
    @rule(pick=picks, again=st.booleans())
    def a_late_hint_comes(self, pick: int, again: bool) -> None:
        position = self.late_hints[pick % len(self.late_hints)]
        self.hint(position)
        if not again:
            self.late_hints.remove(position)

    @rule(position=st.integers(0, 10**9))
    def a_hint_lies(self, position: int) -> None:
        self.live.hint(position)

    @rule()
    def the_sweep_comes_by(self) -> None:
        self.live.release(mid for mid in self.live.unacked_ids() if mid in self.acked)
        self.live.expire(self.now_ms)
        self.live.recheck()
        self.unheard.clear()

    @precondition(lambda self: self.page is None and self.session is not None and self.session.read_wanted())
    @rule()
    def a_read_starts(self) -> None:
        plan = self.live.read_wanted()
        assert plan is not None
        assert plan.entries_max >= 1
        assert plan.bytes_max >= 1
        self.page = self.read(plan)
        self.live.read_started()

    @precondition(lambda self: self.page is not None)
    @rule(fails=st.booleans())
    def a_read_ends(self, fails: bool) -> None:
        assert self.page is not None
        rows, head, more = self.page
        self.page = None
        if fails:
            self.live.read_failed()
            return
        taken = [rows[at] for at in self.live.read_finished(rows, head, more)]
        self.flush({row.entry.mid: row for row in taken})

    # The client and the other door

    def some(self, pick: int) -> Any:
        return self.pushed[pick % len(self.pushed)]

    @precondition(lambda self: self.pushed)
    @rule(pick=picks)
    def the_client_acks(self, pick: int) -> None:
        mid = self.some(pick)
        self.refs += 1
        frame = Ack(self.refs, (mid,))
        self.client.sending(frame, 30, 1.0)
        self.live.receive(frame, 30, 1.0)
        self.live.ack_answered()
        self.acked.add(mid)

    @precondition(lambda self: self.pushed)
    @rule(pick=picks)
    def the_client_defers(self, pick: int) -> None:
        frame = Defer((self.some(pick),))
        self.client.sending(frame, 30, 1.0)
        self.live.receive(frame, 30, 1.0)
        self.deferred.add(frame.mids[0])

    @precondition(lambda self: self.rows)
    @rule(pick=picks)
    def something_is_acked_over_http(self, pick: int) -> None:
        self.acked.add(sorted(self.rows)[pick % len(self.rows)])

    @rule(milliseconds=st.integers(1, 150))
    def time_passes(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    # What must hold

    @invariant()
    def the_window_is_kept(self) -> None:
        if self.session is None or self.session.unacked_entries <= 1:
            return
        assert self.session.unacked_entries <= self.session._window_entries
        assert self.session.unacked_bytes <= self.session._window_bytes
        held = self.session.unacked_ids()
        assert self.session.unacked_bytes == sum(self.rows[mid].size for mid in held)
        assert set(held) <= set(self.pushed)

    def settle(self) -> None:
        """Reads until there is nothing to read. Bounded: hints that lie must not make it endless."""
        if self.page is not None:
            self.a_read_ends(fails=False)
        for _ in range(len(self.rows) + 10):
            if self.live.read_wanted() is None:
                return
            self.a_read_starts()
            self.a_read_ends(fails=False)
        raise AssertionError("reads without end")

    def teardown(self) -> None:
        if self.session is None:
            return
        self.settle()
        if self.unheard:
            self.the_sweep_comes_by()  # what makes a lost wake cost seconds; without one it is not needed
        self.ack_all_there_is()
        self.the_sweep_comes_by()
        self.settle()
        assert self.session.at_head

    @rule()
    def everything_comes_to_rest(self) -> None:
        """After a sweep, with a full window too."""
        self.the_sweep_comes_by()
        self.settle()
        missed = [row for row in self.pending(self.start) if row.entry.mid not in self.pushed]
        if not missed or missed[0].position > self.watermark:
            assert self.live.caught_up, "caught_up always comes, with a full window too"

    def ack_all_there_is(self) -> None:
        # A client that acks all it has gets everything that is there, once, and hears that it is caught up.
        for _ in range(len(self.rows) + 1):
            self.live.release(self.live.unacked_ids())
            self.settle()
        missed = [row for row in self.pending(self.start) if row.entry.mid not in self.pushed]
        assert not missed, "nothing that is un-acked and unexpired is missed"
        assert self.live.caught_up
        assert self.client.caught_up


TestMailbox = Mailbox.TestCase
TestMailbox.settings = settings(max_examples=300, stateful_step_count=40, deadline=None, print_blob=True)
