"""Fault points: armed by tests only, exact about where and when."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from runtime import faultpoints
from runtime.faultpoints import Action, FaultInjected, FaultPointError


async def test_an_unarmed_place_does_nothing() -> None:
    with faultpoints.armed("another", Action.RAISE) as point:
        await faultpoints.reach("nobody.armed.this")
        faultpoints.reach_now("nobody.armed.this")
        assert point.times_reached == 0


async def test_an_armed_place_raises_only_there_and_only_inside_the_block() -> None:
    with faultpoints.armed("here", Action.RAISE) as point:
        await faultpoints.reach("there")
        with pytest.raises(FaultInjected, match="here"):
            await faultpoints.reach("here")
        with pytest.raises(FaultInjected):
            faultpoints.reach_now("here")
        assert point.times_reached == 2
    await faultpoints.reach("here")


async def test_it_acts_from_the_given_time_on() -> None:
    with faultpoints.armed("here", Action.RAISE, at=3):
        await faultpoints.reach("here")
        await faultpoints.reach("here")
        with pytest.raises(FaultInjected):
            await faultpoints.reach("here")


async def test_a_pause_holds_until_released() -> None:
    with faultpoints.armed("here", Action.PAUSE) as point:
        standing = asyncio.create_task(faultpoints.reach("here"))
        await point.reached()
        assert not standing.done()
        point.release()
        await standing
        await faultpoints.reach("here")  # released is released


async def test_leaving_the_block_lets_everybody_go() -> None:
    with faultpoints.armed("here", Action.PAUSE) as point:
        standing = asyncio.create_task(faultpoints.reach("here"))
        await point.reached()
    assert await standing is None


def test_a_callback_cannot_be_paused() -> None:
    with faultpoints.armed("here", Action.PAUSE), pytest.raises(FaultPointError, match="cannot wait"):
        faultpoints.reach_now("here")


def test_the_same_place_is_armed_once() -> None:
    with (
        faultpoints.armed("here", Action.RAISE),
        pytest.raises(FaultPointError),
        faultpoints.armed("here", Action.KILL),
    ):
        pass


@pytest.mark.parametrize("text", ["x", "x=die", "x=kill@0", "x=kill@many", "=", "a=kill,b"])
def test_unreadable_arming_is_refused_whole(text: str) -> None:
    with pytest.raises(FaultPointError):
        faultpoints.arm_from_environment({"MAILBOXD_FAULTPOINTS": text})
    faultpoints.reach_now("a")


def test_nothing_is_armed_without_the_variable() -> None:
    assert faultpoints.arm_from_environment({}) == []


def test_a_process_dies_where_its_environment_says() -> None:
    script = (
        "import os; from runtime import faultpoints\n"
        "print(faultpoints.arm_from_environment(os.environ), flush=True)\n"
        "faultpoints.reach_now('other'); faultpoints.reach_now('here'); print('once', flush=True)\n"
        "faultpoints.reach_now('here'); print('never')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"MAILBOXD_FAULTPOINTS": "here=kill@2, more=raise", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == -9
    assert done.stdout == "['here', 'more']\nonce\n"
