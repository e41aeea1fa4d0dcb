"""Every entry once, nothing missed, the window kept, and `caught_up` always comes (WIRE; DESIGN, "Delivery")."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from protocol.delivery_state import (
    READ_BYTES_MAX,
    SHALLOW_BYTES,
    SHALLOW_ENTRIES,
    BatchEnd,
    DeliveryState,
    ReadPlan,
)
from protocol.frames import Entry
from protocol.limits import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX
from protocol.server_frames import encode_entry, encode_mailbox_batch

NEVER_MS = 2**50


class Row(NamedTuple):
    position: int
    entry: Entry
    size: int


def mid(position: int) -> Any:
    return position.to_bytes(16, "big")


def row(position: int, size: int = 10, expires_at: int = NEVER_MS) -> Row:
    return Row(position, Entry(mid(position), 1, b"", 0, expires_at), size)


def state(
    *,
    start: int = 0,
    head: int = 0,
    pending: bool | None = None,
    window_entries: int = 4,
    window_bytes: int = 1_000,
    fresh: bool = True,
) -> DeliveryState:
    session = DeliveryState()
    session.start(
        start=start,
        head=head,
        pending=head > start if pending is None else pending,
        window_entries=window_entries,
        window_bytes=window_bytes,
        fresh=fresh,
    )
    return session


def read(session: DeliveryState, rows: list[Row], head: int, *, more: bool = False) -> BatchEnd | None:
    assert session.read_wanted() is not None
    session.read_started()
    session.read_finished(rows, head, more)
    return session.take_batch()


def push(session: DeliveryState, position: int, previous_head: int, size: int = 10) -> bool:
    return session.offer(position, previous_head, mid(position), size, NEVER_MS)


# caught_up


def test_an_empty_mailbox_is_caught_up_at_once_and_said_once() -> None:
    session = state()
    assert session.take_batch() == BatchEnd(0, more=False, caught_up=True)
    assert session.take_batch() is None
    assert session.read_wanted() is None


def test_a_cursor_at_the_head_is_caught_up_at_once() -> None:
    session = state(start=50, head=50)
    assert session.take_batch() == BatchEnd(50, more=False, caught_up=True)


def test_a_mailbox_with_nothing_pending_below_the_head_is_caught_up_at_once() -> None:
    session = state(start=0, head=50, pending=False)
    assert session.take_batch() == BatchEnd(50, more=False, caught_up=True)


def test_the_batch_that_reaches_the_watermark_says_so_and_no_empty_one_follows() -> None:
    session = state(head=30)
    assert session.take_batch() is None
    assert read(session, [row(10), row(30)], 30) == BatchEnd(30, more=False, caught_up=True)
    assert session.take_batch() is None


def test_a_batch_below_the_watermark_does_not_say_so_yet() -> None:
    session = state(head=30)
    assert read(session, [row(10)], 30, more=True) == BatchEnd(10, more=True, caught_up=False)
    assert read(session, [row(20), row(30)], 30) == BatchEnd(30, more=False, caught_up=True)


def test_every_later_batch_says_caught_up() -> None:
    session = state()
    session.take_batch()
    assert push(session, 10, 0)
    assert session.take_batch() == BatchEnd(10, more=False, caught_up=True)


def test_caught_up_comes_when_everything_below_the_watermark_was_acked_elsewhere_before_the_read() -> None:
    session = state(head=30)
    assert read(session, [], 30) == BatchEnd(30, more=False, caught_up=True)


def test_caught_up_comes_when_what_is_left_is_above_the_watermark_although_the_window_is_full() -> None:
    session = state(head=30, window_entries=1)
    assert read(session, [row(10), row(30)], 40, more=True) == BatchEnd(29, more=True, caught_up=False)
    assert session.read_wanted() is None  # no room, and nothing has changed
    session.recheck()  # entry 30 was acked over HTTP; 40 is newer than the watermark
    assert session.read_wanted() == ReadPlan(29, 1, 1)
    assert read(session, [row(40)], 40) == BatchEnd(39, more=True, caught_up=True)
    assert session.take_batch() is None
    session.release([mid(10)])
    assert read(session, [row(40)], 40) == BatchEnd(40, more=False, caught_up=True)


def test_caught_up_comes_without_window_when_the_rest_below_the_watermark_is_gone() -> None:
    session = state(head=30, window_entries=1)
    read(session, [row(10)], 30, more=True)
    session.recheck()
    assert read(session, [], 30) == BatchEnd(30, more=False, caught_up=True)


@pytest.mark.parametrize("freed_by", ["ack", "expiry"])
def test_with_a_full_window_caught_up_comes_after_the_slot_that_lets_the_last_entry_pass(freed_by: str) -> None:
    session = state(head=30, window_entries=1)
    assert read(session, [row(10, expires_at=5_000)], 30, more=True) == BatchEnd(10, more=True, caught_up=False)
    assert session.take_batch() is None
    if freed_by == "ack":
        session.release([mid(10)])
    else:
        assert session.expire(4_999) == 0
        assert session.expire(5_000) == 1
    assert read(session, [row(30)], 30) == BatchEnd(30, more=False, caught_up=True)


def test_new_mail_below_a_full_window_makes_no_read_until_there_is_room() -> None:
    session = state(head=30, window_entries=1)
    read(session, [row(10), row(30)], 30)
    session.hint(40)
    assert session.read_wanted() is None


def test_a_page_that_filled_the_window_without_showing_what_is_next_is_followed_by_a_look() -> None:
    session = state(head=30, window_bytes=100)
    assert read(session, [row(10, 100)], 40, more=True) == BatchEnd(10, more=True, caught_up=False)
    assert session.read_wanted() == ReadPlan(10, 1, 1)
    assert read(session, [row(20)], 40, more=True) is None
    assert session.read_wanted() is None


# The window


def test_the_window_stops_at_its_entries() -> None:
    session = state(head=50, window_entries=2)
    assert session.read_wanted() == ReadPlan(0, 2 + 1, 1_000)  # one more to see how far the stream may step
    assert read(session, [row(10), row(20), row(30)], 50, more=True) == BatchEnd(29, more=True, caught_up=False)
    assert session.unacked_ids() == [mid(10), mid(20)]


def test_the_window_stops_at_its_bytes() -> None:
    session = state(head=50, window_bytes=100)
    assert read(session, [row(10, 60), row(20, 41)], 50) == BatchEnd(19, more=True, caught_up=False)
    assert (session.unacked_entries, session.unacked_bytes) == (1, 60)


def test_the_window_may_be_filled_to_the_last_byte() -> None:
    session = state(head=50, window_bytes=100)
    assert read(session, [row(10, 60), row(50, 40)], 50) == BatchEnd(50, more=False, caught_up=True)


def test_with_nothing_unacked_one_entry_goes_whatever_its_size() -> None:
    session = state(head=50, window_bytes=100)
    assert read(session, [row(10, 5_000), row(20)], 50) == BatchEnd(19, more=True, caught_up=False)
    session.release([mid(10)])
    assert session.unacked_bytes == 0
    assert push(state(window_bytes=1), 10, 0, size=5_000)


def test_an_entry_that_did_not_fit_is_not_read_again_before_there_is_room_for_it() -> None:
    session = state(head=50, window_bytes=100)
    read(session, [row(10, 30), row(20, 30), row(30, 90)], 50)
    session.release([mid(10)])
    assert session.read_wanted() is None  # 70 bytes free, 90 needed
    session.release([mid(20)])
    assert session.read_wanted() == ReadPlan(29, 4 + 1, 100)


def test_once_the_large_entry_went_smaller_ones_need_no_more_than_their_own_room() -> None:
    session = state(head=50, window_bytes=100)
    read(session, [row(10, 30), row(20, 90)], 50, more=True)
    session.release([mid(10)])
    assert read(session, [row(20, 90)], 50, more=True) == BatchEnd(20, more=True, caught_up=False)
    assert session.read_wanted() == ReadPlan(20, 4, 10)


def test_acks_of_unknown_or_repeated_ids_free_nothing_twice() -> None:
    session = state(head=50)
    read(session, [row(10), row(50)], 50)
    session.release([mid(10), mid(10), mid(999)])
    assert (session.unacked_entries, session.unacked_bytes) == (1, 10)


def test_the_next_expiry_is_known() -> None:
    session = state(head=50)
    assert session.next_expiry_ms() is None
    read(session, [row(10, expires_at=7_000), row(50, expires_at=6_000)], 50)
    assert session.next_expiry_ms() == 6_000


# Reading


def test_the_first_read_starts_behind_the_cursor() -> None:
    session = state(start=20, head=50)
    assert session.read_wanted() == ReadPlan(20, 4 + 1, 1_000)


def test_a_session_whose_numbers_are_older_than_its_ears_reads_once_although_nothing_is_pending() -> None:
    session = state(head=50, pending=False, fresh=False)
    assert session.take_batch() == BatchEnd(50, more=False, caught_up=True)
    assert session.read_wanted() == ReadPlan(50, 4, 1_000)
    assert read(session, [], 50) is None
    assert session.read_wanted() is None


def test_a_hint_heard_before_the_start_is_read() -> None:
    session = DeliveryState()
    session.hint(60)
    assert session.read_wanted() is None
    session.start(start=0, head=50, pending=False, window_entries=4, window_bytes=100, fresh=True)
    assert session.read_wanted() is not None


def test_only_one_read_is_in_flight() -> None:
    session = state(head=50)
    session.read_started()
    session.hint(60)
    session.recheck()
    assert session.read_wanted() is None


def test_a_hint_during_a_read_asks_for_another_one_only_if_the_page_is_older() -> None:
    session = state(head=50)
    session.read_started()
    session.hint(60)
    session.read_finished([row(50), row(60)], 60, False)
    assert session.take_batch() == BatchEnd(60, more=False, caught_up=True)
    assert session.read_wanted() is None
    session.hint(70)
    session.read_started()
    session.hint(80)
    session.read_finished([row(70)], 70, False)
    assert session.take_batch() == BatchEnd(70, more=True, caught_up=True)
    assert session.read_wanted() is not None


def test_a_hint_that_lies_costs_one_read_and_no_endless_ones() -> None:
    session = state()
    session.take_batch()
    session.read_wanted()
    session.hint(2**60)
    assert read(session, [], 0) is None
    assert session.read_wanted() is None


def test_a_wake_asks_for_little_and_what_is_behind_it_for_all_that_fits() -> None:
    session = state(head=10, window_entries=200, window_bytes=500_000)
    assert session.read_wanted() == ReadPlan(0, 201, 500_000)  # a backlog
    read(session, [row(10)], 10)
    session.hint(11)
    assert session.read_wanted() == ReadPlan(10, SHALLOW_ENTRIES, SHALLOW_BYTES)
    read(session, [row(position) for position in range(11, 27)], 40, more=True)
    assert session.read_wanted() == ReadPlan(26, 183, 499_830)  # there is more than a wake's worth
    read(session, [row(position) for position in range(27, 41)], 40)
    session.hint(41)
    assert session.read_wanted() == ReadPlan(40, SHALLOW_ENTRIES, SHALLOW_BYTES)


def test_a_late_hint_is_ignored() -> None:
    session = state(head=50)
    read(session, [row(50)], 50)
    session.hint(50)
    session.hint(7)
    assert session.read_wanted() is None


def test_a_recheck_during_a_read_asks_for_another_one() -> None:
    session = state(head=50)
    session.read_started()
    session.recheck()
    session.read_finished([row(50)], 50, False)
    assert session.read_wanted() is not None


def test_a_failed_read_is_wanted_again_and_lost_nothing() -> None:
    session = state(head=50)
    session.read_started()
    session.read_failed()
    assert read(session, [row(50)], 50) == BatchEnd(50, more=False, caught_up=True)


def test_rows_at_or_below_sent_are_dropped() -> None:
    session = state(start=20, head=50)
    session.read_started()
    assert session.read_finished([row(10), row(20), row(30)], 50, False) == range(2, 3)
    assert session.unacked_ids() == [mid(30)]


def test_deferred_entries_free_the_window_and_do_not_come_again_in_this_session() -> None:
    session = state(head=30, window_entries=1)
    read(session, [row(10)], 30, more=True)
    session.release([mid(10)])  # DEFER
    assert read(session, [row(30)], 30) == BatchEnd(30, more=False, caught_up=True)
    assert session.sent == 30


# From memory


def test_an_entry_goes_from_memory_only_when_the_stream_stands_at_the_head_before_it() -> None:
    session = state(head=50, pending=False)
    assert session.may_push_from_memory(50)
    assert not session.may_push_from_memory(49)
    assert push(session, 60, 50)
    assert push(session, 70, 60)
    assert session.take_batch() == BatchEnd(70, more=False, caught_up=True)


def test_an_entry_behind_a_gap_is_read_instead() -> None:
    session = state(head=50, pending=False)
    assert not push(session, 70, 60)
    assert session.read_wanted() == ReadPlan(50, 4, 1_000)


def test_nothing_goes_from_memory_while_a_read_is_in_flight() -> None:
    session = state(head=50)
    session.read_started()
    assert not session.may_push_from_memory(0)
    assert not push(session, 60, 0)
    session.read_finished([row(50)], 50, False)  # the page is from before entry 60
    assert session.read_wanted() == ReadPlan(50, 3, 990)


def test_an_entry_that_the_window_does_not_hold_is_read_later() -> None:
    session = state(head=50, pending=False, window_entries=1)
    assert push(session, 60, 50)
    assert not push(session, 70, 60)
    assert session.take_batch() == BatchEnd(60, more=True, caught_up=True)
    session.release([mid(60)])
    assert session.read_wanted() == ReadPlan(60, 1, 1_000)


def test_an_entry_that_was_sent_already_is_dropped_without_a_read() -> None:
    session = state(head=50)
    read(session, [row(50)], 50)
    assert not push(session, 50, 40)
    assert session.read_wanted() is None


def test_a_batch_from_memory_is_bounded_in_entries_and_bytes() -> None:
    session = state(head=0, window_entries=1_024, window_bytes=8 * 1_048_576)
    taken = [push(session, position + 1, position, size=1) for position in range(BATCH_ENTRIES_MAX + 1)]
    assert taken == [True] * BATCH_ENTRIES_MAX + [False]
    assert session.take_batch() == BatchEnd(BATCH_ENTRIES_MAX, more=True, caught_up=True)
    session = state(head=0, window_entries=1_024, window_bytes=8 * 1_048_576)
    assert push(session, 1, 0, size=READ_BYTES_MAX)
    assert not push(session, 2, 1, size=1)


def test_a_batch_of_the_most_that_is_ever_read_stays_within_one_mebibyte() -> None:
    size = READ_BYTES_MAX // BATCH_ENTRIES_MAX
    entry = Entry(mid(1), 65_535, bytes(size), 2**41, 2**41, 12, mid(2))
    data = encode_mailbox_batch(None, [encode_entry(entry)] * BATCH_ENTRIES_MAX, "c" * 76, True, False)
    assert READ_BYTES_MAX < len(data) <= BATCH_BYTES_MAX


# Ending


def test_a_stopped_session_neither_pushes_nor_seals() -> None:
    session = state(head=50)
    session.read_started()
    session.stop()
    assert session.read_finished([row(50)], 50, False) == range(0)
    assert session.take_batch() is None
    assert session.read_wanted() is None
    assert not session.may_push_from_memory(0)
    assert not push(session, 60, 0)
