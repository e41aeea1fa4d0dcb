"""What the fault kit's judge makes of the lines that clients noted."""

from __future__ import annotations

from typing import Any

from loadtest.faults.judge import judge

ALICE, BOB = b"a" * 16, b"b" * 16


class Whose:
    def __init__(self, device: bytes) -> None:
        self.device = device


def offered(number: int) -> tuple[Whose, dict[str, Any]]:
    envelope = (BOB.hex(), mid(number), b"body %d" % number)
    return Whose(ALICE), {"what": "offered", "cmid": cmid(number), "envelopes": [(*envelope[:2], envelope[2].hex())]}


def again(number: int) -> tuple[Whose, dict[str, Any]]:
    return Whose(ALICE), {"what": "again", "cmid": cmid(number), "code": "UNAVAILABLE"}


def accepted(number: int, *, duplicate: bool = False) -> tuple[Whose, dict[str, Any]]:
    results = [(mid(number), 1_000 + number, 9_000)]
    return Whose(ALICE), {"what": "accepted", "cmid": cmid(number), "duplicate": duplicate, "results": results}


def refused(number: int) -> tuple[Whose, dict[str, Any]]:
    return Whose(ALICE), {"what": "refused", "cmid": cmid(number), "refused": [(mid(number), "MAILBOX_FULL")]}


def reconciled() -> tuple[Whose, dict[str, Any]]:
    return Whose(ALICE), {"what": "reconciled"}


def handed(number: int) -> tuple[Whose, dict[str, Any]]:
    return Whose(BOB), {"what": "handed", "mid": mid(number), "content": (b"body %d" % number).hex()}


def mid(number: int) -> str:
    return bytes([number] * 16).hex()


def cmid(number: int) -> str:
    return bytes([100 + number] * 16).hex()


def test_sends_that_arrive_in_another_order_are_told() -> None:
    lines = [offered(1), offered(2), accepted(2), accepted(1), handed(2), handed(1)]
    assert judge(lines).verdict["out_of_order"] == 1


def test_a_send_that_was_refused_for_now_has_its_place_where_it_was_sent_again() -> None:
    """The ones behind it were in flight already, and were not refused."""
    lines = [offered(1), offered(2), again(1), accepted(2), accepted(1), handed(2), handed(1)]
    verdict = judge(lines).verdict
    assert verdict["ok"], verdict
    lines = [offered(1), again(1), offered(2), accepted(2), accepted(1), handed(2), handed(1)]
    assert judge(lines).verdict["out_of_order"] == 1, "what is sent after the repeat stays behind it"


def test_what_was_accepted_and_never_handed_over_is_lost_also_when_it_was_sent_again() -> None:
    assert judge([offered(1), again(1), accepted(1)]).verdict["lost"] == 1


def test_a_send_that_only_its_repeat_in_the_next_connection_stored_lies_behind_what_the_first_one_stored() -> None:
    """The refusal of the first attempt was lost with the connection, in which a later send had been accepted."""
    lines = [offered(1), offered(2), reconciled(), accepted(1), accepted(2, duplicate=True), handed(2), handed(1)]
    verdict = judge(lines).verdict
    assert verdict["ok"], verdict


def test_sends_that_one_connection_stored_keep_their_order_though_their_answers_were_lost() -> None:
    both = [accepted(1, duplicate=True), accepted(2, duplicate=True)]
    lines = [offered(1), offered(2), reconciled(), *both, handed(2), handed(1)]
    assert judge(lines).verdict["out_of_order"] == 1


def test_what_goes_out_again_in_the_next_connection_stays_ahead_of_anything_new() -> None:
    lines = [offered(1), reconciled(), offered(2), accepted(1), accepted(2), handed(2), handed(1)]
    assert judge(lines).verdict["out_of_order"] == 1
    lines = [offered(1), offered(2), reconciled(), accepted(1), accepted(2), handed(2), handed(1)]
    assert judge(lines).verdict["out_of_order"] == 1, "the repeats are stored in their old order"


def test_an_answered_send_is_not_expected_again_by_a_later_connection() -> None:
    lines = [offered(1), accepted(1), offered(2), accepted(2), reconciled(), handed(2), handed(1)]
    assert judge(lines).verdict["out_of_order"] == 1


def test_a_refusal_speaks_of_earlier_attempts_of_unknown_outcome_too() -> None:
    for before in ([again(1)], [reconciled()], [again(1), reconciled()]):
        assert judge([offered(1), *before, refused(1), handed(1)]).verdict["refused_but_stored"] == 1
        assert judge([offered(1), *before, handed(1), refused(1)]).verdict["refused_but_stored"] == 1
        assert judge([offered(1), *before, refused(1)]).verdict["ok"]


def test_a_send_that_waits_for_its_repeat_stays_ahead_of_what_has_not_left_yet() -> None:
    """The later one was offered before the refusal came, and leaves behind the repeat: turns go by the old order."""
    lines = [offered(1), offered(2), again(1), accepted(1), accepted(2), handed(1), handed(2)]
    verdict = judge(lines).verdict
    assert verdict["ok"], verdict
    lines = [offered(1), reconciled(), offered(2), again(1), accepted(1), accepted(2), handed(1), handed(2)]
    verdict = judge(lines).verdict
    assert verdict["ok"], verdict
