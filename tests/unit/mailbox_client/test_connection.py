"""The life of the connection: WIRE's table of close codes, backoff, GOAWAY, tokens, heartbeat, sleep, HTTP instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mailbox_client.backoff import full_jitter
from mailbox_client.engine_io import (
    Abandon,
    CloseSocket,
    FetchToken,
    GetPage,
    OpenSocket,
    PostAck,
    PostSend,
    Prefer,
    PutFrame,
    RequestFailed,
    SocketLost,
    SocketOpened,
    Start,
    Stop,
    Tick,
    TokenFailed,
    TokenGiven,
    Woke,
)
from mailbox_client.errors import StopReason
from mailbox_client.events import Connected, Disconnected, SendsRefused, ServerNotice, Stopped, Transport
from mailbox_client.phases import Phase
from mailbox_client.settings import ClientSettings
from protocol.errors import CloseCode, ErrorCode, MailboxError
from protocol.frames import Ack, Error, GoAway, Hello, MailboxBatch, Ping, Pong, PushEvents, Reauth, Send, Welcome
from tests.support.client_values import NOW_MS, cmid, entry, envelope
from tests.support.engine_bench import LIMITS, EngineBench


def waits(bench: EngineBench) -> int:
    """How long the last disconnection makes it wait."""
    disconnected = bench.events(Disconnected)
    assert disconnected, "still connected"
    return disconnected[-1].retry_in_ms


# -- hello


def test_hello_carries_the_durable_cursor_and_a_rising_attempt_of_this_process() -> None:
    bench = EngineBench()
    bench.live()
    (first,) = bench.frames(Hello)
    assert first.cursor is None
    assert first.instance == b"i" * 16
    bench.push(cursor="behind everything")
    bench.lose()
    bench.reopen()
    (second,) = bench.frames(Hello)
    assert second.cursor == "behind everything"
    assert second.instance == first.instance
    assert first.attempt is not None
    assert second.attempt is not None
    assert second.attempt > first.attempt


def test_an_engine_made_anew_in_its_process_goes_on_with_higher_numbers() -> None:
    bench = EngineBench()
    bench.live()
    (before,) = bench.frames(Hello)
    bench.lose_engine()
    bench.live()
    (after,) = bench.frames(Hello)
    assert after.instance == before.instance
    assert (after.attempt or 0) > (before.attempt or 0), "else the server takes it for the older one"


def test_a_socket_that_does_not_open_in_time_is_given_up() -> None:
    bench = EngineBench()
    bench.give(Start())
    bench.token()
    (opened,) = bench.take(OpenSocket)
    bench.advance(bench.settings.open_ms)
    assert bench.take(CloseSocket) == [CloseSocket(opened.socket, at_once=True)]


def test_a_welcome_that_does_not_come_is_not_waited_for_for_ever() -> None:
    bench = EngineBench()
    bench.give(Start())
    bench.token()
    bench.give(SocketOpened(bench.socket))
    bench.advance(bench.settings.welcome_ms)
    assert len(bench.take(CloseSocket)) == 1


def test_what_an_old_socket_says_is_not_heard() -> None:
    bench = EngineBench()
    bench.live()
    old = bench.socket
    bench.lose()
    bench.reopen()
    bench.give(SocketLost(old, CloseCode.REVOKED))
    assert bench.phase is Phase.ONLINE
    bench.give(SocketOpened(old))
    assert bench.frames(Hello) != []
    assert bench.frames(Hello) == []


def test_nothing_but_welcome_error_and_goaway_counts_before_welcome() -> None:
    bench = EngineBench()
    bench.submit(cmid(1))
    bench.give(Start())
    bench.token()
    bench.give(SocketOpened(bench.socket))
    bench.frame(MailboxBatch(None, (entry(1),), "cursor", False, True))
    assert bench.frames(Send) == []
    assert bench.hand_over() == []


# -- close codes


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (CloseCode.REVOKED, StopReason.REVOKED),
        (CloseCode.REPLACED, StopReason.REPLACED),
        (CloseCode.MALFORMED, StopReason.FAULT),
        (CloseCode.TOO_BIG, StopReason.FAULT),
    ],
)
def test_a_final_close_code_stops_it_until_the_app_acts(code: int, reason: StopReason) -> None:
    bench = EngineBench()
    bench.live()
    bench.give(SocketLost(bench.socket, code))
    assert bench.events(Stopped) == [Stopped(reason)]
    assert bench.engine.next_due(bench.now) is None
    bench.give(Woke(), Tick())
    assert bench.take(OpenSocket)[1:] == []
    assert bench.phase is Phase.STOPPED
    bench.give(Start())
    assert bench.phase is not Phase.STOPPED


@pytest.mark.parametrize("code", [None, 1006, CloseCode.SERVER_FAULT, CloseCode.TIMEOUT, CloseCode.TOO_SLOW])
def test_a_lost_connection_comes_back_with_full_jitter_that_grows(code: int | None) -> None:
    longest = EngineBench(random=0.999)
    shortest = EngineBench(random=0.0)
    pauses = []
    for bench in (longest, shortest):
        bench.live()
        bench.give(SocketLost(bench.socket, code))
        first = waits(bench)
        for _ in range(12):
            while bench.phase is not Phase.OPENING:
                bench.token()
                bench._to_next_due()
            bench.give(SocketLost(bench.socket, code, unreachable=True))
        pauses.append((first, waits(bench)))
    settings = longest.settings
    assert pauses == [(int(0.999 * 2 * settings.backoff_base_ms), int(0.999 * settings.backoff_cap_ms)), (0, 0)]


def test_a_connection_that_held_ends_the_backoff() -> None:
    bench = EngineBench(random=0.999)
    bench.live()
    for _ in range(4):
        bench.lose()
        bench.reopen()
    bench.advance(bench.settings.stable_ms)
    bench.events()
    bench.give(SocketLost(bench.socket))
    assert waits(bench) == int(0.999 * 2 * bench.settings.backoff_base_ms)


@pytest.mark.parametrize("code", [CloseCode.RATE_LIMITED, CloseCode.UNAVAILABLE])
def test_a_come_back_time_in_the_close_reason_is_obeyed(code: int) -> None:
    bench = EngineBench()
    bench.live()
    bench.give(SocketLost(bench.socket, code, reconnect_after_ms=12_345))
    assert waits(bench) == 12_345
    bench.take(OpenSocket)
    bench.give(Woke())
    assert bench.take(OpenSocket) == [], "a wake does not overrule the server"
    bench.advance(12_344)
    assert bench.take(OpenSocket) == []
    bench.advance(1)
    assert len(bench.take(OpenSocket)) == 1


def test_an_upgrade_refused_with_retry_after_waits_so_long_and_is_no_reason_for_http() -> None:
    bench = EngineBench()
    bench.give(Start())
    bench.token()
    for _ in range(4):
        bench.give(SocketLost(bench.socket, reconnect_after_ms=5_000, http_status=503))
        assert waits(bench) == 5_000
        bench.advance(5_000)
    assert bench.take(GetPage) == []


def test_a_refused_token_is_replaced_at_once_and_then_with_backoff() -> None:
    bench = EngineBench()
    bench.live()
    bench.give(SocketLost(bench.socket, CloseCode.UNAUTHENTICATED))
    assert waits(bench) == 0
    bench.give(Tick())
    assert len(bench.take(FetchToken)) == 1
    bench.give(TokenGiven(bench.engine._link._token._request or 0, "token", 840_000, bench.server_now))
    bench.give(SocketOpened(bench.socket), SocketLost(bench.socket, CloseCode.UNAUTHENTICATED))
    assert waits(bench) > 0


def test_tokens_that_are_refused_right_after_welcome_lead_to_no_storm() -> None:
    bench = EngineBench(random=0.999)
    bench.live()
    pauses = []
    for _ in range(6):
        bench.give(SocketLost(bench.socket, CloseCode.UNAUTHENTICATED))
        pauses.append(waits(bench))
        bench.reopen()
        bench.push()
    assert pauses[0] == 0
    assert pauses[1:] == sorted(pauses[1:])
    assert pauses[-1] > 10_000
    bench.advance(bench.settings.stable_ms)
    bench.events()
    bench.give(SocketLost(bench.socket, CloseCode.UNAUTHENTICATED))
    assert waits(bench) == 0


# -- GOAWAY


def test_after_goaway_what_is_in_flight_is_finished_and_nothing_new_goes_out() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1), envelope(1))
    (send,) = bench.frames(Send)
    bench.frame(GoAway(7_000, "drain"))
    bench.submit(cmid(2), envelope(2))
    assert bench.frames(Send) == []
    assert bench.take(CloseSocket) == []
    bench.push(entry(1))
    bench.confirm(*bench.hand_over())
    assert len(bench.frames(Ack)) == 1, "ACKs still go: they free the server's memory"
    bench.answer_acks()
    bench.frame(PushEvents(()))
    bench.confirm_send(send)
    assert bench.take(CloseSocket) == [], "the ACK is in flight"
    bench.advance(bench.settings.leave_ms)
    assert bench.take(CloseSocket) == [CloseSocket(bench.socket, at_once=False)]
    assert waits(bench) == 7_000 - bench.settings.leave_ms


def test_with_nothing_in_flight_it_leaves_at_once_and_comes_back_at_its_own_time() -> None:
    bench = EngineBench()
    bench.live()
    bench.take(OpenSocket)
    bench.frame(GoAway(7_000, "drain"))
    assert len(bench.take(CloseSocket)) == 1
    bench.advance(6_999)
    assert bench.take(OpenSocket) == []
    bench.advance(1)
    assert len(bench.take(OpenSocket)) == 1


def test_a_server_that_closes_first_after_goaway_is_come_back_to_at_the_same_time() -> None:
    bench = EngineBench()
    bench.live()
    bench.submit(cmid(1))
    bench.frame(GoAway(7_000, "drain"))
    bench.advance(1_000)
    bench.give(SocketLost(bench.socket, CloseCode.RESTART))
    assert waits(bench) == 6_000


# -- tokens


def test_the_token_is_renewed_ahead_of_time_and_the_session_goes_on() -> None:
    bench = EngineBench(random=0.0)
    bench.live()
    for _ in range(99):
        bench.advance(8_000)
        bench.push()
        if bench.take(FetchToken):
            break
    else:
        pytest.fail("never renewed")
    assert bench.now < 1_000_000 + 840_000 - 55_000, "well before the server says GOAWAY"
    bench.give(TokenGiven(bench.engine._link._token._request or 0, "fresh", 840_000, bench.server_now))
    assert [reauth.token for reauth in bench.frames(Reauth)] == ["fresh"]
    bench.frame(PushEvents(({"kind": "reauthenticated", "reauth_before": bench.server_now + 840_000},)))
    bench.advance(8_000)
    bench.push()
    assert bench.take(FetchToken) == []
    assert bench.take(CloseSocket) == []


def test_a_reauth_soon_is_answered_at_once() -> None:
    bench = EngineBench()
    bench.live()
    bench.take(FetchToken)
    bench.frame(PushEvents(({"kind": "reauth_soon", "before": bench.server_now},)))
    assert len(bench.take(FetchToken)) == 1
    bench.frame(PushEvents(({"kind": "reauth_soon", "before": bench.server_now},)))
    assert bench.take(FetchToken) == []


def test_a_renewal_that_fails_is_tried_again_while_the_session_lives() -> None:
    bench = EngineBench()
    bench.live()
    bench.frame(PushEvents(({"kind": "reauth_soon", "before": bench.server_now},)))
    (fetch,) = bench.take(FetchToken)[-1:]
    bench.give(TokenFailed(fetch.request))
    assert bench.phase is Phase.ONLINE
    bench.advance(5_000)
    assert len(bench.take(FetchToken)) == 1


def test_a_token_that_is_nearly_over_is_not_used_for_a_new_connection() -> None:
    bench = EngineBench()
    bench.give(Start())
    (fetch,) = bench.take(FetchToken)
    bench.give(TokenGiven(fetch.request, "short", 20_000, NOW_MS))
    bench.give(SocketLost(bench.socket, reconnect_after_ms=15_000, http_status=503))
    bench.advance(15_000)
    assert len(bench.take(FetchToken)) == 1


def test_without_an_answer_the_token_is_asked_for_again_with_backoff() -> None:
    bench = EngineBench()
    bench.give(Start())
    (fetch,) = bench.take(FetchToken)
    bench.advance(bench.settings.token_ms)
    assert bench.take(Abandon) == [Abandon(fetch.request)]
    bench.advance(bench.settings.backoff_cap_ms)
    assert len(bench.take(FetchToken)) >= 1


def test_a_device_that_is_revoked_logs_out() -> None:
    bench = EngineBench()
    bench.give(Start())
    (fetch,) = bench.take(FetchToken)
    bench.give(TokenFailed(fetch.request, MailboxError(ErrorCode.DEVICE_REVOKED)))
    assert bench.events(Stopped) == [Stopped(StopReason.REVOKED)]


def test_a_revoked_error_in_the_session_logs_out() -> None:
    bench = EngineBench()
    bench.live()
    bench.frame(Error(ErrorCode.DEVICE_REVOKED, "no", False, "request"))
    assert bench.events(Stopped) == [Stopped(StopReason.REVOKED)]


def test_a_key_that_is_refused_again_and_again_stops_it() -> None:
    bench = EngineBench()
    bench.give(Start())
    for _ in range(3):
        while not (fetched := bench.take(FetchToken)):
            bench._to_next_due()
        bench.give(TokenFailed(fetched[0].request, MailboxError(ErrorCode.UNAUTHENTICATED)))
    assert bench.events(Stopped) == [Stopped(StopReason.NOT_KNOWN)]


def test_another_instance_at_the_address_stops_it() -> None:
    bench = EngineBench()
    bench.give(Start())
    (fetch,) = bench.take(FetchToken)
    bench.give(TokenFailed(fetch.request, stop=StopReason.NOT_KNOWN))
    assert bench.events(Stopped) == [Stopped(StopReason.NOT_KNOWN)]


# -- heartbeat and sleep


def test_silence_is_filled_with_pings_well_within_the_heartbeat() -> None:
    bench = EngineBench()
    bench.live()
    bench.all_frames()
    for _ in range(4):
        bench.advance(28_000)
        (ping,) = bench.frames(Ping)
        bench.frame(Pong(ping.t))
    assert bench.take(CloseSocket) == []


def test_a_ping_without_any_answer_replaces_the_connection() -> None:
    bench = EngineBench()
    bench.live()
    bench.advance(27_000 + bench.settings.pong_ms - 1)
    assert bench.take(CloseSocket) == []
    bench.advance(1)
    assert bench.take(CloseSocket) == [CloseSocket(bench.socket, at_once=True)]


def test_any_frame_proves_the_connection() -> None:
    bench = EngineBench()
    bench.live()
    bench.advance(30_000)
    bench.push(entry(1))
    bench.advance(10_000)
    assert bench.take(CloseSocket) == []


def test_after_sleep_a_ping_proves_the_socket_within_three_seconds_or_replaces_it() -> None:
    bench = EngineBench()
    bench.live()
    bench.all_frames()
    bench.give(Woke())
    assert len(bench.frames(Ping)) == 1
    bench.frame(Pong(1))
    bench.advance(3_000)
    assert bench.take(CloseSocket) == []
    bench.give(Woke())
    bench.advance(2_999)
    assert bench.take(CloseSocket) == []
    bench.advance(1)
    assert bench.take(CloseSocket) == [CloseSocket(bench.socket, at_once=True)]


def test_a_wake_ends_the_backoff() -> None:
    bench = EngineBench(random=0.999)
    bench.live()
    for _ in range(6):
        bench.lose()
        bench.reopen()
    bench.give(SocketLost(bench.socket))
    bench.take(OpenSocket)
    bench.give(Woke())
    assert len(bench.take(OpenSocket)) == 1


def test_a_wake_replaces_a_poll_that_may_hang() -> None:
    bench = EngineBench()
    bench.give(Prefer(Transport.HTTP), Start())
    bench.token()
    bench.page()
    (asked,) = bench.take(GetPage)
    bench.give(Woke())
    assert bench.take(Abandon) == [Abandon(asked.request)]
    assert len(bench.take(GetPage)) == 1


# -- HTTP instead


def blocked(bench: EngineBench) -> None:
    """A proxy lets no upgrade through, as often as it takes."""
    bench.give(Start())
    bench.token()
    for _ in range(bench.settings.socket_failures_max):
        while bench.phase is not Phase.OPENING:
            bench._to_next_due()
        bench.give(SocketLost(bench.socket, http_status=403))
    bench.give(Tick())


def test_where_upgrades_are_refused_it_pulls_over_http() -> None:
    bench = EngineBench()
    blocked(bench)
    bench.page(entry(1))
    assert bench.events(Connected) == [Connected(Transport.HTTP, pending=True)]
    assert len(bench.hand_over()) == 1


def opening_hangs(bench: EngineBench) -> None:
    bench.advance(bench.settings.open_ms)


def hello_is_not_answered(bench: EngineBench) -> None:
    bench.give(SocketOpened(bench.socket))
    bench.advance(bench.settings.welcome_ms)


@pytest.mark.parametrize(
    "spoil",
    [
        opening_hangs,
        hello_is_not_answered,
        lambda bench: bench.give(SocketLost(bench.socket, http_status=403)),
        lambda bench: bench.give(SocketLost(bench.socket, http_status=502)),
        lambda bench: bench.give(SocketLost(bench.socket)),
    ],
    ids=["the opening hangs", "HELLO is not answered", "403", "502", "no WebSocket"],
)
def test_whatever_a_proxy_does_to_websockets_mail_comes_over_http(spoil: Callable[[EngineBench], None]) -> None:
    bench = EngineBench()
    bench.give(Start())
    bench.token()
    for _ in range(bench.settings.socket_failures_max):
        while bench.phase is not Phase.OPENING:
            bench._to_next_due()
        spoil(bench)
    while not bench.take(GetPage):
        bench._to_next_due()
    assert bench.engine._link.transport is Transport.HTTP


def test_a_server_whose_database_stands_still_is_come_back_to_however_long_it_takes() -> None:
    bench = EngineBench(random=0.999)
    bench.give(Start())
    bench.token()
    begun, tries = bench.now, 0
    while bench.now - begun < 600_000:  # nothing is answered: no HELLO, no page, no token
        if bench.phase is Phase.OPENING:
            bench.give(SocketOpened(bench.socket))
        pages = bench.take(GetPage)
        tries += len(bench.take(OpenSocket)) + len(bench.take(FetchToken)) + len(pages)
        for page in pages:
            bench.give(RequestFailed(page.request, None))
        bench._to_next_due()
    assert 5 <= tries <= 100, "it goes on trying, and storms nobody"
    assert bench.events(Stopped) == []
    while bench.phase is not Phase.OPENING:
        for request in bench.take(FetchToken):
            bench.give(TokenGiven(request.request, "token", 840_000, bench.server_now))
        bench.take(GetPage)
        bench._to_next_due()
    bench.give(SocketOpened(bench.socket))
    bench.frame(Welcome("session", bench.server_now, 45, bench.server_now + 840_000, LIMITS, "watermark", False))
    bench.push()
    assert bench.engine.caught_up


def test_an_unreachable_host_is_no_reason_for_http() -> None:
    bench = EngineBench()
    bench.give(Start())
    bench.token()
    for _ in range(5):
        while bench.phase is not Phase.OPENING:
            bench._to_next_due()
        bench.give(SocketLost(bench.socket, unreachable=True))
    assert bench.take(GetPage) == []


def test_it_returns_to_the_websocket_when_that_works_again() -> None:
    bench = EngineBench()
    blocked(bench)
    bench.page()
    bench.take(OpenSocket)
    while not bench.take(OpenSocket):
        bench._to_next_due()
    assert bench.take(Abandon) != [], "one way at a time"
    bench.give(SocketOpened(bench.socket))
    bench.frame(Welcome("session", bench.server_now, 45, bench.server_now + 840_000, LIMITS, "watermark", False))
    bench.push()
    assert bench.events(Connected)[-1] == Connected(Transport.WEBSOCKET, pending=False)


def test_it_does_not_change_over_while_a_send_over_http_is_undecided() -> None:
    bench = EngineBench()
    blocked(bench)
    bench.page()
    bench.take(OpenSocket)
    bench.advance(bench.settings.socket_retry_base_ms - 1_000)
    bench.submit(cmid(1))
    assert len(bench.take(PostSend)) == 1
    bench.advance(5_000)
    assert bench.take(OpenSocket) == []
    due = bench.engine.next_due(bench.now)
    assert due is None or due > bench.now, "it must not spin while it waits"


def test_a_websocket_that_fails_again_leads_straight_back_to_http() -> None:
    bench = EngineBench()
    blocked(bench)
    bench.page()
    bench.take(OpenSocket)
    while not bench.take(OpenSocket):
        bench._to_next_due()
    bench.take(GetPage)
    bench.give(SocketLost(bench.socket, http_status=403))
    bench.give(Tick())
    assert len(bench.take(GetPage)) == 1


def test_a_network_that_is_gone_altogether_is_not_stormed() -> None:
    bench = EngineBench(random=0.999)
    blocked(bench)
    (asked,) = bench.take(GetPage)
    bench.give(RequestFailed(asked.request, MailboxError(ErrorCode.TOKEN_EXPIRED)))
    bench.events()
    pauses = []
    for _ in range(8):
        while not (fetched := bench.take(FetchToken)):
            bench._to_next_due()
        bench.give(TokenFailed(fetched[0].request))
        pauses.append(waits(bench))
    assert pauses == sorted(pauses)
    assert pauses[0] > 0
    assert pauses[-1] > 30_000


def test_a_token_that_ends_under_http_is_replaced() -> None:
    bench = EngineBench()
    blocked(bench)
    bench.page()
    (asked,) = bench.take(GetPage)
    bench.give(RequestFailed(asked.request, MailboxError(ErrorCode.TOKEN_EXPIRED)))
    bench.give(Tick())
    assert len(bench.take(FetchToken)) == 1


def test_a_revoked_device_is_told_over_http_too() -> None:
    bench = EngineBench()
    blocked(bench)
    (asked,) = bench.take(GetPage)
    bench.give(RequestFailed(asked.request, MailboxError(ErrorCode.DEVICE_REVOKED)))
    assert bench.events(Stopped) == [Stopped(StopReason.REVOKED)]


def test_an_app_may_choose_the_transport() -> None:
    bench = EngineBench()
    bench.live()
    bench.take(OpenSocket)
    bench.give(Prefer(Transport.HTTP))
    assert len(bench.take(CloseSocket)) == 1
    bench.page()
    bench.give(Prefer(None))
    bench.take(GetPage)
    bench.give(Prefer(Transport.WEBSOCKET))
    assert len(bench.take(OpenSocket)) == 1


# -- the end


def test_a_stop_closes_in_good_order_and_nothing_follows() -> None:
    bench = EngineBench()
    bench.live()
    bench.outputs.clear()
    bench.give(Stop())
    assert bench.take(CloseSocket) == [CloseSocket(bench.socket, at_once=False)]
    assert bench.events(Stopped) == [Stopped(StopReason.CLOSED)]
    bench.give(Tick(), Stop())
    assert bench.take(PutFrame) == []
    assert bench.take(PostAck) == []
    assert bench.engine.next_due(bench.now) is None


def test_notices_of_the_server_reach_the_app_and_unknown_ones_are_passed_over() -> None:
    bench = EngineBench()
    bench.live()
    bench.events()
    bench.frame(
        PushEvents(
            (
                {"kind": "prekeys_low", "left": 3},
                {"kind": "of a later version", "x": 1},
                {"kind": "push_route_gone"},
                {"kind": "mailbox_filling"},
            )
        )
    )
    assert bench.events(ServerNotice) == [
        ServerNotice("prekeys_low", 3),
        ServerNotice("push_route_gone"),
        ServerNotice("mailbox_filling"),
    ]


def test_full_jitter_is_a_uniform_share_of_a_bounded_exponential() -> None:
    assert full_jitter(500, 60_000, 1, 0.5) == 500
    assert full_jitter(500, 60_000, 1, 0.0) == 0
    assert full_jitter(500, 60_000, 99, 0.5) == 30_000


def test_a_send_larger_than_the_servers_frames_is_refused_here_and_costs_no_connection() -> None:
    bench = EngineBench(settings=ClientSettings())
    bench.open()
    bench.push()
    bench.engine._link.welcome = bench.engine._link.welcome._replace(limits=LIMITS._replace(max_frame_bytes=1_000))  # type: ignore[union-attr]
    bench.submit(cmid(1), envelope(1, body=bytes(2_000)))
    assert bench.frames(Send) == []
    (refused,) = bench.events(SendsRefused)
    assert [one.code for one in refused.refused] == ["REQUEST_TOO_LARGE"]
    assert bench.phase is Phase.ONLINE
