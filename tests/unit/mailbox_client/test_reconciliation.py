"""Seed 002, decisions 1 and 3: first the mailbox, then the resends; and what counts as a connection."""

from __future__ import annotations

import pytest

from mailbox_client.engine_io import (
    CloseSocket,
    FetchToken,
    Forget,
    FrameReceived,
    GetPage,
    OpenSocket,
    PostSend,
    Prefer,
    RequestFailed,
    Resend,
    SendAnswered,
    Start,
    TokenGiven,
)
from mailbox_client.events import (
    CaughtUp,
    Reconciled,
    SendConfirmed,
    SendOutcomeUnknown,
    SendsRefused,
    SendWaiting,
    Transport,
)
from mailbox_client.local_store import SendState
from mailbox_client.local_store.memory import MemoryStore
from mailbox_client.settings import DAY_MS
from protocol.errors import ErrorCode, MailboxError
from protocol.frames import Ack, Defer, MailboxBatch, Pong, PullMailbox, Send, SendResult
from tests.support.client_values import NOW_MS, cmid, device, echo, entry, envelope, mid
from tests.support.engine_bench import EngineBench


def test_seed002_nothing_is_resent_before_the_mailbox_was_read_to_the_watermark() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1))
    assert bench.sent() == [cmid(1)]
    bench.lose()
    bench.reopen()
    assert bench.sent() == []
    bench.push(entry(50), caught_up=False, more=True)
    assert bench.sent() == []
    bench.push(entry(51), caught_up=True)
    assert bench.sent() == [cmid(1)]


def test_seed002_a_match_is_upgraded_in_place_and_not_resent() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1))
    bench.submit(cmid(2))
    bench.lose()
    bench.events()
    bench.all_frames()
    bench.reopen()
    bench.push(echo(70, cmid(1), accepted_at=NOW_MS + 5), caught_up=False, more=True)
    (confirmed,) = bench.events(SendConfirmed)
    assert confirmed.receipt.client_message_id == cmid(1)
    assert confirmed.receipt.reconciled
    assert [one.accepted_at for one in confirmed.receipt.accepted] == [NOW_MS + 5]
    bench.push()
    assert bench.sent() == [cmid(2)]
    with bench.store.transaction():
        stored = bench.store.send(cmid(1))
    assert stored is not None
    assert stored.state is SendState.CONFIRMED


def test_seed002_an_own_entry_with_a_body_matches_as_an_echo_does() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1), envelope(1, to=device(1)), echo=False)
    bench.lose()
    bench.reopen()
    bench.push(entry(1, sent_as=cmid(1)))
    assert bench.sent() == [cmid(1)], "this is the first attempt's frame"
    assert [event.receipt.reconciled for event in bench.events(SendConfirmed)] == [True]
    assert [message.entry.mid for message in bench.hand_over()] == [mid(1)]


def test_seed002_the_unmatched_go_in_their_old_order_under_their_old_ids_ahead_of_new_ones() -> None:
    bench = EngineBench()
    bench.live()
    for number in (3, 1, 2):
        bench.submit(cmid(number), envelope(number))
    assert bench.sent() == [cmid(3), cmid(1), cmid(2)]
    bench.lose()
    bench.reopen()
    bench.submit(cmid(9), envelope(9))
    assert bench.sent() == []
    bench.push(echo(70, cmid(1)))
    assert bench.sent() == [cmid(3), cmid(2), cmid(9)]


def test_seed002_the_order_survives_the_process() -> None:
    bench = EngineBench()
    bench.live()
    for number in (3, 1, 2):
        bench.submit(cmid(number), envelope(number))
    bench.crash()
    bench.live()
    assert bench.sent() == [cmid(3), cmid(1), cmid(2)]


def test_seed002_the_app_sees_one_confirmation() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1))
    (send,) = bench.frames(Send)
    bench.push(echo(70, cmid(1)))
    assert bench.events(SendConfirmed) == [], "its SEND_ACK is on its way and says more"
    bench.confirm_send(send)
    (confirmed,) = bench.events(SendConfirmed)
    assert not confirmed.receipt.reconciled
    bench.confirm_send(send, duplicate=True)
    bench.push(echo(71, cmid(1)))
    bench.lose()
    bench.reopen()
    bench.push(echo(72, cmid(1)))
    assert bench.events(SendConfirmed) == []
    assert bench.sent() == []


def test_seed002_an_echo_that_came_before_the_lost_answer_settles_the_send() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1))
    bench.push(echo(70, cmid(1)))
    bench.all_frames()
    bench.lose()
    assert [event.receipt.client_message_id for event in bench.events(SendConfirmed)] == [cmid(1)]
    bench.reopen()
    bench.push()
    assert bench.sent() == [], "the cursor is past its echo, so only the store could know"


def test_seed002_an_echo_seen_just_before_a_crash_settles_the_send_after_it() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1))
    bench.push(echo(70, cmid(1)))
    bench.crash()
    bench.live()
    assert [event.receipt.client_message_id for event in bench.events(SendConfirmed)] == [cmid(1)]
    assert bench.sent() == []


def test_seed002_blind_resends_happen_only_inside_a_living_connection() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1))
    bench.frames(Send)
    bench.refuse(cmid(1), ErrorCode.UNAVAILABLE, after_ms=700)
    assert bench.sent() == []
    bench.advance(699)
    assert bench.sent() == []
    bench.advance(1)
    assert bench.sent() == [cmid(1)]
    bench.refuse(cmid(1), ErrorCode.UNAVAILABLE, after_ms=700)
    bench.lose()
    bench.advance(60_000)
    assert bench.sent() == [], "the connection is gone: first the mailbox"


def test_seed002_an_unanswered_send_replaces_the_connection_instead_of_being_repeated_blindly() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1))
    assert bench.sent() == [cmid(1)]
    bench.advance(bench.settings.send_answer_ms - 1)
    bench.frame(Pong(1))
    assert bench.take(CloseSocket) == []
    bench.advance(1)
    assert bench.take(CloseSocket) == [CloseSocket(bench.socket, at_once=True)]
    assert bench.sent() == []


def test_seed002_a_pending_older_than_24_hours_of_server_time_is_told_and_never_resent_by_itself() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1))
    bench.lose()
    bench.all_frames()
    bench.advance(DAY_MS + 1)
    bench.submit(cmid(2))
    bench.reopen()
    assert bench.events(SendOutcomeUnknown) == []
    bench.push()
    assert bench.sent() == [cmid(2)]
    events = bench.events()
    assert [event.client_message_id for event in events if isinstance(event, SendOutcomeUnknown)] == [cmid(1)]
    assert [event for event in events if isinstance(event, Reconciled)] == [Reconciled(0, 1, 1)]
    bench.crash()
    bench.live()
    assert bench.sent() == [cmid(2)]


def test_seed002_an_old_pending_that_the_mailbox_shows_is_confirmed_not_unknown() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1))
    bench.lose()
    bench.advance(DAY_MS + 1)
    bench.reopen()
    bench.push(echo(70, cmid(1)))
    assert bench.events(SendOutcomeUnknown) == []
    assert len(bench.sent()) == 1, "the first attempt only"


def test_seed002_a_frame_left_over_from_a_connection_given_up_does_not_open_the_way_out() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1))
    given_up = bench.socket
    bench.advance(bench.settings.send_answer_ms)
    bench.all_frames()
    bench.give(FrameReceived(given_up, MailboxBatch(None, (), "cursor", False, True)))
    bench.reopen()
    assert bench.sent() == []


def test_the_app_decides_on_an_unknown_send() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1), envelope(1, body=b"first"))
    bench.submit(cmid(2), envelope(2))
    bench.lose()
    bench.all_frames()
    bench.advance(DAY_MS + 1)
    bench.reopen()
    bench.push()
    bench.give(Resend(cmid(1)), Forget(cmid(2)))
    (send,) = bench.frames(Send)
    assert send.cmid == cmid(1)
    assert send.envelopes == (envelope(1, body=b"first"),)
    bench.lose()
    bench.reopen()
    bench.push()
    assert bench.sent() == [cmid(1)], "its day begins again with the app's decision"


def test_the_age_counts_in_server_time_whatever_the_local_clock_says() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1))
    bench.lose()
    bench.all_frames()
    bench.server_ahead += 2 * DAY_MS  # the process or its clock stood still; the server's did not
    bench.reopen()
    bench.push()
    assert bench.sent() == []


def test_a_send_made_before_any_contact_counts_from_its_making_and_goes_out() -> None:
    bench = EngineBench()
    bench.submit(cmid(1), envelope(1))
    bench.advance(DAY_MS - 60_000)
    bench.give(Start())
    bench.live()
    assert bench.sent() == [cmid(1)]
    with bench.store.transaction():
        stored = bench.store.send(cmid(1))
    assert stored is not None
    assert stored.created_at is not None
    assert stored.created_at == bench.server_now - (DAY_MS - 60_000)


def test_a_send_of_an_earlier_process_without_any_contact_never_left_and_goes_out() -> None:
    bench = EngineBench()
    bench.submit(cmid(1))
    bench.crash()
    bench.advance(30 * DAY_MS)
    bench.live()
    assert bench.sent() == [cmid(1)]


# -- while catching up


def test_a_window_full_of_unconfirmed_entries_does_not_hold_up_the_reconciliation() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1))
    bench.lose()
    bench.all_frames()
    bench.reopen()
    first = [entry(number) for number in range(100, 100 + 256)]
    bench.push(*first, caught_up=False, more=True)
    deferred = [one for defer in bench.frames(Defer) for one in defer.mids]
    assert deferred == [one.mid for one in first], "they are safe here, and must not fill the server's window"
    bench.push(echo(70, cmid(1)))
    assert bench.sent() == []
    handed = bench.hand_over(300)
    assert [message.entry for message in handed] == first
    bench.confirm(*handed)
    assert set(bench.answer_acks()) == {one.mid for one in first} | {mid(70)}


def test_a_window_full_by_bytes_is_emptied_as_well() -> None:
    bench = EngineBench()
    bench.open()
    bench.push(*[entry(number, body=bytes(65_536)) for number in range(8)], caught_up=False, more=True)
    assert [len(defer.mids) for defer in bench.frames(Defer)] == [8]


def test_once_caught_up_the_window_holds_the_server_back() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(*[entry(number) for number in range(100, 356)])
    assert bench.frames(Defer) == []
    assert bench.frames(Ack) == []


def test_everything_below_the_watermark_deferred_earlier_is_caught_up_at_once() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    bench.hand_over()
    bench.submit(cmid(1))
    bench.lose()
    bench.all_frames()
    bench.events()
    bench.reopen()
    bench.push()  # the server sends this empty batch in any case
    assert bench.events(CaughtUp) == [CaughtUp(Transport.WEBSOCKET)]
    assert bench.sent() == [cmid(1)]


# -- refusals (WIRE, "SEND is atomic")


def test_a_send_refused_for_some_goes_to_the_rest_under_the_same_id() -> None:
    bench = EngineBench()
    bench.live()
    three = [envelope(number, to=device(number)) for number in (1, 2, 3)]
    bench.submit(cmid(1), *three)
    bench.frames(Send)
    bench.refuse(cmid(1), ErrorCode.UNKNOWN_RECIPIENT, at=[1])
    (send,) = bench.frames(Send)
    assert send.cmid == cmid(1)
    assert send.envelopes == (three[0], three[2])
    (refused,) = bench.events(SendsRefused)
    assert [(one.to, one.code) for one in refused.refused] == [(device(2), "UNKNOWN_RECIPIENT")]
    assert not refused.nothing_left
    bench.refuse(cmid(1), ErrorCode.MAILBOX_FULL, at=[0], after_ms=60_000)
    (send,) = bench.frames(Send)
    assert send.envelopes == (three[2],)
    bench.confirm_send(send)
    (confirmed,) = bench.events(SendConfirmed)
    assert [one.to for one in confirmed.receipt.accepted] == [device(3)]
    assert [(one.to, one.code, one.retryable) for one in confirmed.receipt.refused] == [
        (device(2), "UNKNOWN_RECIPIENT", False),
        (device(1), "MAILBOX_FULL", True),
    ]


def test_the_rest_of_a_refused_send_is_what_a_later_match_confirms() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1), envelope(1, to=device(1)), envelope(2, to=device(2)))
    bench.refuse(cmid(1), ErrorCode.UNKNOWN_RECIPIENT, at=[0])
    bench.crash()
    bench.open()
    bench.push(echo(70, cmid(1)))
    (confirmed,) = bench.events(SendConfirmed)
    assert [one.to for one in confirmed.receipt.accepted] == [device(2)]
    assert [one.to for one in confirmed.receipt.refused] == [device(1)]


def test_a_send_refused_for_all_is_over() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1), envelope(1), envelope(2))
    bench.frames(Send)
    bench.refuse(cmid(1), ErrorCode.MESSAGE_ID_CONFLICT, at=[0, 1])
    (refused,) = bench.events(SendsRefused)
    assert refused.nothing_left
    bench.lose()
    bench.reopen()
    bench.push()
    assert bench.sent() == []


@pytest.mark.parametrize(
    "code", [ErrorCode.IDEMPOTENCY_KEY_REUSED, ErrorCode.ENVELOPE_TOO_LARGE, ErrorCode.MAILBOX_FULL]
)
def test_a_refusal_that_names_nobody_is_for_all(code: ErrorCode) -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1), envelope(1), envelope(2))
    bench.refuse(cmid(1), code)
    (refused,) = bench.events(SendsRefused)
    assert refused.nothing_left
    assert [one.code for one in refused.refused] == [code.value] * 2


def test_a_rate_limit_is_waited_for_and_shown() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1), envelope(1))
    bench.submit(cmid(2), envelope(2))
    assert bench.sent() == [cmid(1), cmid(2)]
    bench.refuse(cmid(1), ErrorCode.RATE_LIMITED, after_ms=5_000)
    bench.refuse(cmid(2), ErrorCode.RATE_LIMITED, after_ms=5_000)
    assert [(event.client_message_id, event.retry_in_ms) for event in bench.events(SendWaiting)] == [
        (cmid(1), 5_000),
        (cmid(2), 5_000),
    ]
    bench.submit(cmid(3), envelope(3))
    assert bench.sent() == [], "the sender's own rate: a new send would fare no better"
    bench.advance(5_000)
    assert bench.sent() == [cmid(1), cmid(2), cmid(3)]


def test_a_send_that_waits_for_one_recipient_holds_up_later_ones_to_the_same_and_nobody_else() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1), envelope(1, to=device(1)))
    bench.frames(Send)
    bench.refuse(cmid(1), ErrorCode.RATE_LIMITED, at=[0], after_ms=5_000)
    bench.submit(cmid(2), envelope(2, to=device(2)))
    bench.submit(cmid(3), envelope(3, to=device(1)))
    bench.submit(cmid(4), envelope(4, to=device(1)), envelope(5, to=device(3)))
    bench.submit(cmid(5), envelope(6, to=device(3)))
    assert bench.sent() == [cmid(2)]
    bench.advance(5_000)
    assert bench.sent() == [cmid(1), cmid(3), cmid(4), cmid(5)]


def test_an_error_for_a_repeat_does_not_undo_what_the_mailbox_proved() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1))
    bench.push(echo(70, cmid(1)))
    bench.refuse(cmid(1), ErrorCode.UNAVAILABLE)
    (confirmed,) = bench.events(SendConfirmed)
    assert confirmed.receipt.reconciled


def test_sends_in_flight_stay_within_the_servers_limits() -> None:
    bench = EngineBench()
    bench.live()
    for number in range(300):
        bench.submit(cmid(number + 1), envelope(number + 1))
    sends = bench.frames(Send)
    assert len(sends) == LIMIT
    bench.confirm_send(sends[0])
    assert len(bench.frames(Send)) == 1


LIMIT = 256


def test_bytes_in_flight_stay_within_the_servers_limits() -> None:
    bench = EngineBench()
    bench.live()
    for number in range(10):
        body = bytes(1_500_000)
        bench.submit(cmid(number + 1), envelope(number + 1, body=body), envelope(number + 100, body=body))
    assert len(bench.frames(Send)) == 2


# -- HTTP alone


def over_http(store: MemoryStore | None = None) -> EngineBench:
    bench = EngineBench(store)
    bench.give(Prefer(Transport.HTTP), Start())
    bench.token()
    return bench


def test_seed002_over_http_alone_the_mailbox_is_read_until_the_watermark_before_any_resend() -> None:
    bench = over_http()
    bench.submit(cmid(1), envelope(1))
    bench.submit(cmid(2), envelope(2))
    asked = bench.page(entry(50), cursor="one", more=True, watermark="head", caught_up=False)
    assert (asked.cursor, asked.until, asked.wait_s) == (None, None, 0)
    assert bench.take(PostSend) == []
    asked = bench.page(echo(70, cmid(1)), cursor="two", more=True, watermark="newer", caught_up=False)
    assert (asked.cursor, asked.until) == ("one", "head")
    assert bench.take(PostSend) == []
    bench.page(cursor="three", watermark="newer", caught_up=True)
    (post,) = bench.take(PostSend)
    assert post.send.cmid == cmid(2)
    assert [event.receipt.client_message_id for event in bench.events(SendConfirmed)] == [cmid(1)]


def test_over_http_sends_go_one_at_a_time_in_order() -> None:
    bench = over_http()
    bench.page()
    for number in (1, 2):
        bench.submit(cmid(number), envelope(number))
    (post,) = bench.take(PostSend)
    assert post.send.cmid == cmid(1)
    bench.give(SendAnswered(post.request, False, (SendResult(mid(1), NOW_MS, NOW_MS + 1),)))
    (post,) = bench.take(PostSend)
    assert post.send.cmid == cmid(2)


def test_seed002_over_http_an_unanswered_send_is_looked_for_in_the_mailbox_before_it_is_repeated() -> None:
    bench = over_http()
    bench.page()
    bench.submit(cmid(1))
    (post,) = bench.take(PostSend)
    bench.outputs.clear()
    bench.give(RequestFailed(post.request, None))
    assert bench.take(PostSend) == []
    bench.advance(bench.settings.backoff_cap_ms)
    assert bench.take(PostSend) == []
    bench.page(echo(70, cmid(1)))
    assert bench.take(PostSend) == []
    assert [event.receipt.reconciled for event in bench.events(SendConfirmed)] == [True]


def test_over_http_an_answered_error_is_repeated_with_backoff() -> None:
    bench = over_http()
    bench.page()
    bench.submit(cmid(1))
    (post,) = bench.take(PostSend)
    bench.give(RequestFailed(post.request, MailboxError(ErrorCode.UNAVAILABLE, retry_after_ms=700)))
    bench.advance(699)
    assert bench.take(PostSend) == []
    bench.advance(1)
    assert [post.send.cmid for post in bench.take(PostSend)] == [cmid(1)]


def test_a_refused_cursor_over_http_starts_again_at_the_oldest_entry() -> None:
    store = MemoryStore()
    with store.transaction():
        store.set_cursor("of another epoch")
    bench = over_http(store)
    bench.submit(cmid(1))
    (asked,) = bench.take(GetPage)
    assert asked.cursor == "of another epoch"
    bench.give(RequestFailed(asked.request, MailboxError(ErrorCode.CURSOR_INVALID)))
    asked = bench.page(entry(1))
    assert asked.cursor is None
    assert [post.send.cmid for post in bench.take(PostSend)] == [cmid(1)]


# -- the order of receiving is not disturbed by a walk


def test_the_daily_walk_does_not_move_the_durable_cursor() -> None:
    bench = EngineBench()
    bench.live()
    with bench.store.transaction():
        bench.store.note_ms("last_full_walk", bench.server_now - 2 * DAY_MS)
        bench.store.set_cursor("far")
    bench.lose()
    bench.all_frames()
    bench.reopen()
    bench.push(cursor="farther")
    (pull,) = bench.frames(PullMailbox)
    assert pull.cursor is None
    bench.frame(MailboxBatch(pull.ref, (entry(1),), "one", True, False))
    (pull,) = bench.frames(PullMailbox)
    assert pull.cursor == "one"
    bench.frame(MailboxBatch(pull.ref, (), "end", False, True))
    assert bench.frames(PullMailbox) == []
    with bench.store.transaction():
        assert bench.store.cursor() == "farther"
        assert bench.store.noted_ms("last_full_walk") == bench.server_now
    assert [message.entry.mid for message in bench.hand_over()] == [mid(1)]


def test_a_token_is_fetched_before_anything_is_sent() -> None:
    bench = EngineBench()
    bench.give(Start())
    (fetch,) = bench.take(FetchToken)
    assert bench.take(OpenSocket) == []
    bench.give(TokenGiven(fetch.request, "token", 840_000, NOW_MS))
    assert len(bench.take(OpenSocket)) == 1
