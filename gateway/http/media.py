"""Which form a body has and which one the answer takes (WIRE, "HTTP"). Pure."""

from __future__ import annotations

from typing import Final

from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.http_values import BodyFormat
from protocol.limits import JSON_BODY_FACTOR, MAX_FRAME_BYTES

_FORMATS: Final = {body_format.value: body_format for body_format in BodyFormat}

BODY_BYTES_MAX: Final = {
    BodyFormat.JSON: int(MAX_FRAME_BYTES * JSON_BODY_FACTOR),  # base64url makes a body a third longer
    BodyFormat.MSGPACK: MAX_FRAME_BYTES,
}


def body_format(content_type: str | None) -> BodyFormat:
    """The form that `Content-Type` says; JSON when it says none. Raises UNSUPPORTED_MEDIA_TYPE for any other."""
    if content_type is None:
        return BodyFormat.JSON
    media_type, _, parameters = content_type.partition(";")
    found = _FORMATS.get(media_type.strip().lower())
    if found is None or not _is_utf8(parameters):
        raise MailboxError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, outcome=Outcome.NOT_COMMITTED)
    return found


def _is_utf8(parameters: str) -> bool:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in ("utf-8", "utf8"):
            return False
    return True


def answer_format(accept: str | None, content_type: str | None) -> BodyFormat:
    """The form of the answer: the one that `Accept` likes better; where it likes both, the one the request came in.

    JSON when nothing else was asked for. Never an error: an answer in JSON helps more than a 406.
    """
    qualities = _qualities(accept)
    json, msgpack = (_quality(qualities, each) for each in (BodyFormat.JSON, BodyFormat.MSGPACK))
    if json == msgpack:
        asked = _FORMATS.get((content_type or "").partition(";")[0].strip().lower())
        return asked if asked is not None and msgpack > 0 else BodyFormat.JSON
    return BodyFormat.MSGPACK if msgpack > json else BodyFormat.JSON


def _qualities(accept: str | None) -> dict[str, float]:
    qualities: dict[str, float] = {}
    for part in (accept or "*/*").split(","):
        media_range, *parameters = part.split(";")
        quality = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip().lower() == "q":
                quality = _number(value.strip())
        qualities[media_range.strip().lower()] = quality
    return qualities


def _number(text: str) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0


def _quality(qualities: dict[str, float], wanted: BodyFormat) -> float:
    for media_range in (wanted.value, "application/*", "*/*"):
        if media_range in qualities:
            return qualities[media_range]
    return 0.0
