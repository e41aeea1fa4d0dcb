"""What came back from the HTTP door: an answer, a refusal of the server's, or something that is not of the contract."""

from __future__ import annotations

from typing import Final

from mailbox_client.answer_fields import Answer
from mailbox_client.errors import ServerNotUnderstood
from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.packing import unpack

ANSWER_OBJECTS_MAX: Final = 16_384  # a page of 256 entries with every field has 4,900


def understood(status: int, raw: bytes, retry_after: str) -> Answer:
    """The map of a good answer. Raises MailboxError for the server's refusals, ServerNotUnderstood for the rest."""
    try:
        answer = unpack(raw, objects_max=ANSWER_OBJECTS_MAX) if raw else {}
    except MailboxError as error:
        raise _foreign(status, retry_after) from error
    if type(answer) is not dict:
        raise _foreign(status, retry_after)
    if 200 <= status < 300:
        return answer
    code = ErrorCode.__members__.get(str(answer.get("code")))
    if code is None:
        raise _foreign(status, retry_after)
    at = answer.get("at")
    outcome = answer.get("outcome")
    raise MailboxError(
        code,
        str(answer.get("detail") or answer.get("title") or "") or None,
        at=[index for index in at if type(index) is int] if type(at) is tuple else None,
        retry_after_ms=_retry_after_ms(answer.get("retry_after_ms"), retry_after),
        outcome=Outcome(outcome) if outcome in tuple(Outcome) else None,
    )


def _foreign(status: int, retry_after: str) -> Exception:
    """What an answer means that is not of the contract: a proxy's overload page still asks for patience."""
    if status in (429, 502, 503, 504):
        return MailboxError(
            ErrorCode.UNAVAILABLE, retry_after_ms=_retry_after_ms(None, retry_after), outcome=Outcome.UNKNOWN
        )
    return ServerNotUnderstood(f"HTTP status {status} with a body that is not of the contract")


def _retry_after_ms(exact: object, header: str) -> int | None:
    if type(exact) is int:
        return exact
    return int(header) * 1000 if header.isascii() and header.isdigit() else None
