"""Paths find their routes, exactly as WIRE's table writes them."""

from __future__ import annotations

import pytest

from gateway.http.routes import ROUTES, MethodNotAllowed, Router
from protocol.errors import ErrorCode, MailboxError

ROUTER = Router(ROUTES)


def test_every_route_finds_itself_with_its_ids() -> None:
    for route in ROUTES:
        path = route.path.replace("{device_id}", "some-device").replace("{identity_id}", "some-identity")
        found, ids = ROUTER.find(route.method, path)
        assert found is route
        assert set(ids.values()) == {part for part in path.split("/") if part.startswith("some-")}


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/instance/", "/v1/Instance", "/v1/devices//revocation", "*", "/metrics"]
)
def test_any_other_path_is_not_found(path: str) -> None:
    with pytest.raises(MailboxError) as caught:
        ROUTER.find("GET", path)
    assert caught.value.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/instance", "GET"),
        ("PATCH", "/v1/push-route", "DELETE, GET, PUT"),
        ("GET", "/v1/devices/x/revocation", "POST"),
        ("HEAD", "/v1/mailbox", "GET"),
        ("get", "/v1/mailbox", "GET"),
    ],
)
def test_another_method_is_not_allowed_and_the_right_ones_are_named(method: str, path: str, allowed: str) -> None:
    with pytest.raises(MethodNotAllowed) as caught:
        ROUTER.find(method, path)
    assert caught.value.allowed == allowed
