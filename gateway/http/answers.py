"""Answers on their way out: a map in the form asked for, a problem document, and the headers that every answer has."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from aiohttp import web
from multidict import CIMultiDict

from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.http_answers import PROBLEM_MEDIA_TYPE, problem, retry_after_header
from protocol.http_values import BodyFormat, render_body

REQUEST_ID: Final = "X-Request-Id"

# Answers hold what belongs to one device: nobody in between keeps them, no page shows or guesses at them.
ON_EVERY_ANSWER: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Server": "mailboxd",
    "X-Content-Type-Options": "nosniff",
}
_TLS_ONLY: Final = "max-age=31536000"


class Answer(NamedTuple):
    """What a handler gives back."""

    content: Any
    status: int = 200
    headers: Mapping[str, str] = {}


def answer_response(answer: Answer, body_format: BodyFormat) -> web.Response:
    return web.Response(
        status=answer.status,
        body=render_body(answer.content, body_format),
        content_type=body_format.value,
        headers=answer.headers,
    )


def problem_response(
    error: MailboxError, request_id: str, body_format: BodyFormat, *, write: bool, status: int | None = None
) -> web.Response:
    """The error as an RFC 9457 document. A refused `write` always says whether anything may have been written.

    `status` only where HTTP knows a better one than the code's own.
    """
    document = problem(error, request_id)
    if not write:
        document.pop("outcome", None)
    elif error.outcome is None:
        # An expected refusal rolled everything back; after a bug nobody knows.
        outcome = Outcome.UNKNOWN if error.code is ErrorCode.INTERNAL else Outcome.NOT_COMMITTED
        document["outcome"] = str(outcome)
    if status is not None:
        document |= {"status": status, "title": HTTPStatus(status).phrase}
    headers: CIMultiDict[str] = CIMultiDict()
    if (retry_after := retry_after_header(error)) is not None:
        headers["Retry-After"] = retry_after
    if error.http_status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    media_type = PROBLEM_MEDIA_TYPE if body_format is BodyFormat.JSON else body_format.value
    return web.Response(
        status=document["status"], body=render_body(document, body_format), content_type=media_type, headers=headers
    )


def finish(response: web.StreamResponse, request_id: str, *, secure: bool) -> None:
    """Put on what every answer carries."""
    response.headers[REQUEST_ID] = request_id
    response.headers.update(ON_EVERY_ANSWER)
    if secure:
        response.headers["Strict-Transport-Security"] = _TLS_ONLY
