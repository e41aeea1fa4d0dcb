"""What a client may do now, and when the server must act (WIRE, "WebSocket")."""

from __future__ import annotations

import json
import timeit
from typing import Any

import pytest

from protocol.errors import CloseCode, ErrorCode, MailboxError
from protocol.frames import Ack, ClientFrame, Defer, Hello, Ping, PullMailbox, Reauth, Send
from protocol.limits import BYTES_IN_FLIGHT_MAX, SENDS_IN_FLIGHT_MAX
from protocol.server_session import (
    ACKS_IN_FLIGHT_MAX,
    PULLS_IN_FLIGHT_MAX,
    Close,
    Due,
    DueKind,
    Phase,
    ServerSession,
    come_back_reason,
)

ID: Any = b"i" * 16
SEND = Send(ID, ())
MIB = 1_048_576


def opened() -> ServerSession:
    return ServerSession(opened_at=0.0, heartbeat_s=45)


def greeted() -> ServerSession:
    session = opened()
    session.receive(Hello("token", window_entries=2), 30, 1.0)
    return session


def live(token_ends_at: float = 900.0) -> ServerSession:
    session = greeted()
    session.welcome(start=0, head=0, pending=False, token_ends_at=token_ends_at, reauth_at=token_ends_at - 60)
    return session


def code_of(session: ServerSession, frame: ClientFrame, now: float = 1.0) -> ErrorCode:
    with pytest.raises(MailboxError) as caught:
        session.receive(frame, 10, now)
    return caught.value.code


@pytest.mark.parametrize("frame", [SEND, Ack(1, (ID,)), PullMailbox(1), Defer((ID,)), Reauth("t"), Ping(1)])
def test_nothing_is_served_before_hello(frame: ClientFrame) -> None:
    session = opened()
    assert not session.hello_seen
    assert code_of(session, frame) is ErrorCode.BAD_FRAME
    assert code_of(greeted(), frame) is ErrorCode.BAD_FRAME


def test_frames_that_come_right_behind_hello_wait_for_welcome() -> None:
    session = opened()
    assert session.may_serve(100)
    session.receive(Hello("token"), 30, 1.0)
    assert session.hello_seen
    assert not session.may_serve(100)
    session.welcome(start=0, head=0, pending=False, token_ends_at=900, reauth_at=840)
    assert session.may_serve(100)


def test_a_second_hello_is_malformed() -> None:
    for session in (greeted(), live()):
        assert code_of(session, Hello("token")) is ErrorCode.BAD_FRAME


def test_welcome_takes_the_window_of_hello_and_forgets_its_token() -> None:
    session = greeted()
    given = session.hello
    assert given == Hello("token", window_entries=2)
    session.welcome(start=0, head=9, pending=True, token_ends_at=900, reauth_at=840)
    assert session.hello is None
    plan = session.read_wanted()
    assert plan is not None
    assert plan.entries_max == 2 + 1


def test_sends_beyond_the_count_in_flight_wait_in_the_socket() -> None:
    session = live()
    for _ in range(SENDS_IN_FLIGHT_MAX):
        assert session.may_serve(10)
        session.receive(SEND, 10, 1.0)
    assert not session.may_serve(10)
    session.send_answered(10)
    assert session.may_serve(10)


def test_sends_beyond_the_bytes_in_flight_wait_in_the_socket_and_one_always_goes() -> None:
    session = live()
    assert session.may_serve(2 * BYTES_IN_FLIGHT_MAX)
    session.receive(SEND, 4 * MIB, 1.0)
    assert session.may_serve(4 * MIB)
    session.receive(SEND, 4 * MIB, 1.0)
    assert not session.may_serve(1)
    session.send_answered(4 * MIB)
    assert session.may_serve(4 * MIB)
    assert not session.may_serve(4 * MIB + 1)


def test_acks_and_pulls_in_flight_are_bounded_too() -> None:
    session = live()
    for _ in range(PULLS_IN_FLIGHT_MAX):
        session.receive(PullMailbox(1), 10, 1.0)
    assert not session.may_serve(10)
    session.pull_answered()
    for _ in range(ACKS_IN_FLIGHT_MAX):
        assert session.may_serve(10)
        session.receive(Ack(1, (ID,)), 10, 1.0)
    assert not session.may_serve(10)
    session.ack_answered()
    assert session.may_serve(10)
    assert session.in_flight == ACKS_IN_FLIGHT_MAX - 1 + PULLS_IN_FLIGHT_MAX - 1


@pytest.mark.parametrize("frame", [Ack(1, (ID,)), Defer((ID,))])
def test_ack_and_defer_free_the_window(frame: ClientFrame) -> None:
    session = live()
    assert session.offer(1, 0, ID, 10, 2**50)
    assert session.unacked_entries == 1
    session.receive(frame, 10, 1.0)
    assert session.unacked_entries == 0


def test_no_frame_is_served_past_the_tokens_end_and_reauth_continues_it() -> None:
    session = live(token_ends_at=100)
    session.receive(Ping(1), 10, 99.9)
    assert code_of(session, Ping(1), now=100.0) is ErrorCode.TOKEN_EXPIRED
    assert code_of(session, Reauth("t"), now=100.0) is ErrorCode.TOKEN_EXPIRED
    session.reauthenticated(token_ends_at=1_000, reauth_at=940)
    session.receive(Ping(1), 10, 100.0)


def test_hello_is_due_within_ten_seconds() -> None:
    session = opened()
    assert session.next_deadline() == 10.0
    assert session.due(9.9) is None
    assert session.due(10.0) == Due(DueKind.CLOSE, Close(CloseCode.TIMEOUT, "no HELLO in time"))


def test_a_hello_that_nobody_could_judge_within_ten_seconds_is_answered_all_the_same() -> None:
    session = greeted()  # at 1.0
    assert session.next_deadline() == 11.0
    assert session.due(10.9) is None
    assert session.due(11.0) == Due(DueKind.UNJUDGED)
    assert live().due(11.0) is None


def test_an_idle_client_is_pinged_and_a_silent_one_closed_after_two_heartbeats_and_five_seconds() -> None:
    session = live()
    session.heard_at = 10.0
    assert session.next_deadline() == 55.0
    assert session.due(54.9) is None
    assert session.due(55.0) == Due(DueKind.PING)
    assert session.due(55.0) is None
    assert session.due(100.0) == Due(DueKind.PING)
    assert session.due(104.9) is None
    due = session.due(105.0)
    assert due is not None
    assert due.close is not None
    assert due.close.code == CloseCode.TIMEOUT


def test_a_sign_of_life_puts_the_deadlines_off() -> None:
    session = live()
    session.heard_at = 100.0
    assert session.due(140.0) is None
    assert session.next_deadline() == 145.0


def test_reauth_is_asked_for_once_per_token_and_the_connection_ends_with_it() -> None:
    session = live(token_ends_at=100)
    session.heard_at = 39.0
    assert session.due(39.9) is None
    assert session.due(40.0) == Due(DueKind.REAUTH_SOON)
    assert session.due(41.0) is None
    session.reauthenticated(token_ends_at=200, reauth_at=140)
    session.heard_at = 139.0
    assert session.due(100.0) is None
    assert session.due(140.0) == Due(DueKind.REAUTH_SOON)
    assert session.next_deadline() <= 200
    due = session.due(200.0)
    assert due is not None
    assert due.close is not None
    assert due.close.code == CloseCode.UNAUTHENTICATED


def test_a_malformed_frame_closes_at_any_time_and_a_refused_one_never() -> None:
    malformed = MailboxError(ErrorCode.BAD_FRAME)
    for session in (opened(), greeted(), live()):
        close = session.close_for(malformed)
        assert close is not None
        assert (close.code, close.error) == (CloseCode.MALFORMED, malformed)
    goes_on = set(ErrorCode) - {ErrorCode.BAD_FRAME, ErrorCode.TOKEN_EXPIRED}
    assert all(live().close_for(MailboxError(code)) is None for code in goes_on)


@pytest.mark.parametrize(
    ("code", "close_code"),
    [
        (ErrorCode.UNAUTHENTICATED, CloseCode.UNAUTHENTICATED),
        (ErrorCode.TOKEN_EXPIRED, CloseCode.UNAUTHENTICATED),
        (ErrorCode.DEVICE_REVOKED, CloseCode.REVOKED),
        (ErrorCode.RATE_LIMITED, CloseCode.RATE_LIMITED),
        (ErrorCode.UNAVAILABLE, CloseCode.UNAVAILABLE),
        (ErrorCode.INTERNAL, CloseCode.SERVER_FAULT),
    ],
)
def test_a_refused_hello_closes_with_the_code_of_the_contract(code: ErrorCode, close_code: int) -> None:
    close = greeted().close_for(MailboxError(code), 2_500)
    assert close is not None
    assert close.code == close_code
    if close_code in (CloseCode.RATE_LIMITED, CloseCode.UNAVAILABLE):
        assert json.loads(close.reason) == {"reconnect_after_ms": 2_500}


def test_a_close_reason_fits_a_close_frame() -> None:
    assert len(come_back_reason(10**9)) <= 123


def test_a_leaving_session_still_serves_and_delivers() -> None:
    session = live()
    session.leaving()
    assert session.phase is Phase.LEAVING
    session.receive(SEND, 10, 1.0)
    assert session.may_serve(10)
    session.hint(5)
    assert session.read_wanted() is not None


def test_a_closed_session_does_nothing() -> None:
    session = live()
    session.hint(5)
    session.closed()
    assert not session.may_serve(1)
    assert session.read_wanted() is None
    assert session.due(10_000.0) is None
    assert code_of(session, Ping(1)) is ErrorCode.BAD_FRAME


def test_a_pull_is_caught_up_by_its_own_cursor_against_the_watermark() -> None:
    session = greeted()
    session.welcome(start=0, head=50, pending=True, token_ends_at=900, reauth_at=840)
    assert [session.pull_caught_up(position) for position in (49, 50, 51)] == [False, True, True]


def test_welcome_without_hello_is_a_bug() -> None:
    with pytest.raises(RuntimeError):
        opened().welcome(start=0, head=0, pending=False, token_ends_at=1, reauth_at=1)


def test_a_message_costs_the_session_microseconds() -> None:
    session = live()
    session.read_started()
    session.read_finished([], 0, False)
    ack = Ack(1, (ID,))

    def cycle() -> None:
        position = session.sent
        session.receive(SEND, 1_100, 1.0)
        session.send_answered(1_100)
        session.offer(position + 1, position, ID, 1_024, 2**50)
        session.take_batch()
        session.receive(ack, 30, 1.0)
        session.ack_answered()

    assert min(timeit.repeat(cycle, number=1_000, repeat=5)) / 1_000 < 15e-6
