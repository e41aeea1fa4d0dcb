"""Messages on their way to the app: durable first, once, ACK only after the confirmation (DESIGN, "The client SDK")."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mailbox_client.engine_io import (
    DeferMessages,
    GetPage,
    MessagesWaiting,
    Page,
    PostAck,
    PostSend,
    Prefer,
    PullAnswered,
    RequestFailed,
    RetryDeferred,
    ReturnMessages,
    Start,
)
from mailbox_client.events import MessagesDeferred, Transport
from mailbox_client.local_store import LocalStore, MessageState
from mailbox_client.local_store.memory import MemoryStore
from mailbox_client.settings import DAY_MS, ClientSettings
from protocol.errors import ErrorCode, MailboxError
from protocol.frames import Ack, AckResult, Defer, Error, MailboxBatch, PullMailbox
from protocol.ids import MessageId
from store.policy_rules import Policy
from tests.support.client_values import cmid, echo, entry, mid
from tests.support.engine_bench import EngineBench

OpenStore = Callable[[], LocalStore]


def ids(messages: list) -> list[MessageId]:  # type: ignore[type-arg]
    return [message.entry.mid for message in messages]


def test_a_message_and_the_cursor_behind_it_become_durable_together(open_store: OpenStore) -> None:
    bench = EngineBench(open_store())
    bench.live()
    bench.push(entry(1), entry(2), cursor="behind both")
    bench.store = open_store()
    bench.crash()
    with bench.store.transaction():
        assert bench.store.cursor() == "behind both"
    assert ids(bench.hand_over()) == [mid(1), mid(2)]


def test_nothing_is_acked_before_the_app_confirmed() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1), entry(2))
    first, second = bench.hand_over()
    assert bench.frames(Ack) == []
    bench.confirm(second)
    assert bench.answer_acks() == [mid(2)]
    bench.confirm(first)
    assert bench.answer_acks() == [mid(1)]


def test_a_message_reaches_the_app_once_however_often_it_comes() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    bench.push(entry(1))
    (message,) = bench.hand_over()
    bench.push(entry(1))
    assert bench.hand_over() == []
    bench.confirm(message)
    bench.lose()
    bench.reopen()
    bench.push(entry(1))
    assert bench.hand_over() == []


def test_a_dropped_duplicate_of_something_confirmed_is_acked_again() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    bench.confirm(*bench.hand_over())
    assert bench.answer_acks() == [mid(1)]
    bench.lose()
    bench.reopen()
    bench.push(entry(1))  # a restore brought it back
    assert bench.answer_acks() == [mid(1)]


def test_a_duplicate_of_something_in_the_apps_hands_is_not_acked() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    bench.hand_over()
    bench.lose()
    bench.reopen()
    bench.push(entry(1))
    assert bench.frames(Ack) == []


def test_what_was_handed_over_and_not_confirmed_is_handed_over_again_after_a_crash() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1), entry(2))
    first, _second = bench.hand_over()
    bench.confirm(first)
    bench.crash()
    (again,) = bench.hand_over()
    assert again.entry == entry(2)
    assert again.crashes == 1


def test_a_confirmation_survives_a_crash_before_its_ack_and_is_acked_in_the_next_session() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    bench.confirm(*bench.hand_over())
    bench.crash()
    assert bench.hand_over() == []
    bench.live()
    assert bench.answer_acks() == [mid(1)]


def test_an_ack_without_an_answer_is_sent_again_in_the_next_session() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    bench.confirm(*bench.hand_over())
    assert len(bench.frames(Ack)) == 1
    bench.lose()
    bench.reopen()
    bench.push()
    assert bench.answer_acks() == [mid(1)]
    bench.lose()
    bench.reopen()
    bench.push()
    assert bench.frames(Ack) == []


def test_a_refused_ack_is_tried_again_after_a_pause() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    bench.confirm(*bench.hand_over())
    (ack,) = bench.frames(Ack)
    bench.frame(Error(ErrorCode.UNAVAILABLE, "no", True, "request", ref=ack.ref, retry_after_ms=500))
    assert bench.frames(Ack) == []
    bench.advance(500)
    assert bench.answer_acks() == [mid(1)]


def test_acks_go_in_batches_of_at_most_100() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(*[entry(number) for number in range(1, 251)])
    bench.confirm(*bench.hand_over(300))
    acks = bench.frames(Ack)
    assert [len(ack.mids) for ack in acks] == [100, 100, 50]
    assert len({ack.ref for ack in acks}) == 3


def test_an_echo_is_acked_by_itself_once_its_send_is_settled_durably() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1))
    bench.push(echo(70, cmid(1)))
    assert bench.answer_acks() == [mid(70)]
    assert bench.hand_over() == []


def test_an_echo_of_a_send_that_is_long_done_is_acked_too() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(echo(70, cmid(9)))
    assert bench.answer_acks() == [mid(70)]


def test_a_deferred_message_leaves_the_window_and_is_not_acked() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    bench.hand_over()
    bench.give(DeferMessages((mid(1),)))
    assert [defer.mids for defer in bench.frames(Defer)] == [(mid(1),)]
    assert bench.frames(Ack) == []
    assert bench.events(MessagesDeferred) == [MessagesDeferred((mid(1),), after_crashes=False)]
    assert bench.hand_over() == []


def test_a_deferred_message_comes_back_when_the_app_asks() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    bench.hand_over()
    bench.give(DeferMessages((mid(1),)))
    bench.give(RetryDeferred())
    (message,) = bench.hand_over()
    assert message.entry == entry(1)
    bench.confirm(message)
    assert bench.answer_acks() == [mid(1)]


def test_a_deferred_message_comes_back_within_a_day() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    bench.hand_over()
    bench.give(DeferMessages((mid(1),)))
    for _hour in range(25):
        bench.advance(3_600_000)
        bench.reopen()
        bench.push()
    *_, pull = bench.frames(PullMailbox)
    bench.frame(MailboxBatch(pull.ref, (entry(1),), "end", False, True))
    assert ids(bench.hand_over()) == [mid(1)]


def test_a_long_lived_connection_walks_daily_too() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    bench.hand_over()
    bench.give(DeferMessages((mid(1),)))
    for _ in range(DAY_MS // 9_000):
        assert bench.frames(PullMailbox) == []
        bench.outputs.clear()
        bench.advance(9_000)
        bench.token()
        bench.push()
    (pull,) = bench.frames(PullMailbox)
    assert pull.cursor is None
    assert bench.hand_over() == []
    bench.frame(MailboxBatch(pull.ref, (), "end", False, True))
    assert ids(bench.hand_over()) == [mid(1)]
    bench.frame(MailboxBatch(None, (), "end", False, True))
    assert bench.frames(PullMailbox) == [], "the next one is due tomorrow"


def test_a_walk_that_fails_is_not_begun_again_at_once() -> None:
    bench = EngineBench()
    bench.live()
    bench.give(RetryDeferred())
    (pull,) = bench.frames(PullMailbox)
    bench.frame(Error(ErrorCode.UNAVAILABLE, "no", True, "request", ref=pull.ref))
    assert bench.frames(PullMailbox) == []
    for _ in range(7):
        bench.advance(9_000)
        bench.push()
    (pull,) = bench.frames(PullMailbox)
    bench.frame(MailboxBatch(pull.ref, (), "end", False, True))


def over_websocket() -> EngineBench:
    bench = EngineBench()
    bench.live()
    return bench


def over_http_caught_up() -> EngineBench:
    bench = over_http()
    bench.page()
    return bench


def walk_page_asked(bench: EngineBench) -> tuple[int, str | None] | None:
    """The page of the walk that is asked for: by a frame, or over HTTP beside the waiting poll."""
    pulls = [(pull.ref, pull.cursor) for pull in bench.frames(PullMailbox)]
    pulls += [(page.request, page.cursor) for page in bench.take(GetPage) if not page.wait_s]
    assert len(pulls) <= 1
    return pulls[0] if pulls else None


def answer_walk(bench: EngineBench, number: int, cursor: str, *, more: bool) -> None:
    if bench.engine._link.has_socket:
        bench.frame(MailboxBatch(number, (), cursor, more, True))
    else:
        bench.give(PullAnswered(number, Page((), cursor, more, "watermark", True)))


def refuse_walk(bench: EngineBench, number: int, code: ErrorCode, retry_after_ms: int | None = None) -> None:
    if bench.engine._link.has_socket:
        bench.frame(Error(code, "no", True, "request", ref=number, retry_after_ms=retry_after_ms))
    else:
        bench.give(RequestFailed(number, MailboxError(code, retry_after_ms=retry_after_ms)))


@pytest.mark.parametrize("live", [over_websocket, over_http_caught_up], ids=["websocket", "http"])
def test_a_walk_of_60000_entries_goes_to_its_end_at_the_default_rates(live: Callable[[], EngineBench]) -> None:
    bench = live()
    pages = 60_000 // bench.settings.page_limit
    policy = Policy()
    rate, burst = policy.submit_rate_per_device, policy.submit_burst_per_device
    tokens, asked_at, walked, refused = float(burst), bench.now, 0, 0
    begun = bench.now
    bench.outputs.clear()
    bench.give(RetryDeferred())
    while walked < pages:
        while (page := walk_page_asked(bench)) is None:
            due = bench.engine.next_due(bench.now)
            assert due is not None
            assert due - begun < 60_000
            bench.advance(max(0, due - bench.now))
        number, cursor = page
        assert cursor == (f"after {walked}" if walked else None)
        tokens, asked_at = min(burst, tokens + rate * (bench.now - asked_at) / 1000), bench.now
        if tokens < 1:
            refused += 1
            refuse_walk(bench, number, ErrorCode.RATE_LIMITED, 20)
            continue
        tokens -= 1
        walked += 1
        answer_walk(bench, number, f"after {walked}", more=walked < pages)
    assert 0 < refused < 10
    assert walk_page_asked(bench) is None
    with bench.store.transaction():
        assert bench.store.noted_ms("last_full_walk") == bench.server_now


def test_a_walk_goes_on_in_the_next_connection() -> None:
    bench = over_websocket()
    bench.give(RetryDeferred())
    (pull,) = bench.frames(PullMailbox)
    bench.frame(MailboxBatch(pull.ref, (), "after 100", True, True))
    assert [pull.cursor for pull in bench.frames(PullMailbox)] == ["after 100"]
    bench.lose()
    bench.reopen()
    bench.push()
    assert [pull.cursor for pull in bench.frames(PullMailbox)] == ["after 100"]


@pytest.mark.parametrize("code", [ErrorCode.CURSOR_INVALID, ErrorCode.CURSOR_EXPIRED])
@pytest.mark.parametrize("live", [over_websocket, over_http_caught_up], ids=["websocket", "http"])
def test_a_walk_whose_cursor_is_refused_begins_anew(live: Callable[[], EngineBench], code: ErrorCode) -> None:
    bench = live()
    bench.outputs.clear()
    bench.give(RetryDeferred())
    page = walk_page_asked(bench)
    assert page is not None
    answer_walk(bench, page[0], "of another epoch", more=True)
    page = walk_page_asked(bench)
    assert page is not None
    refuse_walk(bench, page[0], code)
    bench.outputs.clear()
    for _ in range(7):
        assert walk_page_asked(bench) is None
        bench.advance(9_000)
        if bench.engine._link.has_socket:
            bench.push()
    page = walk_page_asked(bench)
    assert page is not None
    assert page[1] is None


def test_the_app_asks_for_deferred_messages_in_the_middle_of_a_walk_and_it_begins_anew() -> None:
    bench = over_websocket()
    bench.give(RetryDeferred())
    (pull,) = bench.frames(PullMailbox)
    bench.give(RetryDeferred())
    bench.frame(MailboxBatch(pull.ref, (), "after 100", True, True))
    assert [pull.cursor for pull in bench.frames(PullMailbox)] == [None]


def test_a_walk_brings_back_a_deferred_message_that_only_the_server_still_has() -> None:
    bench = EngineBench()
    bench.live()
    with bench.store.transaction():
        bench.store.note_ms("last_full_walk", bench.server_now - 2 * DAY_MS)
    bench.lose()
    bench.reopen()
    bench.push()
    (pull,) = bench.frames(PullMailbox)
    bench.frame(MailboxBatch(pull.ref, (entry(1),), "end", False, True))
    assert ids(bench.hand_over()) == [mid(1)]


def test_a_message_that_crashed_the_app_three_times_is_put_aside() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1), entry(2))
    for crashes in range(3):
        handed = bench.hand_over()
        assert handed[0].entry.mid == mid(1)
        assert handed[0].crashes == crashes
        bench.crash()
    assert bench.events(MessagesDeferred) == []
    assert [message.entry.mid for message in bench.hand_over()] == [mid(2)]
    with bench.store.transaction():
        assert bench.store.message_state(mid(1)) is MessageState.DEFERRED


def test_an_engine_made_anew_in_its_process_leaves_the_app_what_it_has_in_hand() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    (message,) = bench.hand_over()
    bench.lose_engine()
    assert bench.hand_over() == []
    bench.confirm(message)
    bench.live()
    assert bench.answer_acks() == [mid(1)]


def test_after_a_crash_suspects_are_handed_over_one_by_one() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(*[entry(number) for number in range(1, 6)])
    assert len(bench.hand_over(3)) == 3
    bench.crash()
    assert [ids(bench.hand_over()) for _ in range(4)] == [[mid(1)], [mid(2)], [mid(3)], [mid(4), mid(5)]]


def test_an_innocent_neighbour_of_a_poisonous_message_is_never_put_aside() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(*[entry(number) for number in range(1, 4)])
    confirmed: list[MessageId] = []
    for _process in range(4):
        while handed := bench.hand_over(3):
            if any(message.entry.mid == mid(2) for message in handed):
                break
            bench.confirm(*handed)
            confirmed += ids(handed)
        else:
            continue
        bench.crash()
    assert sorted(confirmed) == [mid(1), mid(3)]
    with bench.store.transaction():
        assert bench.store.message_state(mid(2)) is MessageState.DEFERRED


def test_messages_given_back_at_a_clean_end_count_no_crash() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    bench.hand_over()
    bench.give(ReturnMessages((mid(1), mid(404))))
    bench.crash()
    (message,) = bench.hand_over()
    assert message.crashes == 0


def test_confirming_twice_or_something_unknown_is_harmless() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    (message,) = bench.hand_over()
    bench.confirm(message, message)
    bench.confirm(message)
    assert bench.answer_acks() == [mid(1)]
    assert bench.engine._incoming.unconfirmed == 0


def test_the_app_hears_of_waiting_messages_until_they_are_taken() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    assert len(bench.take(MessagesWaiting)) == 1
    bench.hand_over()
    bench.push()
    assert bench.take(MessagesWaiting) == []


def test_dedup_memory_lasts_at_least_30_days_and_ends() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    bench.confirm(*bench.hand_over())
    for days, known in ((31, True), (8, False)):
        bench.server_ahead += days * DAY_MS
        bench.lose()
        bench.reopen()
        bench.push()
        (pull,) = bench.frames(PullMailbox)
        bench.frame(MailboxBatch(pull.ref, (), "end", False, True))  # the daily walk prunes
        with bench.store.transaction():
            assert (bench.store.message_state(mid(1)) is MessageState.CONFIRMED) is known


@pytest.mark.parametrize("in_hands", [False, True])
def test_what_the_app_has_not_confirmed_is_never_pruned(in_hands: bool) -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    if in_hands:
        bench.hand_over()
    bench.server_ahead += 400 * DAY_MS
    bench.lose()
    bench.reopen()
    bench.push()
    (pull,) = bench.frames(PullMailbox)
    bench.frame(MailboxBatch(pull.ref, (), "end", False, True))
    with bench.store.transaction():
        assert bench.store.message_state(mid(1)) is not None


def test_own_echoes_that_wait_behind_a_full_window_are_let_through() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1), entry(2))
    bench.submit(cmid(1))
    bench.refuse(cmid(1), ErrorCode.ECHO_BACKLOG_FULL)
    assert [defer.mids for defer in bench.frames(Defer)] == [(mid(1), mid(2))]
    bench.push(echo(70, cmid(9)))
    assert bench.answer_acks() == [mid(70)]
    assert ids(bench.hand_over()) == [mid(1), mid(2)]


# -- over HTTP


def over_http() -> EngineBench:
    bench = EngineBench(MemoryStore())
    bench.give(Prefer(Transport.HTTP), Start())
    bench.token()
    return bench


def test_over_http_a_page_is_durable_before_the_next_is_asked_for() -> None:
    bench = over_http()
    bench.page(entry(1), cursor="one", more=True, caught_up=False)
    (asked,) = bench.take(GetPage)
    assert asked.cursor == "one"
    with bench.store.transaction():
        assert bench.store.cursor() == "one"
        assert bench.store.message_state(mid(1)) is MessageState.HELD


def test_over_http_a_poll_waits_once_caught_up() -> None:
    bench = over_http()
    bench.page()
    (asked,) = bench.take(GetPage)
    assert asked.wait_s == bench.settings.poll_wait_s
    assert asked.until is None


def test_over_http_acks_are_posted_and_posted_again_after_a_failure() -> None:
    bench = over_http()
    bench.page(entry(1))
    bench.confirm(*bench.hand_over())
    (post,) = bench.take(PostAck)
    assert post.mids == (mid(1),)
    bench.give(RequestFailed(post.request, MailboxError(ErrorCode.UNAVAILABLE)))
    bench.take(GetPage)
    bench.advance(bench.settings.backoff_cap_ms)
    (post,) = bench.take(PostAck)
    assert post.mids == (mid(1),)


def test_over_http_a_slow_app_stops_the_polling_once_caught_up() -> None:
    bench = over_http()
    for number in range(11):
        bench.page(*[entry(number * 100 + one) for one in range(1, 101)], caught_up=False, more=True)
    bench.page()
    assert bench.take(GetPage) == []
    bench.confirm(*bench.hand_over(200))
    assert len(bench.take(GetPage)) == 1


def test_over_http_own_echoes_are_read_even_if_the_app_is_slow() -> None:
    bench = over_http()
    for number in range(11):
        bench.page(*[entry(number * 100 + one) for one in range(1, 101)], caught_up=False, more=True)
    bench.page()
    bench.submit(cmid(1))
    (post,) = bench.take(PostSend)
    assert bench.take(GetPage) == []
    bench.give(RequestFailed(post.request, MailboxError(ErrorCode.ECHO_BACKLOG_FULL)))
    assert len(bench.take(GetPage)) == 1


def test_an_ack_result_that_nobody_waits_for_changes_nothing() -> None:
    bench = EngineBench()
    bench.live()
    bench.push(entry(1))
    bench.confirm(*bench.hand_over())
    bench.frame(AckResult(404, ("acked",)))
    with bench.store.transaction():
        assert bench.store.acks_owed() == [mid(1)]


def test_what_left_the_servers_window_unseen_fills_no_window_here() -> None:
    """Expiry frees the server's window, and so does an ACK that went another way: of neither we are told."""
    bench = EngineBench(settings=ClientSettings(window_entries=4))
    bench.live()
    bench.push(*(entry(number) for number in range(4)))
    assert bench.frames(Defer) == []
    bench.push(entry(4))  # there is room for it at the server, so one of the others is not in its window any more
    (defer,) = bench.frames(Defer)
    assert set(defer.mids) == {mid(number) for number in range(5)}
    for number in range(5, 500):
        bench.push(entry(number))
        assert len(bench.engine._incoming._window.sizes) <= 4
    assert [mid for defer in bench.frames(Defer) for mid in defer.mids] == [mid(number) for number in range(5, 500)]
    assert len(bench.hand_over(1_000)) == 500


def test_a_refused_ack_beside_an_accepted_one_fills_no_window_here() -> None:
    """An ACK of a connection before this one comes late and frees the server's window; ours is refused meanwhile."""
    bench = EngineBench(settings=ClientSettings(window_entries=2))
    bench.live()
    bench.push(entry(1), entry(2))
    bench.confirm(*bench.hand_over())
    (first,) = bench.frames(Ack)
    bench.push(entry(3), entry(4))
    bench.confirm(*bench.hand_over(1))
    (second,) = bench.frames(Ack)
    bench.frame(Error(ErrorCode.UNAVAILABLE, "no", True, "request", ref=first.ref))
    bench.push(entry(5))
    bench.frame(AckResult(second.ref, ("acked",)))
    assert set(bench.engine._incoming._window.sizes) == {mid(4), mid(5)}
    bench.advance(1_000)
    assert set(bench.answer_acks()) == {mid(1), mid(2)}
