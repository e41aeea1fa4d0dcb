"""The fault kit can fail: each kind of planted bug is caught by a fault run (tests/support/planted.py has them)."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import pytest

from loadtest.faults.run import Options, run_faults
from loadtest.faults.world import Commands
from tests.support.planted import BUGS

PATIENCE = 0.25  # what is lost stays lost: no need to wait for it as long as a real run does


class Catch(NamedTuple):
    """Which fault run shows the bug, and as what: any of these."""

    bug: str
    fault: str
    shows: tuple[str, ...]


CATCHES = (
    Catch("answered_before_the_commit", "kill-postgres", ("lost",)),
    Catch("cursor_over_a_late_commit", "kill-clients", ("lost", "out_of_order")),
    Catch("completed_without_its_generation", "senders-fall-silent", ("not woken",)),
    Catch("pushed_from_memory_while_a_read_runs", "kill-clients", ("out_of_order",)),
    Catch("expired_by_the_clients_clock", "client-clocks-ahead", ("lost",)),
    Catch("recorded_before_the_effect", "kill-gateway", ("lost",)),
)


def test_each_planted_bug_has_a_fault_run_that_shows_it() -> None:
    assert {catch.bug for catch in CATCHES} == set(BUGS)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("catch", CATCHES, ids=lambda catch: catch.bug)
async def test_a_planted_bug_is_caught(catch: Catch) -> None:
    result = await run_with(catch)
    assert not result["ok"]
    assert any(result.get(shown) or any(shown in problem for problem in result["problems"]) for shown in catch.shows), (
        result
    )


async def run_with(catch: Catch) -> dict[str, Any]:
    planted = (sys.executable, "-m", "tests.support.planted", catch.bug)
    if catch.bug == "expired_by_the_clients_clock":
        commands = Commands(client=(*planted, "client"))
    else:
        commands = Commands(mailboxd=planted)
    options = Options(only=(catch.fault,), commands=commands, patience=PATIENCE)
    report = await run_faults(options, print)
    print({key: value for key, value in report.items() if key != "faults"})
    return next(result for result in report["faults"] if result["name"] == catch.fault)
