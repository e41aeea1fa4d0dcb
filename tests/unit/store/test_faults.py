"""The table of database errors: what was certainly not written, and what may have been."""

from __future__ import annotations

import asyncpg
import pytest

from protocol.errors import ErrorCode, Outcome
from store.faults import Fault, breaks_connection, classify, to_mailbox_error


def an_error(state: str) -> asyncpg.PostgresError:
    error = asyncpg.PostgresError("text of the driver")
    error.sqlstate = state
    return error


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ("55P03", Fault.LOCKED),
        ("40001", Fault.AGAIN),
        ("40P01", Fault.AGAIN),
        ("40003", Fault.UNKNOWN),
        ("MB001", Fault.CAREFUL),
        ("22003", Fault.DATA),
        ("23505", Fault.DATA),
        ("P0001", Fault.DATA),
        ("57P01", Fault.UNKNOWN),
        ("57014", Fault.UNKNOWN),
        ("08006", Fault.UNKNOWN),
        ("25006", Fault.REFUSED),
        ("53100", Fault.REFUSED),
        ("53300", Fault.REFUSED),
        ("42883", Fault.REFUSED),
    ],
)
def test_each_sqlstate_class_has_its_fault(state: str, fault: Fault) -> None:
    assert classify(an_error(state)) is fault


@pytest.mark.parametrize("error", [OSError(), TimeoutError(), asyncpg.InterfaceError("closed")])
def test_an_answer_that_never_came_leaves_the_outcome_unknown(error: Exception) -> None:
    assert classify(error) is Fault.UNKNOWN
    assert breaks_connection(error)


def test_a_plan_made_stale_by_a_migration_is_tried_again() -> None:
    assert classify(asyncpg.InvalidCachedStatementError("cached plan must not change result type")) is Fault.AGAIN


@pytest.mark.parametrize(("state", "breaks"), [("25006", True), ("57P01", True), ("08003", True), ("23505", False)])
def test_a_connection_to_a_server_that_is_read_only_or_leaving_is_thrown_away(state: str, breaks: bool) -> None:
    assert breaks_connection(an_error(state)) is breaks


@pytest.mark.parametrize("fault", Fault)
def test_no_text_of_the_driver_reaches_the_peer_and_the_outcome_is_said(fault: Fault) -> None:
    error = to_mailbox_error(fault)
    assert error.code is (ErrorCode.INTERNAL if fault is Fault.DATA else ErrorCode.UNAVAILABLE)
    assert error.outcome is (Outcome.UNKNOWN if fault is Fault.UNKNOWN else Outcome.NOT_COMMITTED)
    assert error.retryable
