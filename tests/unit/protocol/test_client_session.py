"""The client's mirror: what it may send, and a server that breaks the contract is noticed."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.client_session import ClientPhase, ClientSession, ContractBroken
from protocol.errors import ErrorCode
from protocol.frames import (
    Ack,
    AckResult,
    ClientFrame,
    Defer,
    Entry,
    Error,
    GoAway,
    Hello,
    MailboxBatch,
    Ping,
    Pong,
    PullMailbox,
    PushEvents,
    Send,
    SendAck,
    SendEnvelope,
    SendResult,
    ServerFrame,
    Welcome,
)
from protocol.limits import WireLimits

ID: Any = b"i" * 16
OTHER: Any = b"o" * 16
WELCOME = Welcome("s", 0, 45, 0, WireLimits(4_194_304, 65_536, 60, 1, 2), "w", False)
SEND = Send(ID, (SendEnvelope(ID, ID, 1, b""), SendEnvelope(ID, OTHER, 1, b"")))
RESULTS = (SendResult(ID, 1, 2), SendResult(OTHER, 1, 2))


def live(window_entries: int = 256) -> ClientSession:
    session = ClientSession(opened_at=0.0)
    session.sending(Hello("token", window_entries=window_entries), 30, 0.0)
    session.receive(WELCOME, 1.0)
    return session


def batch(*mids: Any, caught_up: bool = True, ref: int | None = None) -> MailboxBatch:
    return MailboxBatch(ref, tuple(Entry(mid, 1, b"12345", 1, 2) for mid in mids), "cursor", False, caught_up)


def test_hello_comes_first_and_once() -> None:
    with pytest.raises(ContractBroken):
        ClientSession(opened_at=0.0).sending(Ping(1), 5, 0.0)
    with pytest.raises(ContractBroken):
        live().sending(Hello("token"), 5, 0.0)


def test_nothing_may_be_sent_before_welcome_told_the_limits() -> None:
    session = ClientSession(opened_at=0.0)
    session.sending(Hello("token"), 30, 0.0)
    assert not session.may_send(1)
    session.receive(WELCOME, 1.0)
    assert session.may_send(1)


def test_the_limits_in_flight_are_kept_and_freed_by_either_answer() -> None:
    session = live()
    session.sending(SEND, 8 * 1_048_576, 1.0)
    assert not session.may_send(1)
    session.receive(SendAck(ID, False, RESULTS), 2.0)
    assert session.may_send(1)
    session.sending(SEND, 8 * 1_048_576, 1.0)
    session.receive(Error(ErrorCode.MAILBOX_FULL, "full", True, "r", cmid=ID, at=(1,)), 2.0)
    assert session.may_send(1)


@pytest.mark.parametrize(
    "frame",
    [
        SendAck(OTHER, False, RESULTS),
        SendAck(ID, False, RESULTS[:1]),
        SendAck(ID, False, RESULTS[::-1]),
        AckResult(1, ("acked",)),
        AckResult(7, ("acked",)),
        AckResult(7, ("gone", "acked")),
        batch(ID, ref=1),
        batch(ID, OTHER, ref=8),
        Error(ErrorCode.MAILBOX_FULL, "full", True, "r", cmid=ID, at=(2,)),
        Error(ErrorCode.MAILBOX_FULL, "full", True, "r", cmid=OTHER),
        Error(ErrorCode.CURSOR_INVALID, "bad", False, "r", ref=1),
        WELCOME,
        batch(caught_up=False),
    ],
)
def test_an_answer_that_fits_no_question_is_a_broken_contract(frame: ServerFrame) -> None:
    session = live()
    session.sending(SEND, 10, 1.0)
    session.sending(Ack(7, (ID, OTHER)), 10, 1.0)
    session.sending(PullMailbox(8, limit=1), 10, 1.0)
    with pytest.raises(ContractBroken):
        session.receive(frame, 2.0)


def test_answers_may_come_in_any_order() -> None:
    session = live()
    questions: list[ClientFrame] = [SEND, Ack(7, (ID, OTHER)), PullMailbox(8, limit=1), PullMailbox(9)]
    for question in questions:
        session.sending(question, 10, 1.0)
    answers: list[ServerFrame] = [
        Error(ErrorCode.CURSOR_INVALID, "bad", False, "r", ref=9),
        batch(ID, ref=8),
        Pong(1),
        PushEvents(({"kind": "later"},)),
        AckResult(7, ("acked", "acked")),
        SendAck(ID, True, RESULTS),
    ]
    for answer in answers:
        session.receive(answer, 2.0)
    assert session.may_send(8 * 1_048_576)


def test_an_entry_pushed_twice_is_noticed_and_one_freed_by_defer_is_not() -> None:
    session = live()
    session.receive(batch(ID), 1.0)
    with pytest.raises(ContractBroken):
        session.receive(batch(ID), 1.0)
    session.sending(Defer((ID,)), 10, 1.0)
    session.receive(batch(OTHER), 1.0)
    assert session.cursor == "cursor"


def test_caught_up_is_said_once_without_entries_and_never_taken_back() -> None:
    session = live()
    session.receive(batch(ID, caught_up=False), 1.0)
    caught_up = [session.caught_up]
    session.receive(batch(), 1.0)
    assert [*caught_up, session.caught_up] == [False, True]
    for frame in (batch(), batch(OTHER, caught_up=False)):
        with pytest.raises(ContractBroken):
            session.receive(frame, 1.0)


def test_a_window_that_is_overrun_is_noticed() -> None:
    session = live(window_entries=1)
    session.receive(batch(ID), 1.0)
    assert not session.window_overrun
    session.receive(batch(OTHER), 1.0)
    assert session.window_overrun


def test_nothing_but_errors_and_goaway_may_come_before_welcome() -> None:
    session = ClientSession(opened_at=0.0)
    session.sending(Hello("token"), 30, 0.0)
    session.receive(GoAway(1_000, "draining"), 1.0)
    session.receive(Error(ErrorCode.UNAVAILABLE, "draining", True, "r"), 1.0)
    with pytest.raises(ContractBroken):
        session.receive(batch(), 1.0)


def test_goaway_is_remembered_and_answers_still_come() -> None:
    session = live()
    session.sending(SEND, 10, 1.0)
    session.receive(GoAway(1_000, "draining"), 1.0)
    assert session.phase is ClientPhase.LEAVING
    assert session.goaway == GoAway(1_000, "draining")
    session.receive(SendAck(ID, False, RESULTS), 2.0)


def test_a_ref_or_cmid_in_flight_is_not_used_again() -> None:
    session = live()
    session.sending(SEND, 10, 1.0)
    session.sending(Ack(7, (ID,)), 10, 1.0)
    for frame in (SEND, Ack(7, (ID,)), PullMailbox(7)):
        with pytest.raises(ContractBroken):
            session.sending(frame, 10, 1.0)


def test_the_heartbeat_is_the_servers_and_a_silent_server_is_given_up() -> None:
    session = ClientSession(opened_at=0.0)
    assert (session.ping_at(), session.given_up_at()) == (None, None)
    session = live()
    session.sending(Ping(1), 5, 10.0)
    session.receive(Pong(1), 12.0)
    assert (session.ping_at(), session.given_up_at()) == (55.0, 107.0)
