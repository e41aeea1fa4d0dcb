"""Numbers and names of the contract never change their meaning: these tables are golden."""

from __future__ import annotations

import pytest

from protocol import cursor, fingerprint
from protocol.errors import ERRORS, CloseCode, ErrorCode, MailboxError, Outcome
from protocol.frames import FrameType

FRAME_TYPES = {
    "HELLO": 1,
    "SEND": 2,
    "ACK": 3,
    "PULL_MAILBOX": 4,
    "DEFER": 5,
    "REAUTH": 6,
    "PING": 7,
    "WELCOME": 65,
    "SEND_ACK": 66,
    "MAILBOX_BATCH": 67,
    "ACK_RESULT": 68,
    "PUSH_EVENTS": 69,
    "PONG": 70,
    "GOAWAY": 71,
    "ERROR": 72,
}

# code: HTTP status, retryable
CODES = {
    "BAD_REQUEST": (400, False),
    "BAD_FRAME": (400, False),
    "UNSUPPORTED_FRAME": (400, False),
    "METHOD_NOT_ALLOWED": (405, False),
    "UNSUPPORTED_MEDIA_TYPE": (415, False),
    "UNSUPPORTED_PROTOCOL_VERSION": (400, False),
    "TTL_OUT_OF_RANGE": (400, False),
    "CURSOR_INVALID": (400, False),
    "CURSOR_EXPIRED": (410, False),
    "UNAUTHENTICATED": (401, False),
    "TOKEN_EXPIRED": (401, False),
    "DEVICE_REVOKED": (403, False),
    "FORBIDDEN": (403, False),
    "REGISTRATION_CLOSED": (403, False),
    "INVITE_INVALID": (403, False),
    "NOT_FOUND": (404, False),
    "UNKNOWN_RECIPIENT": (404, False),
    "IDEMPOTENCY_KEY_REUSED": (409, False),
    "MESSAGE_ID_CONFLICT": (409, False),
    "DEVICE_LIMIT": (409, False),
    "PREKEY_LIMIT": (409, False),
    "ENVELOPE_TOO_LARGE": (413, False),
    "REQUEST_TOO_LARGE": (413, False),
    "MAILBOX_FULL": (429, True),
    "ECHO_BACKLOG_FULL": (429, True),
    "RATE_LIMITED": (429, True),
    "UNAVAILABLE": (503, True),
    "INTERNAL": (500, True),
}

CLOSE_CODES = {
    "NORMAL": 1000,
    "GOING_AWAY": 1001,
    "TOO_BIG": 1009,
    "SERVER_FAULT": 1011,
    "RESTART": 1012,
    "MALFORMED": 4400,
    "UNAUTHENTICATED": 4401,
    "REVOKED": 4403,
    "TIMEOUT": 4408,
    "REPLACED": 4409,
    "TOO_SLOW": 4413,
    "RATE_LIMITED": 4429,
    "UNAVAILABLE": 4503,
}


def test_frame_types_keep_their_numbers() -> None:
    assert {kind.name: int(kind) for kind in FrameType} == FRAME_TYPES


def test_every_code_keeps_its_status_and_whether_to_retry() -> None:
    assert {str(code): (kind.http_status, kind.retryable) for code, kind in ERRORS.items()} == CODES
    assert set(ERRORS) == set(ErrorCode)


def test_close_codes_keep_their_numbers() -> None:
    assert {name: code for name, code in vars(CloseCode).items() if name.isupper()} == CLOSE_CODES


def test_outcomes_and_format_versions_keep_their_values() -> None:
    assert [str(outcome) for outcome in Outcome] == ["not_committed", "unknown"]
    assert (cursor.CURSOR_VERSION, fingerprint.FINGERPRINT_VERSION) == (1, 1)


@pytest.mark.parametrize("code", list(ErrorCode))
def test_an_error_says_by_itself_what_is_wrong(code: ErrorCode) -> None:
    error = MailboxError(code)
    assert error.message.endswith(".")
    assert (error.http_status, error.retryable) == CODES[str(code)]
    assert MailboxError(code, "other", at=[2]).at == (2,)
