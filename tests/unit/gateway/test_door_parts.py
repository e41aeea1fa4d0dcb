"""The small parts of the WebSocket door: wheel, budget, limits, come-back times, heads, the database's clock."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.byte_budget import ByteBudget
from gateway.come_back import ComeBack
from gateway.connection_limits import ConnectionLimits
from gateway.database_time import DatabaseTime
from gateway.listener import parse_head
from gateway.timer_wheel import TimerWheel
from store.policy_rules import Policy
from tests.support.clock import FakeClock


class TestTimerWheel:
    def test_a_member_comes_out_within_a_second_after_its_time_and_not_before(self) -> None:
        wheel: TimerWheel[str] = TimerWheel(100.5)
        wheel.add("a", 103.2)
        assert list(wheel.due(103.9)) == []
        assert list(wheel.due(104.0)) == ["a"]
        assert list(wheel.due(200.0)) == []

    def test_what_is_overdue_comes_out_at_the_next_look(self) -> None:
        wheel: TimerWheel[str] = TimerWheel(100.0)
        list(wheel.due(150.0))
        wheel.add("late", 20.0)
        assert list(wheel.due(151.0)) == ["late"]

    def test_adding_while_it_is_read_is_allowed(self) -> None:
        wheel: TimerWheel[int] = TimerWheel(0.0)
        wheel.add(1, 0.5)
        seen = []
        for member in wheel.due(3.0):
            seen.append(member)
            if member < 4:
                wheel.add(member + 1, member + 0.5)
        assert seen == [1, 2, 3]
        assert list(wheel.due(4.0)) == [4]

    @given(st.lists(st.tuples(st.floats(0, 50), st.integers()), max_size=30), st.lists(st.floats(0, 5), max_size=40))
    def test_everybody_comes_out_once(self, members: list[tuple[float, int]], steps: list[float]) -> None:
        wheel: TimerWheel[tuple[float, int]] = TimerWheel(0.0)
        for member in members:
            wheel.add(member, member[0])
        now, out = 0.0, []
        for step in [*steps, 100.0]:
            now += step
            for member in wheel.due(now):
                assert member[0] <= now
                out.append(member)
        assert sorted(out) == sorted(members)


class Waiter:
    def __init__(self) -> None:
        self.told = 0

    def budget_free(self) -> None:
        self.told += 1


class TestByteBudget:
    def test_whoever_waits_is_told_once_when_a_quarter_is_free(self) -> None:
        budget, waiter = ByteBudget(1_000), Waiter()
        budget.take(1_001)
        assert budget.exceeded
        budget.wait(waiter)
        budget.wait(waiter)
        budget.give_back(200)
        assert (budget.exceeded, waiter.told) == (False, 0)
        budget.give_back(60)
        assert waiter.told == 1
        budget.give_back(700)
        assert waiter.told == 1

    def test_whoever_left_is_not_told(self) -> None:
        budget, waiter = ByteBudget(1_000), Waiter()
        budget.take(2_000)
        budget.wait(waiter)
        budget.forget(waiter)
        budget.give_back(2_000)
        assert (waiter.told, budget.waiting) == (0, 0)


def limits(clock: FakeClock, policy: Policy, connections_max: int = 10) -> ConnectionLimits:
    return ConnectionLimits(lambda: policy, clock.monotonic, connections_max=connections_max, loopback_exempt=True)


class TestConnectionLimits:
    def test_addresses_are_counted_apart_and_given_back(self, clock: FakeClock) -> None:
        counted = limits(clock, Policy(connections_per_ip=2))
        assert [counted.take_address("a") for _ in range(3)] == [True, True, False]
        assert counted.take_address("b")
        counted.give_back_address("a")
        assert counted.take_address("a")
        assert not counted.take_address("a")
        for _ in range(5):
            counted.give_back_address("never seen")
        assert counted.take_address("never seen")

    def test_zero_is_no_limit_and_loopback_is_exempt(self, clock: FakeClock) -> None:
        assert all(limits(clock, Policy(connections_per_ip=0)).take_address("a") for _ in range(500))
        counted = limits(clock, Policy(connections_per_ip=1))
        assert all(counted.take_address("127.0.0.1") for _ in range(5))

    def test_handshakes_come_at_their_rate_with_one_second_in_hand(self, clock: FakeClock) -> None:
        counted = limits(clock, Policy(handshakes_per_second=10))
        for budget in (counted.upgrades, counted.account_requests):  # each its own
            assert [budget.take() for _ in range(12)] == [True] * 10 + [False] * 2
            clock.move(0.35)
            assert [budget.take() for _ in range(4)] == [True] * 3 + [False]
            clock.move(60)
            assert sum(budget.take() for _ in range(30)) == 10
        assert all(limits(clock, Policy(handshakes_per_second=0)).upgrades.take() for _ in range(100))

    def test_full_and_overrun(self, clock: FakeClock) -> None:
        counted = limits(clock, Policy(), connections_max=1_000)
        counted.connections = 1_000
        assert not counted.full
        counted.opened()
        assert (counted.full, counted.overrun) == (True, False)
        counted.connections = 1_101
        assert counted.overrun


class TestComeBack:
    def test_many_clients_get_slots_at_the_rate_that_is_welcome(self, clock: FakeClock) -> None:
        come_back = ComeBack(clock.monotonic, lambda: 100)
        times = [come_back.after_ms() for _ in range(1_000)]
        assert min(times) >= 500
        assert 10_000 <= max(times) <= 1.5 * (500 + 10_000)
        for second in range(2, 9):
            # Nowhere much more than a second's worth in a second, jitter included.
            assert sum(second * 1_000 <= time < (second + 1) * 1_000 for time in times) <= 130

    def test_a_lone_client_comes_back_soon_and_nobody_waits_beyond_minutes(self, clock: FakeClock) -> None:
        come_back = ComeBack(clock.monotonic, lambda: 1)
        assert come_back.after_ms() <= 2_250
        assert max(come_back.after_ms() for _ in range(2_000)) <= 1.5 * 300_500
        clock.move(1_000)
        assert come_back.after_ms() <= 2_250


class TestDatabaseTime:
    def test_it_goes_on_by_the_monotonic_clock_and_follows_what_it_is_told(self, clock: FakeClock) -> None:
        time = DatabaseTime(clock, 1_000_000)
        clock.move(2.5)
        clock.jump_wall(3_600)
        assert time.now_ms() == 1_002_500
        assert time.monotonic_at(1_004_500) == pytest.approx(clock.monotonic() + 2)
        time.learn(500_000)  # a failover onto a host whose clock is behind
        assert time.now_ms() == 500_000


class TestParseHead:
    def test_names_come_in_lower_case_and_values_without_edges(self) -> None:
        assert parse_head(b"GET /v1/ws HTTP/1.1\r\nHost: x\r\nX-A:\t b c \r\nx-a:2") == [
            ("host", "x"),
            ("x-a", "b c"),
            ("x-a", "2"),
        ]

    def test_what_can_be_read_in_two_ways_is_not_read(self) -> None:
        for head in (
            b"GET /v1/ws HTTP/1.0\r\nHost: x",
            b"GET /v1/ws  HTTP/1.1\r\nHost: x",
            b"GET /v1/ws HTTP/1.1\r\nHost: x\r\n folded",
            b"GET /v1/ws HTTP/1.1\r\nHost : x",
            b"GET /v1/ws HTTP/1.1\r\nHost",
            b"GET /v1/ws HTTP/1.1\r\n: x",
            b"GET /v1/ws HTTP/1.1\r\nHost: x\ny: z",
            b"GET /v1/ws HTTP/1.1\r\nHost: x\x00",
            b"GET /v1/ws\x7f HTTP/1.1\r\nHost: x",
            b"GET /v1/\xff HTTP/1.1\r\nHost: x",
        ):
            assert parse_head(head) is None, head

    def test_a_name_is_made_of_token_characters(self) -> None:
        allowed = {*b"!#$%&'*+.^_`|~-0123456789", *b"abcdefghijklmnopqrstuvwxyz", *b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
        for odd in {*range(256)} - {ord(":")}:
            headers = parse_head(b"GET /v1/ws HTTP/1.1\r\nHost: x\r\nX%cY: z" % odd)
            name = f"x{chr(odd)}y".lower()
            assert headers == ([("host", "x"), (name, "z")] if odd in allowed else None), odd

    def test_a_value_holds_no_control_character(self) -> None:
        allowed = {0x09, *range(0x20, 0x7F), *range(0x80, 0x100)}
        for odd in range(256):
            headers = parse_head(b"GET /v1/ws HTTP/1.1\r\nX: a%cb" % odd)
            assert headers == ([("x", f"a{chr(odd)}b")] if odd in allowed else None), odd

    @given(st.binary(max_size=200))
    def test_any_bytes_are_judged_without_an_error(self, head: bytes) -> None:
        headers = parse_head(b"GET /v1/ws HTTP/1.1\r\n" + head)
        for name, value in headers or ():
            assert re.fullmatch(r"[!#$%&'*+.^_`|~0-9a-z-]+", name), name
            assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value), value

    @given(st.lists(st.tuples(st.text("abAB-_.09!~", min_size=1), st.text("ab \t,;=:\"'/\xe9")), max_size=8))
    def test_what_was_written_is_read(self, fields: list[tuple[str, str]]) -> None:
        head = "GET /v1/ws?x HTTP/1.1" + "".join(f"\r\n{name}:{value}" for name, value in fields)
        assert parse_head(head.encode("latin-1")) == [(name.lower(), value.strip(" \t")) for name, value in fields]
