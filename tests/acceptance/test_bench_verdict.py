"""The bench's exit code: a run that loses one message, doubles one or is refused one fails, whatever its rate."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from loadtest import bench, goals
from loadtest.__main__ import main
from loadtest.recorder import Recorder
from loadtest.run import Planned, Run, figures, judged, merged
from loadtest.swarm import Swarm, Traffic
from tests.unit.loadtest.model_server import Planted, model_server
from tests.unit.loadtest.test_swarm import some_accounts


@contextmanager
def a_model_server(planted: Planted) -> Iterator[str]:
    """In a thread of its own: the bench brings its own event loop."""
    stop: list[Any] = []
    ready = threading.Event()
    port: list[int] = []

    async def serve() -> None:
        stopping = asyncio.Event()
        stop.extend((asyncio.get_running_loop(), stopping))
        async with model_server(planted) as server:
            port.append(server.port)
            ready.set()
            await stopping.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(10)
        yield f"http://127.0.0.1:{port[0]}"
    finally:
        loop, stopping = stop
        loop.call_soon_threadsafe(stopping.set)
        thread.join(10)
        gc.enable()  # the bench switches it off for its own process


async def a_small_cycle(run: Run) -> dict[str, Any]:
    """`cycle` for a server that knows its devices beforehand."""
    recorder = Recorder()
    swarm = Swarm(
        some_accounts(),
        run.server.endpoints,
        Traffic(payload_bytes=100, senders=range(4), recipients=range(4)),
        recorder,
    )
    try:
        await swarm.connect()
        swarm.start()
        window, seconds = await swarm.measure(run.settings.seconds)
        swarm.stop()
        verdict = judged(swarm, recorder, drained=await swarm.drain(0.5))
    finally:
        swarm.close()
    return merged(figures(window, seconds), verdict)


@pytest.mark.parametrize(
    ("planted", "code", "said"),
    [
        (Planted.NOTHING, 0, {}),
        (Planted.LOSES, 1, {"lost": 1}),
        (Planted.PUSHES_TWICE, 1, {"duplicated": 1}),
        (Planted.REFUSES, 1, {"refusals": {"MAILBOX_FULL": 1}}),
    ],
)
def test_one_planted_fault_among_all_messages_fails_the_run(
    planted: Planted,
    code: int,
    said: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(bench.SCENARIOS, "small", Planned("small", a_small_cycle))
    with a_model_server(planted) as url:
        ended = main(["bench", "--scenario", "small", "--seconds", "0.5", "--url", url, "--json"])
    report = json.loads(capsys.readouterr().out)
    (scenario,) = report["scenarios"]
    assert ended == code
    assert report["ok"] is scenario["ok"] is (code == 0)
    assert scenario["confirmed_per_s"] > 0
    assert {key: scenario[key] for key in said} == said


@pytest.mark.parametrize(("must", "code"), [(True, 1), (False, 0)])
def test_a_missed_bound_fails_the_run_and_a_missed_goal_is_only_shown(
    must: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out_of_reach = goals.Bound("small", "confirmed/s", ("confirmed_per_s",), at_least=1e9, must=must)
    monkeypatch.setattr(goals, "BOUNDS", (out_of_reach,))
    monkeypatch.setitem(bench.SCENARIOS, "small", Planned("small", a_small_cycle))
    with a_model_server(Planted.NOTHING) as url:
        ended = main(["bench", "--scenario", "small", "--seconds", "0.2", "--url", url, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert ended == code
    assert report["ok"] is (code == 0)
    assert report["scenarios"][0]["ok"] is True  # it lost nothing: the bound alone decides
    assert [(goal["met"], goal["must"]) for goal in report["goals"]] == [(False, must)]
