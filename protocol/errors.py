"""The one table of stable error codes (WIRE, "Error codes") and the one exception that the peer is told about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class ErrorCode(StrEnum):
    """A code never changes its meaning."""

    BAD_REQUEST = "BAD_REQUEST"
    BAD_FRAME = "BAD_FRAME"
    UNSUPPORTED_FRAME = "UNSUPPORTED_FRAME"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE"
    UNSUPPORTED_PROTOCOL_VERSION = "UNSUPPORTED_PROTOCOL_VERSION"
    TTL_OUT_OF_RANGE = "TTL_OUT_OF_RANGE"
    CURSOR_INVALID = "CURSOR_INVALID"
    CURSOR_EXPIRED = "CURSOR_EXPIRED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    TOKEN_EXPIRED = "TOKEN_EXPIRED"  # noqa: S105 - a code, not a secret
    DEVICE_REVOKED = "DEVICE_REVOKED"
    FORBIDDEN = "FORBIDDEN"
    REGISTRATION_CLOSED = "REGISTRATION_CLOSED"
    INVITE_INVALID = "INVITE_INVALID"
    NOT_FOUND = "NOT_FOUND"
    UNKNOWN_RECIPIENT = "UNKNOWN_RECIPIENT"
    IDEMPOTENCY_KEY_REUSED = "IDEMPOTENCY_KEY_REUSED"
    MESSAGE_ID_CONFLICT = "MESSAGE_ID_CONFLICT"
    DEVICE_LIMIT = "DEVICE_LIMIT"
    PREKEY_LIMIT = "PREKEY_LIMIT"
    ENVELOPE_TOO_LARGE = "ENVELOPE_TOO_LARGE"
    REQUEST_TOO_LARGE = "REQUEST_TOO_LARGE"
    MAILBOX_FULL = "MAILBOX_FULL"
    ECHO_BACKLOG_FULL = "ECHO_BACKLOG_FULL"
    RATE_LIMITED = "RATE_LIMITED"
    UNAVAILABLE = "UNAVAILABLE"
    INTERNAL = "INTERNAL"


class Outcome(StrEnum):
    """What an error says about a write."""

    NOT_COMMITTED = "not_committed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """What every door says about one code."""

    http_status: int
    retryable: bool
    message: str  # safe to show; says what to change


ERRORS: Final[dict[ErrorCode, ErrorKind]] = {
    ErrorCode.BAD_REQUEST: ErrorKind(400, False, "The request is malformed."),
    ErrorCode.BAD_FRAME: ErrorKind(400, False, "The frame is malformed; the connection is closed."),
    ErrorCode.UNSUPPORTED_FRAME: ErrorKind(400, False, "This frame type is not known here; it was ignored."),
    ErrorCode.METHOD_NOT_ALLOWED: ErrorKind(405, False, "This path does not take that method."),
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: ErrorKind(415, False, "Send application/json or application/msgpack."),
    ErrorCode.UNSUPPORTED_PROTOCOL_VERSION: ErrorKind(
        400, False, "This instance does not carry that envelope version."
    ),
    ErrorCode.TTL_OUT_OF_RANGE: ErrorKind(400, False, "ttl_s is below this instance's minimum."),
    ErrorCode.CURSOR_INVALID: ErrorKind(400, False, "The cursor is not valid here; start again without one."),
    ErrorCode.CURSOR_EXPIRED: ErrorKind(410, False, "The cursor is too old; start again without one."),
    ErrorCode.UNAUTHENTICATED: ErrorKind(401, False, "Not authenticated; get a new token."),
    ErrorCode.TOKEN_EXPIRED: ErrorKind(401, False, "The token has expired; get a new one."),
    ErrorCode.DEVICE_REVOKED: ErrorKind(403, False, "This device was revoked."),
    ErrorCode.FORBIDDEN: ErrorKind(403, False, "This device may not do that."),
    ErrorCode.REGISTRATION_CLOSED: ErrorKind(403, False, "This instance takes no new registrations."),
    ErrorCode.INVITE_INVALID: ErrorKind(403, False, "A valid, unused invite is needed to register here."),
    ErrorCode.NOT_FOUND: ErrorKind(404, False, "There is no such thing here."),
    ErrorCode.UNKNOWN_RECIPIENT: ErrorKind(404, False, "No such recipient device."),
    ErrorCode.IDEMPOTENCY_KEY_REUSED: ErrorKind(409, False, "This key was used for another request; choose a new one."),
    ErrorCode.MESSAGE_ID_CONFLICT: ErrorKind(
        409, False, "Another envelope with this message id is there; seal again under a new id."
    ),
    ErrorCode.DEVICE_LIMIT: ErrorKind(409, False, "The identity has as many active devices as it may have."),
    ErrorCode.PREKEY_LIMIT: ErrorKind(409, False, "As many one-time prekeys are stored as may be."),
    ErrorCode.ENVELOPE_TOO_LARGE: ErrorKind(413, False, "The envelope body is larger than this instance allows."),
    ErrorCode.REQUEST_TOO_LARGE: ErrorKind(413, False, "The request is larger than this instance allows."),
    ErrorCode.MAILBOX_FULL: ErrorKind(429, True, "The mailbox takes nothing more at the moment."),
    ErrorCode.ECHO_BACKLOG_FULL: ErrorKind(429, True, "Your own echo entries are unread: read your mailbox first."),
    ErrorCode.RATE_LIMITED: ErrorKind(429, True, "Too fast; wait and try again."),
    ErrorCode.UNAVAILABLE: ErrorKind(503, True, "Not available at the moment; try again."),
    ErrorCode.INTERNAL: ErrorKind(500, True, "A fault on our side; the request id finds it in the log."),
}


class MailboxError(Exception):
    """An expected failure that the peer is told about. Anything else is a bug and becomes INTERNAL.

    `message` must be safe to show: no id, no content, no driver text. `outcome` is set on writes only.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        *,
        at: Sequence[int] | None = None,
        retry_after_ms: int | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        self.code = code
        self.message = message or ERRORS[code].message
        self.at = tuple(at) if at is not None else None
        self.retry_after_ms = retry_after_ms
        self.outcome = outcome
        super().__init__(f"{code}: {self.message}")

    @property
    def retryable(self) -> bool:
        return ERRORS[self.code].retryable

    @property
    def http_status(self) -> int:
        return ERRORS[self.code].http_status


class CloseCode:
    """WebSocket close codes (WIRE, "close code")."""

    NORMAL: Final = 1000
    GOING_AWAY: Final = 1001
    TOO_BIG: Final = 1009
    SERVER_FAULT: Final = 1011
    RESTART: Final = 1012
    MALFORMED: Final = 4400
    UNAUTHENTICATED: Final = 4401
    REVOKED: Final = 4403
    TIMEOUT: Final = 4408
    REPLACED: Final = 4409
    TOO_SLOW: Final = 4413
    RATE_LIMITED: Final = 4429
    UNAVAILABLE: Final = 4503
