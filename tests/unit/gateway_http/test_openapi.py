"""The contract's document says what the code does, no more and no less."""

from __future__ import annotations

from typing import Any

import pytest
from openapi_spec_validator import validate

from gateway.http.openapi import OPERATIONS, document
from gateway.http.openapi_schemas import binary, schemas
from gateway.http.routes import ROUTES, Caller
from protocol.errors import ERRORS, ErrorCode
from protocol.ids import to_text
from protocol.limits import WireLimits
from tests.golden.write_openapi import OPENAPI_FILE, current_openapi

# Of the WebSocket alone, or of paths that are not in the table.
NOT_OVER_HTTP = {ErrorCode.BAD_FRAME, ErrorCode.UNSUPPORTED_FRAME, ErrorCode.METHOD_NOT_ALLOWED}


def test_it_is_valid_openapi() -> None:
    validate(document())


def test_it_has_every_route_and_no_other() -> None:
    assert list(OPERATIONS) == [(route.method, route.path) for route in ROUTES]


def test_a_route_that_asks_for_a_token_says_so() -> None:
    for route in ROUTES:
        wants_token = route.caller in (Caller.DEVICE, Caller.SENDER)
        assert OPERATIONS[route.method, route.path].token is wants_token, route.path


def test_every_error_code_of_http_appears_with_its_status() -> None:
    named: dict[str, set[str]] = {}
    for path in document()["paths"].values():
        for operation in path.values():
            for status, response in operation["responses"].items():
                if int(status) >= 400 and "ref" not in response and ", " in response["description"] + ", ":
                    for code in response["description"].split(", "):
                        named.setdefault(code, set()).add(status)
    named.pop("OK")  # health's 503 is no problem document
    assert set(named) == {str(code) for code in set(ErrorCode) - NOT_OVER_HTTP}
    assert all(statuses == {str(ERRORS[ErrorCode(code)].http_status)} for code, statuses in named.items())


def test_the_kept_file_is_the_served_document() -> None:
    assert OPENAPI_FILE.read_text(encoding="utf-8") == current_openapi(), "run python -m tests.golden.write_openapi"


def test_every_named_schema_is_used() -> None:
    text = current_openapi()
    assert [name for name in schemas() if f'"#/components/schemas/{name}"' not in text] == []


def test_the_limits_of_the_instance_are_those_of_the_wire() -> None:
    assert list(schemas()["Instance"]["properties"]["limits"]["properties"]) == list(WireLimits._fields)


@pytest.mark.parametrize("size", [1, 2, 3, 16, 32, 64, 65])
def test_the_pattern_of_binary_values_takes_canonical_base64url_alone(size: int) -> None:
    import re

    for schema in (binary(size), binary(0, 100)):
        pattern: Any = re.compile(schema["pattern"])
        good = to_text(b"\xff" * size)
        assert pattern.search(good)
        assert not pattern.search(good + "=")
        assert not pattern.search(good[:-1] + "+")
        if size % 3:
            assert not pattern.search(good[:-1] + "9")  # stray bits
    assert (len(to_text(bytes(size))),) * 2 == (binary(size)["minLength"], binary(size)["maxLength"])
