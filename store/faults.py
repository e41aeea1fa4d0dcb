"""What a database error means for the caller: the pure table behind every `except` around the driver.

No driver exception leaves `store`. SQLSTATE classes as DESIGN, "Group commit", rules them.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

import asyncpg

from protocol.errors import ErrorCode, MailboxError, Outcome

# All that asyncpg raises: the server's errors, its own (among them "no server is read-write"), and the socket's.
DRIVER_ERRORS: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)

_RETRY_AFTER_MS: Final = 1_000


class Fault(Enum):
    """How a failed call is answered."""

    UNREACHED = auto()  # never reached the database: nothing was written
    REFUSED = auto()  # the database refused and rolled back: nothing was written
    UNKNOWN = auto()  # the answer was lost: the write may be there
    AGAIN = auto()  # serialization, deadlock, a plan made stale by a migration: nothing was written, repeat at once
    LOCKED = auto()  # lock_timeout: nothing was written, somebody holds a row
    CAREFUL = auto()  # the call took it that nothing in it repeats, and that was wrong: nothing was written
    DATA = auto()  # one of the values broke the call: nothing was written, find the culprit


def classify(error: BaseException) -> Fault:
    """The fault that an exception of asyncpg or of the socket stands for."""
    if isinstance(error, asyncpg.InvalidCachedStatementError | asyncpg.OutdatedSchemaCacheError):
        return Fault.AGAIN
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate is not None:
        return _of_sqlstate(error.sqlstate)
    return Fault.UNKNOWN


def _of_sqlstate(state: str) -> Fault:
    if state == "55P03":
        return Fault.LOCKED
    if state[:2] == "40":
        # 40003: the server itself does not know whether the statement took effect.
        return Fault.UNKNOWN if state == "40003" else Fault.AGAIN
    if state == "MB001":
        return Fault.CAREFUL
    if state[:2] in ("22", "23", "P0"):
        return Fault.DATA
    if state[:2] in ("08", "57"):
        return Fault.UNKNOWN  # 57P01 may come while the commit waits for a standby
    return Fault.REFUSED  # 25006 read-only, 53 out of resources, and whatever else was answered with an ERROR


def breaks_connection(error: BaseException) -> bool:
    """True when the connection must not be used again: lost, shutting down, or on a server that is read-only."""
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate is not None:
        return error.sqlstate == "25006" or error.sqlstate[:2] in ("08", "57")
    return True


def to_mailbox_error(fault: Fault) -> MailboxError:
    """The answer to the peer."""
    if fault is Fault.DATA:
        return MailboxError(ErrorCode.INTERNAL, outcome=Outcome.NOT_COMMITTED)
    outcome = Outcome.UNKNOWN if fault is Fault.UNKNOWN else Outcome.NOT_COMMITTED
    return MailboxError(ErrorCode.UNAVAILABLE, retry_after_ms=_RETRY_AFTER_MS, outcome=outcome)


def not_connected(error: BaseException, *, within_seconds: float) -> MailboxError:
    """What a process that starts, or a command, tells the operator, in words that hold no password.

    The driver's own texts name host, role and database at most.
    """
    if isinstance(error, asyncpg.UndefinedTableError | asyncpg.UndefinedFunctionError | asyncpg.UndefinedColumnError):
        message = "The database does not have this release's schema: run `mailboxd migrate apply`."
    else:
        slow = isinstance(error, TimeoutError)
        reason = f"no answer within {within_seconds:.0f} s" if slow else str(error) or type(error).__name__
        message = f"PostgreSQL cannot be reached: {reason}."
    return MailboxError(ErrorCode.UNAVAILABLE, message, retry_after_ms=_RETRY_AFTER_MS, outcome=Outcome.NOT_COMMITTED)


def overloaded() -> MailboxError:
    """The answer of every full queue: nothing was written, come back soon."""
    return to_mailbox_error(Fault.UNREACHED)


def unknown_outcome() -> MailboxError:
    """Nobody waited for the database's answer: the write may be there, a repeat with the same key tells."""
    return to_mailbox_error(Fault.UNKNOWN)
