"""Browsers: which pages may call, and what they are told (Fetch standard, "CORS protocol"). Pure.

Apps send no Origin. A page's requests are refused unless the operator listed its origin, so that a web page somebody
happens to visit cannot use this server through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocol.errors import ErrorCode, MailboxError, Outcome

_METHODS: Final = "GET, POST, PUT, DELETE"
_REQUEST_HEADERS: Final = "Accept, Authorization, Content-Type, Idempotency-Key"
_ANSWER_HEADERS: Final = "Retry-After, X-Request-Id"
_PREFLIGHT_AGE_S: Final = 600


def require_allowed(origin: str | None, allowed: Sequence[str]) -> None:
    """Return when there is no origin or a listed one; raises FORBIDDEN."""
    if origin is not None and origin not in allowed:
        raise MailboxError(
            ErrorCode.FORBIDDEN, "Pages of this origin may not call here.", outcome=Outcome.NOT_COMMITTED
        )


def cors_headers(origin: str | None, allowed: Sequence[str]) -> dict[str, str]:
    """What goes on the answer to a page of a listed origin."""
    if origin is None or origin not in allowed:
        return {"Vary": "Origin"} if allowed else {}
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": _ANSWER_HEADERS, "Vary": "Origin"}


def preflight_headers(origin: str, allowed: Sequence[str]) -> dict[str, str]:
    """What goes on the answer to a browser that asks before it calls."""
    return {
        **cors_headers(origin, allowed),
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Allow-Headers": _REQUEST_HEADERS,
        "Access-Control-Max-Age": str(_PREFLIGHT_AGE_S),
    }
