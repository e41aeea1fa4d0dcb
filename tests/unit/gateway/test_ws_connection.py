"""One connection on a transport that a test holds: whole messages whatever the chunks, backpressure, endings."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.byte_budget import ByteBudget
from gateway.flush_queue import PATIENCE_S, PATIENT_FEW, FlushQueue
from gateway.ws_connection import CLOSING_S, WRITE_HIGH_BYTES, WsConnection
from protocol.limits import SLOW_CONSUMER_S
from tests.support.raw_client import BINARY, CLOSE, CONTINUATION, PING, TEXT, ws_frame


class HeldTransport(asyncio.Transport):
    """Keeps what is written; a test says when the peer takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.waiting = 0  # bytes that the peer has not taken
        self.reading = True
        self.eof = False
        self.closing = False
        self.aborted = False

    def write(self, data: Any) -> None:
        self.sent += data

    def writelines(self, chunks: Any) -> None:
        self.sent += b"".join(chunks)

    def write_eof(self) -> None:
        self.eof = True

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing or self.aborted

    def abort(self) -> None:
        self.aborted = True


class Recorder:
    """A session that takes what it may."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.message_bytes_max = 100_000
        self.takes = True
        self.texts = 0
        self.writables = 0
        self.ended = 0
        self.checks: list[float] = []
        self.on_message: Any = None

    def take(self, data: bytes) -> bool:
        if not self.takes:
            return False
        self.messages.append(data)
        if self.on_message is not None:
            self.on_message(data)
        return True

    def text_message(self) -> None:
        self.texts += 1

    def written(self, check_at: float) -> None:
        self.checks.append(check_at)

    def writable(self) -> None:
        self.writables += 1

    def lost(self) -> None:
        self.ended += 1


class Bench:
    """A connection and everything around it, without a loop."""

    def __init__(self, budget: int = 1_000_000) -> None:
        self.now = 100.0
        self.soon: list[Any] = []
        self.later: list[tuple[float, Any]] = []
        self.budget = ByteBudget(budget)
        self.flush_queue = FlushQueue(self, lambda: self.now)  # type: ignore[arg-type]
        self.session = Recorder()
        self.gone = 0
        self.connection, self.transport = self.connect(self.session)

    def connect(self, session: Recorder) -> tuple[WsConnection, HeldTransport]:
        """One more connection on the same queue."""
        connection, transport = (
            WsConnection(self.flush_queue, self.budget, "192.0.2.1", self._gone),
            HeldTransport(),
        )
        connection.start(transport, session, self.now)
        return connection, transport

    def call_soon(self, callback: Any) -> None:
        self.soon.append(callback)

    def call_later(self, seconds: float, callback: Any) -> None:
        self.later.append((self.now + seconds, callback))

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()

    def _gone(self, _connection: WsConnection) -> None:
        self.gone += 1

    def receive(self, data: bytes) -> None:
        self.connection.data_received(data)

    @property
    def close_code(self) -> int | None:
        """Of the close frame at the end of what was sent."""
        at = self.transport.sent.rfind(b"\x88")
        return struct.unpack("!H", self.transport.sent[at + 2 : at + 4])[0] if at >= 0 else None


MESSAGES = st.lists(st.tuples(st.binary(max_size=400), st.integers(1, 4), st.booleans()), min_size=1, max_size=6)


def wire(messages: list[tuple[bytes, int, bool]]) -> bytes:
    """Messages in so many fragments, with a ping between fragments where asked."""
    out = b""
    for body, pieces, pinged in messages:
        step = max(1, -(-len(body) // pieces))
        parts = [body[at : at + step] for at in range(0, len(body), step)] or [b""]
        for n, part in enumerate(parts):
            out += ws_frame(part, BINARY if n == 0 else CONTINUATION, fin=n == len(parts) - 1)
            if pinged:
                out += ws_frame(b"p", PING)
    return out


@settings(max_examples=200)
@given(MESSAGES, st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_messages_come_whole_and_in_order_whatever_the_chunks(
    messages: list[tuple[bytes, int, bool]], cuts: list[int]
) -> None:
    bench = Bench()
    data = wire(messages)
    at, n = 0, 0
    while at < len(data):
        step = cuts[n % len(cuts)]
        bench.receive(data[at : at + step])
        at, n = at + step, n + 1
    assert bench.session.messages == [body for body, _, _ in messages]
    assert bench.connection.is_open
    assert bench.budget.used == 0
    assert bench.connection._library is None  # an idle connection holds next to nothing


@settings(max_examples=200)
@given(st.binary(max_size=300), st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_any_bytes_end_in_messages_or_in_a_close_frame(data: bytes, cuts: list[int]) -> None:
    bench = Bench()
    at, n = 0, 0
    while at < len(data):
        step = cuts[n % len(cuts)]
        bench.receive(data[at : at + step])
        at, n = at + step, n + 1
    assert bench.connection.is_open or bench.close_code is not None
    assert bench.close_code in (None, 1002, 1007, 1009, *range(1000, 5000))
    bench.connection.connection_lost(None)
    assert bench.budget.used == 0
    assert bench.gone == 1
    assert bench.session.ended == 1


class TestSending:
    def test_everything_of_one_turn_goes_out_in_one_write(self) -> None:
        bench = Bench()
        writes: list[bytes] = []
        bench.transport.write = writes.append  # type: ignore[method-assign]
        for message in (b"one", b"two", b"x" * 200):
            bench.connection.send(message)
        assert writes == []
        bench.turn()
        assert writes == [b"\x82\x03one\x82\x03two\x82\x7e\x00\xc8" + b"x" * 200]

    def test_nothing_is_sent_after_the_close_frame(self) -> None:
        bench = Bench()
        bench.connection.send(b"before")
        bench.connection.close(1012, "restart")
        bench.connection.send(b"after")
        bench.turn()
        assert bench.transport.sent == b"\x82\x06before" + b"\x88\x09" + struct.pack("!H", 1012) + b"restart"

    def test_a_client_that_takes_nothing_is_read_no_more_and_is_too_slow_after_thirty_seconds(self) -> None:
        bench = Bench()
        bench.connection.send(b"x" * 100_000)
        bench.transport.waiting = 100_000
        bench.turn()
        bench.connection.pause_writing()
        assert not bench.transport.reading
        assert not bench.connection.has_room
        assert bench.session.checks  # somebody will look
        code, again = bench.connection.check(bench.now + 5)
        assert (code, again) == (0, bench.now + 10)
        bench.transport.waiting = 99_999  # one byte was taken
        assert bench.connection.check(bench.now + 20)[0] == 0
        assert bench.connection.check(bench.now + 20 + SLOW_CONSUMER_S - 1)[0] == 0
        assert bench.connection.check(bench.now + 20 + SLOW_CONSUMER_S)[0] == 4413

    def test_a_client_that_reads_again_is_read_again(self) -> None:
        bench = Bench()
        bench.transport.waiting = WRITE_HIGH_BYTES
        bench.connection.pause_writing()
        bench.transport.waiting = 0
        bench.now += 60
        bench.connection.resume_writing()
        assert bench.transport.reading
        assert bench.session.writables == 1
        assert bench.connection.heard_at == bench.now  # it was not silent: we did not listen
        assert bench.connection.check(bench.now)[0] == 0


class TestPatience:
    def crowd(self, bench: Bench, count: int) -> list[tuple[WsConnection, HeldTransport]]:
        """So many connections with an answer that nobody waits for."""
        crowd = [bench.connect(Recorder()) for _ in range(count)]
        for connection, _ in crowd:
            connection.send_patiently(b"p")
        return crowd

    def test_the_answers_of_a_few_leave_at_the_end_of_the_turn(self) -> None:
        bench = Bench()
        crowd = self.crowd(bench, PATIENT_FEW - 1)
        assert not any(transport.sent for _, transport in crowd)
        bench.turn()
        assert all(transport.sent == b"\x82\x01p" for _, transport in crowd)
        assert not bench.later

    def test_those_of_many_leave_with_what_is_said_next_in_one_write(self) -> None:
        bench = Bench()
        crowd = self.crowd(bench, PATIENT_FEW)
        bench.turn()
        assert not any(transport.sent for _, transport in crowd)
        (connection, transport), *others = crowd
        writes: list[bytes] = []
        transport.write = writes.append  # type: ignore[method-assign]
        connection.send(b"next")
        bench.turn()
        assert writes == [b"\x82\x01p\x82\x04next"]
        assert not any(transport.sent for _, transport in others)

    def test_those_of_many_leave_within_the_time_whatever_comes(self) -> None:
        bench = Bench()
        crowd = self.crowd(bench, PATIENT_FEW)
        bench.turn()
        crowd += self.crowd(bench, PATIENT_FEW)
        bench.turn()
        ((at, time_is_up),) = bench.later  # one timer for all of them
        assert at == bench.now + PATIENCE_S
        time_is_up()
        assert all(transport.sent == b"\x82\x01p" for _, transport in crowd)
        self.crowd(bench, PATIENT_FEW)
        bench.turn()
        assert len(bench.later) == 2

    def test_they_leave_before_the_close_frame(self) -> None:
        bench = Bench()
        (connection, transport), *_ = self.crowd(bench, PATIENT_FEW)
        connection.close(1012)
        assert transport.sent == b"\x82\x01p" + b"\x88\x02" + struct.pack("!H", 1012)

    def test_what_is_waited_for_and_said_first_takes_them_along(self) -> None:
        bench = Bench()
        writes: list[bytes] = []
        bench.transport.write = writes.append  # type: ignore[method-assign]
        bench.connection.send(b"now")
        bench.connection.send_patiently(b"p")
        bench.turn()
        assert writes == [b"\x82\x03now\x82\x01p"]
        bench.turn()
        assert len(writes) == 1


class TestHoldingBack:
    def test_what_the_session_does_not_take_waits_in_order_and_reading_stops(self) -> None:
        bench = Bench()
        bench.session.takes = False
        bench.receive(ws_frame(b"1") + ws_frame(b"2") + ws_frame(b"3"))
        assert bench.session.messages == []
        assert not bench.transport.reading
        assert bench.connection.held_back
        assert bench.budget.used == 3
        bench.session.takes = True
        bench.connection.go_on()
        assert bench.session.messages == [b"1", b"2", b"3"]
        assert bench.transport.reading
        assert bench.budget.used == 0

    def test_it_stops_again_where_the_session_takes_no_more(self) -> None:
        bench = Bench()
        bench.session.takes = False
        bench.receive(b"".join(ws_frame(b"%d" % n) for n in range(5)))

        def take_two(_data: bytes) -> None:
            bench.session.takes = len(bench.session.messages) % 2 == 1

        bench.session.on_message = take_two
        bench.session.takes = True
        bench.connection.go_on()
        assert bench.session.messages == [b"0", b"1"]
        assert not bench.transport.reading
        bench.session.takes = True
        bench.connection.go_on()
        bench.session.takes = True
        bench.connection.go_on()
        assert bench.session.messages == [b"0", b"1", b"2", b"3", b"4"]
        assert bench.transport.reading

    def test_answers_that_come_at_once_neither_repeat_what_was_held_back_nor_pile_up(self) -> None:
        """A refused request is answered inside of its own handling, and the answer asks for the next one."""
        bench = Bench()
        bench.session.takes = False
        messages = [b"%d" % number for number in range(3_000)]
        bench.connection.data_received(b"".join(map(ws_frame, messages)))
        bench.session.takes = True
        bench.session.on_message = lambda _: bench.connection.go_on()
        bench.connection.go_on()
        assert bench.session.messages == messages
        assert not bench.connection.held_back
        bench.connection.data_received(ws_frame(b"next"))
        assert bench.session.messages[-1] == b"next"

    def test_a_message_that_ends_the_session_drops_what_is_behind_it(self) -> None:
        bench = Bench()
        bench.session.on_message = lambda _data: bench.connection.close(4400)
        bench.receive(ws_frame(b"bad") + ws_frame(b"late") + ws_frame(b"part")[:4])
        bench.receive(ws_frame(b"part")[4:] + ws_frame(b"later"))
        assert bench.session.messages == [b"bad"]
        assert bench.close_code == 4400
        bench.receive(ws_frame(struct.pack("!H", 4400), CLOSE))  # in step with the stream all the while
        assert bench.transport.closing

    def test_an_exhausted_budget_stops_reading_until_there_is_room(self) -> None:
        bench = Bench(budget=1_000)
        bench.receive(ws_frame(bytes(2_000))[:1_500])
        assert not bench.transport.reading
        bench.budget.take(500)
        bench.connection.budget_free()  # not yet
        assert not bench.transport.reading
        bench.budget.give_back(500)
        bench.connection.connection_lost(None)
        assert bench.budget.used == 0
        assert bench.budget.waiting == 0

    def test_others_read_again_when_one_gives_its_bytes_back(self) -> None:
        bench = Bench(budget=1_000)
        bench.budget.take(900)
        frame = ws_frame(bytes(300))
        bench.receive(frame[:200])
        assert not bench.transport.reading
        bench.budget.give_back(900)
        assert bench.transport.reading
        bench.receive(frame[200:])
        assert bench.session.messages == [bytes(300)]


class TestEnding:
    def test_our_close_is_answered_and_the_transport_ends(self) -> None:
        bench = Bench()
        bench.connection.close(1000)
        assert bench.session.ended == 1
        assert not bench.transport.closing  # a close frame can be lost to a reset: wait for the other side
        bench.receive(ws_frame(b"still talking") + ws_frame(struct.pack("!H", 1000), CLOSE))
        assert bench.transport.closing
        assert bench.session.messages == []

    def test_a_close_that_nobody_answers_is_cut_off(self) -> None:
        bench = Bench()
        bench.connection.close(1000)
        assert bench.connection.check(bench.now + 1) == (0, bench.now + CLOSING_S)
        assert not bench.transport.aborted
        bench.connection.check(bench.now + CLOSING_S)
        assert bench.transport.aborted

    def test_their_close_is_answered_and_ends_the_session_once(self) -> None:
        bench = Bench()
        bench.receive(ws_frame(struct.pack("!H", 1001), CLOSE))
        assert bench.close_code == 1001
        assert bench.transport.closing
        bench.connection.connection_lost(None)
        assert (bench.session.ended, bench.gone) == (1, 1)

    @pytest.mark.parametrize("broken", [True, False])
    def test_an_end_that_comes_behind_requests_that_wait_is_followed_through(self, broken: bool) -> None:
        """In one piece, before reading paused for them; else the client's own end would not be heard any more."""
        end = ws_frame(b"", PING, fin=False) if broken else ws_frame(struct.pack("!H", 1000), CLOSE)
        bench = Bench()
        bench.session.takes = False
        bench.receive(ws_frame(b"waits") + end)
        assert bench.session.ended == 1
        assert bench.transport.reading or bench.transport.closing
        assert bench.budget.used == 0

    def test_a_text_message_is_told_as_such(self) -> None:
        bench = Bench()
        bench.receive(ws_frame(b"hello", TEXT))
        assert (bench.session.texts, bench.session.messages) == (1, [])

    def test_a_session_that_fails_closes_1011(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench()

        def fail(_data: bytes) -> None:
            raise RuntimeError("a bug")

        bench.session.on_message = fail
        bench.receive(ws_frame(b"x"))
        assert bench.close_code == 1011
        assert bench.session.ended == 1

    def test_a_message_too_long_is_refused_by_its_header(self) -> None:
        bench = Bench()
        bench.session.message_bytes_max = 100
        bench.receive(ws_frame(b"", length=101)[:8])
        assert bench.close_code == 1009
        assert bench.transport.eof

    def test_a_longer_message_is_taken_once_it_may_come(self) -> None:
        bench = Bench()
        bench.session.message_bytes_max = 10

        def greet(_data: bytes) -> None:
            bench.session.message_bytes_max = 1_000

        bench.session.on_message = greet
        bench.receive(ws_frame(b"hello") + ws_frame(bytes(500)))
        assert [len(message) for message in bench.session.messages] == [5, 500]
