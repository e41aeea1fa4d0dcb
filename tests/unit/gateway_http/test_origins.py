"""Pages call only from origins that the operator listed."""

from __future__ import annotations

import pytest

from gateway.http.origins import cors_headers, preflight_headers, require_allowed
from protocol.errors import ErrorCode, MailboxError

LISTED = ("https://app.example",)


def test_apps_without_an_origin_and_listed_pages_may_call() -> None:
    require_allowed(None, ())
    require_allowed("https://app.example", LISTED)
    assert cors_headers(None, ()) == {}
    assert cors_headers("https://app.example", LISTED)["Access-Control-Allow-Origin"] == "https://app.example"


@pytest.mark.parametrize(
    "origin", ["null", "https://app.example.evil", "http://app.example", "https://app.example:8443"]
)
def test_a_page_of_any_other_origin_is_refused(origin: str) -> None:
    with pytest.raises(MailboxError) as caught:
        require_allowed(origin, LISTED)
    assert caught.value.code is ErrorCode.FORBIDDEN
    assert "Access-Control-Allow-Origin" not in cors_headers(origin, LISTED)


def test_answers_differ_by_origin_wherever_one_is_listed() -> None:
    assert cors_headers(None, LISTED) == {"Vary": "Origin"}


def test_a_preflight_names_what_a_client_needs() -> None:
    headers = preflight_headers("https://app.example", LISTED)
    assert {"Authorization", "Content-Type", "Idempotency-Key"} <= {
        name.strip() for name in headers["Access-Control-Allow-Headers"].split(",")
    }
    assert "DELETE" in headers["Access-Control-Allow-Methods"]
