"""The history checker finds every kind of broken promise that is planted, and passes every history that is legal."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loadtest.recorder import Attempt, OfferedEnvelope, Recorder, StreamKind

ALICE, BOB = b"A" * 16, b"B" * 16
BODY, OTHER_BODY = b"digest-1", b"digest-2"


def mid(number: int) -> bytes:
    return number.to_bytes(16, "big")


def offer(
    recorder: Recorder, *numbers: int, order: object = "session", to: bytes = BOB, echo: bytes | None = None
) -> Attempt:
    return recorder.offered(ALICE, order, [OfferedEnvelope(to, mid(n), BODY) for n in numbers], echo_cmid=echo)


def accept(recorder: Recorder, attempt: Attempt, *numbers: int, at: int = 1_000, until: int = 9_000) -> None:
    recorder.accepted(attempt, [(mid(n), at, until) for n in numbers])


def send(recorder: Recorder, *numbers: int) -> None:
    for number in numbers:
        accept(recorder, offer(recorder, number), number)


def arrive(recorder: Recorder, *numbers: int, kind: StreamKind = StreamKind.PUSH) -> None:
    stream = recorder.open_stream(BOB, kind)
    for number in numbers:
        recorder.received(stream, mid(number), BODY)


def faults(recorder: Recorder, now_ms: int | None = None) -> dict[str, int]:
    """The faults that were found, by name."""
    verdict = recorder.verdict(now_ms=now_ms)
    names = ("lost", "duplicated", "out_of_order", "unexpected", "corrupted", "refused_but_stored", "wrong_answer")
    found = {name: verdict[name] for name in names if verdict[name]}
    assert verdict["ok"] == (not found)
    return found


def test_a_clean_history_has_no_fault_and_is_counted() -> None:
    recorder = Recorder()
    send(recorder, 1, 2, 3)
    arrive(recorder, 1, 2, 3)
    recorder.acked(BOB, [mid(1), mid(2), mid(3)])
    verdict = recorder.verdict()
    assert faults(recorder) == {}
    assert verdict["accepted_entries"] == verdict["received_entries"] == verdict["acked_entries"] == 3
    assert verdict["examples"] == []


def test_an_accepted_envelope_that_never_arrives_is_lost() -> None:
    recorder = Recorder()
    send(recorder, 1, 2)
    arrive(recorder, 1)
    assert recorder.outstanding() == 1
    assert faults(recorder) == {"lost": 1}
    assert recorder.verdict()["examples"] == [
        {"fault": "lost", "device": BOB[:4].hex(), "mid": "00000000", "detail": "accepted, and never arrived"}
    ]


def test_an_unanswered_send_may_arrive_or_not() -> None:
    recorder = Recorder()
    offer(recorder, 1)
    offer(recorder, 2)
    arrive(recorder, 2)
    assert faults(recorder) == {}


def test_an_expired_envelope_that_never_arrived_is_no_loss() -> None:
    recorder = Recorder()
    accept(recorder, offer(recorder, 1), 1, until=5_000)
    assert faults(recorder, now_ms=4_999) == {"lost": 1}
    assert faults(recorder, now_ms=5_000) == {}
    assert recorder.verdict(now_ms=5_000)["expired_unseen"] == 1


def test_what_waits_for_a_revoked_device_is_no_loss() -> None:
    recorder = Recorder()
    send(recorder, 1)
    recorder.gone(BOB)
    assert recorder.outstanding() == 0
    assert faults(recorder) == {}


@pytest.mark.parametrize("kind", list(StreamKind))
def test_twice_in_one_session_or_walk_is_a_duplicate(kind: StreamKind) -> None:
    recorder = Recorder()
    send(recorder, 1)
    arrive(recorder, 1, 1, kind=kind)
    assert faults(recorder) == {"duplicated": 1}


def test_a_walk_beside_a_session_does_not_hide_a_second_push() -> None:
    recorder = Recorder()
    send(recorder, 1)
    session, walk = recorder.open_stream(BOB), recorder.open_stream(BOB, StreamKind.WALK)
    for stream in (session, walk, session):
        recorder.received(stream, mid(1), BODY)
    assert faults(recorder) == {"duplicated": 1}


def test_unacked_entries_may_come_again_in_the_next_session() -> None:
    recorder = Recorder()
    send(recorder, 1, 2)
    arrive(recorder, 1, 2)
    arrive(recorder, 1, 2)
    assert faults(recorder) == {}
    assert recorder.verdict()["redelivered"] == 2


@pytest.mark.parametrize("settled_kept", [None, 1, 100])
def test_a_session_opened_after_the_answered_ack_may_not_show_the_entry(settled_kept: int | None) -> None:
    recorder = Recorder(settled_kept=settled_kept)
    send(recorder, 1)
    arrive(recorder, 1)
    recorder.acked(BOB, [mid(1)])
    arrive(recorder, 1)
    assert faults(recorder) == {"duplicated": 1}


@pytest.mark.parametrize("settled_kept", [None, 100])
def test_a_walk_that_began_before_the_ack_was_answered_may_still_show_it(settled_kept: int | None) -> None:
    recorder = Recorder(settled_kept=settled_kept)
    send(recorder, 1)
    walk = recorder.open_stream(BOB, StreamKind.WALK)
    arrive(recorder, 1)
    recorder.acked(BOB, [mid(1)])
    recorder.received(walk, mid(1), BODY)
    assert faults(recorder) == {}


def test_a_later_send_before_an_earlier_one_of_the_same_session_is_out_of_order() -> None:
    recorder = Recorder()
    send(recorder, 1, 2, 3)
    arrive(recorder, 1, 3, 2)
    assert faults(recorder) == {"out_of_order": 1}


def test_envelopes_of_one_send_and_of_different_sessions_have_no_order() -> None:
    recorder = Recorder()
    accept(recorder, offer(recorder, 1, 2), 1, 2)
    accept(recorder, offer(recorder, 3, order="another"), 3)
    arrive(recorder, 3, 2, 1)
    assert faults(recorder) == {}


def test_a_repeated_send_may_lie_anywhere_between_its_attempts() -> None:
    recorder = Recorder()
    offer(recorder, 1)  # unanswered
    send(recorder, 2)
    accept(recorder, offer(recorder, 1), 1)
    send(recorder, 3)
    arrive(recorder, 2, 1, 3)
    assert faults(recorder) == {}


def test_a_repeated_send_may_not_lie_behind_what_was_sent_after_its_last_attempt() -> None:
    recorder = Recorder()
    offer(recorder, 1)
    accept(recorder, offer(recorder, 1), 1)
    send(recorder, 3)
    arrive(recorder, 3, 1)
    assert faults(recorder) == {"out_of_order": 1}


def test_two_sessions_of_a_mailbox_must_agree_on_the_order() -> None:
    recorder = Recorder()
    for number in (1, 2, 3):
        accept(recorder, offer(recorder, number, order=number), number)
    arrive(recorder, 1, 2, 3)
    arrive(recorder, 2, 1, 3)
    assert faults(recorder) == {"out_of_order": 1}


def test_what_was_never_sent_is_unexpected() -> None:
    recorder = Recorder()
    arrive(recorder, 7)
    assert faults(recorder) == {"unexpected": 1}


def test_an_envelope_in_the_wrong_mailbox_is_unexpected_and_lost() -> None:
    recorder = Recorder()
    send(recorder, 1)
    recorder.received(recorder.open_stream(ALICE), mid(1), BODY)
    assert faults(recorder) == {"lost": 1, "unexpected": 1}


def test_other_bytes_than_were_sent_are_corruption() -> None:
    recorder = Recorder()
    send(recorder, 1)
    recorder.received(recorder.open_stream(BOB), mid(1), OTHER_BODY)
    assert faults(recorder) == {"corrupted": 1}


@pytest.mark.parametrize("arrives_first", [True, False])
def test_what_was_refused_as_not_committed_may_never_appear(arrives_first: bool) -> None:
    recorder = Recorder()
    attempt = offer(recorder, 1)
    if arrives_first:
        arrive(recorder, 1)
        recorder.refused(attempt, not_committed=True)
    else:
        recorder.refused(attempt, not_committed=True)
        arrive(recorder, 1)
    assert faults(recorder) == {"refused_but_stored": 1}


def test_a_refusal_of_unknown_outcome_leaves_both_ways_open() -> None:
    recorder = Recorder()
    for number in (1, 2):
        recorder.refused(offer(recorder, number), not_committed=False)
    arrive(recorder, 1)
    assert faults(recorder) == {}


def test_after_a_refusal_the_rest_goes_through_and_only_the_rest() -> None:
    recorder = Recorder()
    recorder.refused(offer(recorder, 1, 2), not_committed=True)
    accept(recorder, offer(recorder, 2), 2)
    arrive(recorder, 2)
    assert faults(recorder) == {}
    arrive(recorder, 1)
    assert faults(recorder) == {"refused_but_stored": 1}


def test_an_earlier_unanswered_attempt_keeps_a_refused_repeat_possible() -> None:
    recorder = Recorder()
    offer(recorder, 1)
    recorder.refused(offer(recorder, 1), not_committed=True)
    arrive(recorder, 1)
    assert faults(recorder) == {}


@pytest.mark.parametrize("answer", [(2, 1), (1,), (1, 2, 3)])
def test_results_must_stand_one_for_one_in_the_order_sent(answer: Sequence[int]) -> None:
    recorder = Recorder()
    accept(recorder, offer(recorder, 1, 2), *answer)
    assert faults(recorder)["wrong_answer"] == 1


def test_a_repeat_is_answered_with_the_first_acceptance() -> None:
    recorder = Recorder()
    accept(recorder, offer(recorder, 1), 1, at=1_000)
    accept(recorder, offer(recorder, 1), 1, at=1_000)
    arrive(recorder, 1)
    assert faults(recorder) == {}
    accept(recorder, offer(recorder, 1), 1, at=1_001)
    assert faults(recorder) == {"wrong_answer": 1}


def test_an_echo_is_expected_once_for_an_accepted_send_and_for_no_other() -> None:
    recorder = Recorder()
    cmid, refused_cmid = b"c" * 16, b"r" * 16
    accept(recorder, offer(recorder, 1, echo=cmid), 1)
    recorder.refused(offer(recorder, 2, echo=refused_cmid), not_committed=True)
    arrive(recorder, 1)
    assert faults(recorder) == {"lost": 1}
    own = recorder.open_stream(ALICE)
    recorder.received(own, mid(100), None, cmid)
    assert faults(recorder) == {}
    recorder.acked(ALICE, [mid(100)])
    recorder.received(recorder.open_stream(ALICE), mid(100), None, cmid)
    assert faults(recorder) == {"duplicated": 1}
    recorder.received(own, mid(101), None, refused_cmid)
    assert faults(recorder) == {"duplicated": 1, "refused_but_stored": 1}


def test_the_app_may_be_given_an_entry_again_until_it_confirmed() -> None:
    recorder = Recorder(app_view=True)
    send(recorder, 1)
    recorder.handed_over(BOB, mid(1), BODY)
    recorder.handed_over(BOB, mid(1), BODY)
    assert faults(recorder) == {}
    recorder.confirmed(BOB, mid(1))
    recorder.handed_over(BOB, mid(1), BODY)
    assert faults(recorder) == {"duplicated": 1}


def test_an_entry_that_arrived_and_was_never_handed_over_is_lost_in_the_apps_view() -> None:
    recorder = Recorder(app_view=True)
    send(recorder, 1)
    arrive(recorder, 1)
    assert faults(recorder) == {"lost": 1}
    recorder.handed_over(BOB, mid(1), BODY)
    assert faults(recorder) == {}


def test_the_app_gets_one_senders_mail_in_order_unless_it_deferred() -> None:
    recorder = Recorder(app_view=True)
    send(recorder, 1, 2, 3)
    recorder.deferred(BOB, mid(1))
    for number in (2, 1, 3):
        recorder.handed_over(BOB, mid(number), BODY)
    assert faults(recorder) == {}
    send(recorder, 4, 5)
    for number in (5, 4):
        recorder.handed_over(BOB, mid(number), BODY)
    assert faults(recorder) == {"out_of_order": 1}


def test_handing_over_what_was_never_sent_or_other_bytes_or_refused_is_found() -> None:
    recorder = Recorder(app_view=True)
    recorder.handed_over(BOB, mid(9), BODY)
    send(recorder, 1)
    recorder.handed_over(BOB, mid(1), OTHER_BODY)
    recorder.refused(offer(recorder, 2), not_committed=True)
    recorder.handed_over(BOB, mid(2), BODY)
    assert faults(recorder) == {"unexpected": 1, "corrupted": 1, "refused_but_stored": 1}


def test_a_long_run_keeps_a_bounded_number_of_records() -> None:
    recorder = Recorder(settled_kept=50)
    stream = recorder.open_stream(BOB)
    for number in range(1, 1_001):
        send(recorder, number)
        recorder.received(stream, mid(number), BODY)
        recorder.acked(BOB, [mid(number)])
        assert recorder.entries_kept <= 101
    assert faults(recorder) == {}
    assert recorder.verdict()["acked_entries"] == 1_000


def test_bounded_memory_still_finds_losses_and_late_duplicates() -> None:
    recorder = Recorder(settled_kept=10)
    send(recorder, 10_000)
    for number in range(1, 101):
        send(recorder, number)
        arrive(recorder, number)
        recorder.acked(BOB, [mid(number)])
    arrive(recorder, 99)  # still remembered
    arrive(recorder, 1)  # long forgotten
    assert faults(recorder) == {"lost": 1, "duplicated": 1, "unexpected": 1}


def test_a_settled_send_that_is_repeated_is_not_expected_to_arrive_again() -> None:
    recorder = Recorder(settled_kept=100)
    send(recorder, 1)
    arrive(recorder, 1)
    recorder.acked(BOB, [mid(1)])
    accept(recorder, offer(recorder, 1), 1)
    assert faults(recorder) == {}
    arrive(recorder, 1)
    assert faults(recorder) == {"duplicated": 1}


def test_an_ack_answered_before_the_send_settles_when_the_send_is_answered() -> None:
    recorder = Recorder(settled_kept=100)
    attempt = offer(recorder, 1)
    arrive(recorder, 1)
    recorder.acked(BOB, [mid(1)])
    accept(recorder, attempt, 1)
    assert faults(recorder) == {}
    assert recorder.outstanding() == 0


def test_examples_are_bounded_and_name_no_full_id() -> None:
    recorder = Recorder()
    send(recorder, *range(1, 101))
    verdict = recorder.verdict()
    assert verdict["lost"] == 100
    assert len(verdict["examples"]) == 20
    assert all(len(example["device"]) == len(example["mid"]) == 8 for example in verdict["examples"])
