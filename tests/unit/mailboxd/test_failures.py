"""How a command ends: one line for every mistake, an exit code, and a traceback for nothing but a bug."""

from __future__ import annotations

import os

import pytest

from mailbox_client import NoAnswer
from mailboxd.failures import explain
from mailboxd.terminal import CommandError, pairs, table, time_text
from mailboxd.unprivileged import EmbeddedError
from migrations.runner import MigrationError
from protocol.errors import ErrorCode, MailboxError
from runtime.config import ConfigError
from runtime.faultpoints import FaultPointError
from runtime.key_rings import KeyringError
from store.policy_rules import PolicyError


@pytest.mark.parametrize(
    ("error", "lines", "exit_code"),
    [
        (CommandError("a", "b"), ("a", "b"), 1),
        (ConfigError(["X: a; b", "Y: c"]), ("X: a; b", "Y: c"), os.EX_CONFIG),
        (PolicyError(["x: a; b", "y: c"]), ("x: a; b", "y: c"), os.EX_CONFIG),
        (KeyringError("gone"), ("gone",), os.EX_CONFIG),
        (FaultPointError("x"), ("x",), os.EX_CONFIG),
        (EmbeddedError("no\nroom"), ("no", "room"), 1),
        (PermissionError(13, "Permission denied", "/etc/x"), ("/etc/x: Permission denied",), 1),
        (
            NoAnswer("ClientConnectorCertificateError"),
            ("ClientConnectorCertificateError; it is not trusted here, SSL_CERT_FILE names one to trust",),
            1,
        ),
        (
            NoAnswer("no answer"),
            ("no answer; `mailboxd up` starts one on this machine, --url names another",),
            1,
        ),
        (MigrationError("changed"), ("changed",), 1),
        (MailboxError(ErrorCode.UNAVAILABLE, "Away."), ("Away.",), 1),
        (ExceptionGroup("", [KeyringError("gone"), CommandError("a")]), ("gone", "a"), os.EX_CONFIG),
    ],
)
def test_an_expected_failure_has_its_lines_and_exit_code(
    error: Exception, lines: tuple[str, ...], exit_code: int
) -> None:
    told = explain(error)
    assert told is not None
    assert (told.lines, told.exit_code) == (lines, exit_code)


@pytest.mark.parametrize(
    "error", [ValueError("x"), ConnectionError("x"), ExceptionGroup("", [KeyringError("gone"), ValueError("x")])]
)
def test_anything_else_is_a_bug(error: Exception) -> None:
    assert explain(error) is None


def test_tables_line_up_and_an_empty_one_says_so() -> None:
    assert table(("id", "what"), [(1, "x"), (100, "")]) == ["ID   WHAT", "1    x", "100"]
    assert table(("id",), []) == ["(none)"]
    assert table(("detail",), [({"bytes": 0, "settings": ["a", "b"]},)]) == ["DETAIL", "bytes 0, settings a b"]
    assert pairs({"of": {"x": 1, "y": 2.5}}) == ["of  x 1, y 2.5"]
    assert pairs({"a": 1, "long": None}) == ["a     1", "long  None"]
    assert time_text(0) == "1970-01-01 00:00:00Z"
    assert time_text(None) == ""
