"""What `send` and `listen` say while they work."""

from __future__ import annotations

import io

from mailbox_client import Connected, Disconnected, SendWaiting, Transport
from mailboxd.progress import LINE_EVERY_S, LIVE_EVERY_S, Progress
from mailboxd.send import tell
from tests.support.client_values import cmid

MIB = 1_048_576


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Watch:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_log_gets_a_line_now_and_then() -> None:
    stream, watch = io.StringIO(), Watch()
    progress = Progress("sent", 4 * MIB, stream=stream, now=watch)
    progress.moved(MIB)
    assert stream.getvalue() == ""
    watch.seconds = LINE_EVERY_S
    progress.moved(MIB)
    progress.moved(MIB)
    progress.end()
    assert stream.getvalue() == "mailboxd: 2.0 MiB sent (50 %)\n"


def test_a_terminal_has_one_line_that_changes_and_goes() -> None:
    stream, watch = Terminal(), Watch()
    progress = Progress("received", stream=stream, now=watch)
    watch.seconds = LIVE_EVERY_S
    progress.moved(5_120)
    assert stream.getvalue() == "\r\x1b[Kmailboxd: 5 KiB received"
    progress.line("done")
    assert stream.getvalue().endswith("received\r\x1b[Kmailboxd: done\n")


def test_a_wait_is_told_once_until_something_moves() -> None:
    stream = io.StringIO()
    progress = Progress("sent", stream=stream, now=Watch())
    on_event = tell(progress)
    on_event(SendWaiting(cmid(), "RATE_LIMITED", 200))
    assert stream.getvalue() == "", "a wait that is over at once is no news"
    for _ in range(3):
        on_event(SendWaiting(cmid(), "RATE_LIMITED", 2_500))
    assert stream.getvalue() == "mailboxd: waiting 3 s: the server asks for patience (RATE_LIMITED)\n"
    progress.moved(1)
    on_event(SendWaiting(cmid(), "RATE_LIMITED", 2_500))
    assert stream.getvalue().count("\n") == 2


def test_a_lost_connection_is_told_again_after_it_was_back() -> None:
    stream = io.StringIO()
    on_event = tell(Progress("received", stream=stream, now=Watch()))
    for _ in range(2):
        on_event(Disconnected(None, 8_000))
        on_event(Disconnected(None, 16_000))
        on_event(Connected(Transport.WEBSOCKET, False))
    assert stream.getvalue() == "mailboxd: waiting 8 s: no connection to the server\n" * 2
