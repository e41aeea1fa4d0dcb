"""What the HTTP door refuses: other methods on the WebSocket's path, push URLs that lead nowhere."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.http_door import Door, shared_door
from tests.support.services import Services

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(services: Services, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    async with shared_door(services, tmp_path_factory.mktemp("door")) as running:
        yield running


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_the_websockets_path_takes_no_other_method(door: Door, method: str) -> None:
    reply = await door.call(method, "/v1/ws")
    assert (reply.status, reply.code, reply.headers["Allow"]) == (405, "METHOD_NOT_ALLOWED", "GET")


@pytest.mark.parametrize(
    "url",
    [
        "https://[",
        "https://[::1/a",
        "https://push.example:99999/",
        "https://push.example:port/",
        "https://push.example:-1/",
        "https://user:word@push.example/",
        "https://:443/",
        "https://?a",
    ],
)
async def test_a_url_that_no_push_can_be_tried_to_is_refused_when_it_is_put(door: Door, url: str) -> None:
    device = await door.device()
    for body in ({"provider": "webpush", "endpoint": url}, {"provider": "gateway", "url": url}):
        reply = await device.call("PUT", "/v1/push-route", body)
        assert (reply.status, reply.code) == (400, "BAD_REQUEST")
