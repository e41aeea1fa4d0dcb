"""Which form a body has, and which one the answer takes."""

from __future__ import annotations

import pytest

from gateway.http.media import BODY_BYTES_MAX, answer_format, body_format
from protocol.errors import ErrorCode, MailboxError
from protocol.http_values import BodyFormat

JSON, MSGPACK = BodyFormat.JSON, BodyFormat.MSGPACK


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (None, JSON),
        ("application/json", JSON),
        ("Application/JSON; charset=UTF-8", JSON),
        ('application/json; charset="utf-8"', JSON),
        ("application/msgpack", MSGPACK),
        ("application/msgpack; whatever=1", MSGPACK),
    ],
)
def test_a_body_is_read_as_its_content_type_says(content_type: str | None, expected: BodyFormat) -> None:
    assert body_format(content_type) is expected


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "", "application/x-www-form-urlencoded", "application/json; charset=latin-1", "application/jsonp"],
)
def test_any_other_content_type_is_unsupported(content_type: str) -> None:
    with pytest.raises(MailboxError) as caught:
        body_format(content_type)
    assert caught.value.code is ErrorCode.UNSUPPORTED_MEDIA_TYPE


@pytest.mark.parametrize(
    ("accept", "content_type", "expected"),
    [
        (None, None, JSON),
        ("*/*", "application/json", JSON),
        ("*/*", "application/msgpack", MSGPACK),
        (None, "application/msgpack", MSGPACK),
        ("application/msgpack", None, MSGPACK),
        ("application/msgpack", "application/json", MSGPACK),
        ("application/json", "application/msgpack", JSON),
        ("application/json;q=0.5, application/msgpack", None, MSGPACK),
        ("application/msgpack;q=0.1, */*;q=0.9", "application/msgpack", JSON),
        ("application/msgpack;q=0", "application/msgpack", JSON),
        ("application/*", "application/msgpack", MSGPACK),
        ("text/html", "application/msgpack", JSON),
        ("application/msgpack;q=nonsense", None, JSON),
        (", ;;,", None, JSON),
    ],
)
def test_the_answer_takes_the_form_that_was_asked_for(
    accept: str | None, content_type: str | None, expected: BodyFormat
) -> None:
    assert answer_format(accept, content_type) is expected


def test_a_json_body_may_be_larger_since_base64url_is() -> None:
    assert BODY_BYTES_MAX == {JSON: 5_872_025, MSGPACK: 4_194_304}
