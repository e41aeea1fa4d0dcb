"""A process of `up`: ready before it counts, started again when it ends, reported with its last words, gone in time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailboxd import child_process
from mailboxd.child_process import FAILURES_MAX, ChildFailed, ChildProcess, ChildSpec
from mailboxd.ports import choose_ports
from runtime.clock import SystemClock
from tests.support.waiting import eventually

SERVE = """
import http.server, signal, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
{on_term}
print("serving", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""
POLITE = SERVE.format(on_term="signal.signal(signal.SIGTERM, lambda *args: sys.exit(0))")
DEAF = SERVE.format(on_term="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
FAILING = (
    "import sys; [print('line', n, flush=True) for n in range(100)]; "
    "print('no such file', file=sys.stderr); sys.exit(3)"
)


class Starts:
    """Counts the starts that became ready, and lets a test wait for them."""

    def __init__(self) -> None:
        self.count = 0
        self.told: list[str] = []

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
async def children() -> AsyncIterator[list[ChildProcess]]:
    made: list[ChildProcess] = []
    yield made
    for child in made:
        await child.stop(grace_s=0)


def child_of(script: str, starts: Starts, children: list[ChildProcess]) -> ChildProcess:
    (port,) = choose_ports("127.0.0.1", 0, 1, "--port")
    spec = ChildSpec("child", [sys.executable, "-c", script, str(port)], dict(os.environ), "127.0.0.1", port)
    children.append(ChildProcess(spec, SystemClock(), starts, starts.told.append))
    return children[-1]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_start_returns_once_it_is_ready(children: list[ChildProcess]) -> None:
    starts = Starts()
    child = child_of(POLITE, starts, children)
    await child.start()
    assert starts.count == 1
    assert not is_gone(child.pid)


async def test_a_process_that_ends_at_start_is_reported_with_its_last_lines(children: list[ChildProcess]) -> None:
    starts = Starts()
    child = child_of(FAILING, starts, children)
    with pytest.raises(ChildFailed) as caught:
        await child.start()
    reason, *last = caught.value.lines
    assert reason == "child ended with exit code 3 before it was ready"
    assert {"  no such file", "  line 99"} <= set(last)
    assert len(last) <= child_process.LAST_LINES
    assert starts.count == 0


async def test_a_process_that_never_gets_ready_is_killed_and_reported(
    children: list[ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "READY_TIMEOUT_S", 0.3)
    child = child_of("import signal; signal.pause()", Starts(), children)
    with pytest.raises(ChildFailed, match="was not ready after"):
        await child.start()
    assert is_gone(child.pid)


async def test_a_process_that_dies_is_started_again(
    children: list[ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "BACKOFF_FIRST_S", 0.01)
    starts = Starts()
    child = child_of(POLITE, starts, children)
    await child.start()
    first = child.pid
    keeping = asyncio.create_task(child.keep())
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: starts.count == 2)
    assert child.pid != first
    assert starts.told == ["child ended with signal SIGKILL; starting it again"]
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_failures_in_a_row_are_bounded(children: list[ChildProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "BACKOFF_FIRST_S", 0.0)
    child = child_of("import sys; sys.exit(4)", Starts(), children)
    with pytest.raises(ChildFailed, match=f"exit code 4, {FAILURES_MAX + 1} times in a row"):
        await child.keep()


async def test_stop_lets_it_end_by_itself(children: list[ChildProcess]) -> None:
    child = child_of(POLITE, Starts(), children)
    await child.start()
    await child.stop(grace_s=20)
    assert is_gone(child.pid)


async def test_stop_kills_what_does_not_listen(children: list[ChildProcess]) -> None:
    child = child_of(DEAF, Starts(), children)
    await child.start()
    await child.stop(grace_s=0.2)
    assert is_gone(child.pid)


async def test_a_cancelled_stop_leaves_no_process(children: list[ChildProcess]) -> None:
    child = child_of(DEAF, Starts(), children)
    await child.start()
    stopping = asyncio.create_task(child.stop(grace_s=60))
    await asyncio.wait((stopping,), timeout=0.1)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    await child.stop(grace_s=0)
    assert is_gone(child.pid)


async def test_a_hang_up_before_it_is_ready_reaches_it_once_it_is(children: list[ChildProcess], tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    on_hang_up = f"signal.signal(signal.SIGHUP, lambda *args: open({str(heard)!r}, 'a').write('x'))"
    child = child_of(SERVE.format(on_term=on_hang_up), Starts(), children)
    starting = asyncio.create_task(child.start())
    await eventually(lambda: bool(child.pid), what="it was spawned, and knows no handler yet")
    child.hang_up()
    await starting
    await eventually(lambda: heard.exists() and heard.read_text() == "x")
    child.hang_up()
    await eventually(lambda: heard.read_text() == "xx")
    assert not is_gone(child.pid)


async def test_stopping_what_never_started_is_fine() -> None:
    child = ChildProcess(ChildSpec("child", [], {}, "127.0.0.1", 1), SystemClock(), Starts())
    await child.stop(grace_s=1)
    assert child.pid == 0
