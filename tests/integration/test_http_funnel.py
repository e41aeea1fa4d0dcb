"""What holds for every HTTP request, whatever it asks for: ids, problems, sizes, times, forms, methods, origins."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import msgpack
import pytest
import pytest_asyncio

from gateway.handlers import http_instance
from gateway.http import connection
from gateway.http.routes import ROUTES
from protocol.errors import ErrorCode, MailboxError
from protocol.ids import to_text
from tests.support.accounts import Keys
from tests.support.http_door import MSGPACK, Door, registration_body, running_door, send_body, shared_door
from tests.support.services import Services
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(services: Services, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    async with shared_door(services, tmp_path_factory.mktemp("door")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def own_door(database: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Door]:
    async with running_door(database, redis_url, tmp_path) as running:
        yield running


async def raw_exchange(door: Door, data: bytes, *, end: bool = False) -> bytes:
    """What the server writes until it closes; bounded."""
    host, port = door.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        if end:
            writer.write_eof()
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


def parse(answer: bytes) -> tuple[int, dict[str, str], Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
    return int(line.split(" ")[1]), headers, json.loads(body) if body else None


async def test_every_answer_has_a_request_id_of_its_own(door: Door) -> None:
    ids = {(await door.call("GET", path)).headers["X-Request-Id"] for path in ("/v1/instance", "/nowhere", "/healthz")}
    assert len(ids) == 3
    assert all(re.fullmatch(r"[0-9a-f]{16}", each) for each in ids)


async def test_a_client_cannot_choose_the_request_id(door: Door) -> None:
    reply = await door.call("GET", "/v1/instance", headers={"X-Request-Id": "chosen"})
    assert reply.headers["X-Request-Id"] != "chosen"


async def test_unknown_paths_and_methods_are_problems_in_the_form_asked_for(door: Door) -> None:
    reply = await door.call("GET", "/v1/nothing")
    assert (reply.status, reply.code, reply.headers["Content-Type"]) == (404, "NOT_FOUND", "application/problem+json")
    reply = await door.call("GET", "/v1/nothing", as_msgpack=True)
    assert (reply.status, reply.code, reply.headers["Content-Type"]) == (404, "NOT_FOUND", MSGPACK)
    assert "outcome" not in reply.content  # nothing was to be written
    reply = await door.call("DELETE", "/v1/instance")
    assert (reply.status, reply.code, reply.headers["Allow"]) == (405, "METHOD_NOT_ALLOWED", "GET")
    assert reply.content["outcome"] == "not_committed"
    assert (await door.call("OPTIONS", "/v1/instance")).status == 405


async def test_a_path_has_one_spelling(door: Door) -> None:
    for path in (
        "/v1%2Finstance",
        "/v1/%69nstance",
        "/v1/instance/",
        "//v1/instance",
        "/v1/instance%00",
        "/v1/./instance",
    ):
        target = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert parse(await raw_exchange(door, target.encode()))[0] == 404, path
    upgrade = (
        "GET /v1/w%73 HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mailboxd.v1\r\nConnection: upgrade, close\r\n\r\n"
    )
    assert parse(await raw_exchange(door, upgrade.encode()))[0] == 404
    for target in ("/v1/instance?x=%2F", "http://anywhere.example/v1/instance?x"):
        request = f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert parse(await raw_exchange(door, request.encode()))[0] == 200, target


@pytest.mark.parametrize("route", [route for route in ROUTES if route.caller.name in ("DEVICE", "SENDER")], ids=str)
async def test_every_route_for_devices_asks_for_a_token_first(door: Door, route: Any) -> None:
    path = route.path.replace("{device_id}", "x").replace("{identity_id}", "x")
    reply = await door.call(route.method, path, raw=b"not even json")
    assert (reply.status, reply.code, reply.headers["WWW-Authenticate"]) == (401, "UNAUTHENTICATED", "Bearer")


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer ", "Basic abc", "Bearer a.b.c", "Bearer x y", "bearer " + "a" * 3_000]
)
async def test_what_is_no_bearer_token_is_unauthenticated(door: Door, value: str) -> None:
    reply = await door.call("GET", "/v1/mailbox", headers={"Authorization": value})
    assert (reply.status, reply.code) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b"{}{}",
        b"{} x",
        b"\xff\xfe",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"device_id": "\xc3"}',
        b"[" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"device_id": ' + b"9" * 5_000 + b"}",
        b"{" + b",".join(b'"%d":[]' % n for n in range(5_000)) + b"}",
        b"\xef\xbb\xbf{}",
        b'{"purpose": "token", "device_id": "AAAAAAAAAAAAAAAAAAAAAQ", "device_id": "AAAAAAAAAAAAAAAAAAAAAg"}',
        b'{"device_id": "AAAAAAAAAAAAAAAAAAAAAQ", "purpose": "token", "of_tomorrow": {"a": 1, "\\u0061": 2}}',
    ],
)
async def test_what_is_no_json_object_is_a_bad_request(door: Door, raw: bytes) -> None:
    reply = await door.call("POST", "/v1/auth/challenges", raw=raw, headers={"Content-Type": "application/json"})
    assert (reply.status, reply.code) == (400, "BAD_REQUEST")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc0",
        b"\x90",
        b"\x80\x80",
        b"\x81",
        b"\xc1",
        b"\x81\xa1a\xd4\x01\x00",
        b"\x81\x01\x01",
        b"\xdf\xff\xff\xff\xff",
    ],
)
async def test_what_is_no_msgpack_map_is_a_bad_request(door: Door, raw: bytes) -> None:
    reply = await door.call(
        "POST", "/v1/auth/challenges", raw=raw, headers={"Content-Type": MSGPACK, "Accept": MSGPACK}
    )
    assert (reply.status, reply.code, reply.headers["Content-Type"]) == (400, "BAD_REQUEST", MSGPACK)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "application/xml"])
async def test_another_content_type_is_unsupported(door: Door, content_type: str) -> None:
    reply = await door.call("POST", "/v1/auth/challenges", raw=b"{}", headers={"Content-Type": content_type})
    assert (reply.status, reply.code) == (415, "UNSUPPORTED_MEDIA_TYPE")


async def test_a_compressed_body_is_unsupported_and_never_unpacked(door: Door) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    reply = await door.call("POST", "/v1/auth/challenges", raw=b"\x1f\x8b rest", headers=headers)
    assert (reply.status, reply.code) == (415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize(("content_type", "limit"), [("application/json", 5_872_025), (MSGPACK, 4_194_304)])
async def test_a_body_beyond_the_limit_is_too_large_told_or_found(door: Door, content_type: str, limit: int) -> None:
    headers = {"Content-Type": content_type, "Accept": "application/json"}
    told = await door.call("POST", "/v1/auth/challenges", raw=BytesIO(b" " * (limit + 1)), headers=headers)
    assert (told.status, told.code) == (413, "REQUEST_TOO_LARGE")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(limit // 65_536 + 2):
            yield b" " * 65_536

    async with door.session.post(door.url + "/v1/auth/challenges", data=chunks(), headers=headers) as response:
        found = await response.json(content_type=None)
    assert (response.status, found["code"]) == (413, "REQUEST_TOO_LARGE")
    fits = await door.call("POST", "/v1/auth/challenges", raw=BytesIO(b" " * limit), headers=headers)
    assert fits.code == "BAD_REQUEST"  # read to its end, and then no map
    assert door.gateway.services.inbound.used == 0


async def test_a_body_that_would_be_refused_is_never_asked_for(door: Door) -> None:
    head = (
        "POST /v1/envelopes HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
        "Expect: 100-continue\r\n{}\r\n"
    )
    status, _, content = parse(await raw_exchange(door, head.format("").encode()))
    assert (status, content["code"]) == (401, "UNAUTHENTICATED")
    device = await door.device()
    authorization = f"Authorization: Bearer {device.token}\r\nConnection: close\r\n"
    answer = await raw_exchange(door, head.format(authorization).encode() + b"{}".ljust(100))
    interim, _, final = answer.partition(b"\r\n\r\n")
    assert interim == b"HTTP/1.1 100 Continue"
    assert parse(final)[2]["code"] == "BAD_REQUEST"


async def test_a_body_that_breaks_off_or_never_comes_changes_nothing(
    database: str, redis_url: str, tmp_path: Path
) -> None:
    async with running_door(database, redis_url, tmp_path, request_timeout_s=0.2) as door:
        head = (
            b"POST /v1/auth/challenges HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 9\r\n\r\n{"
        )
        status, headers, content = parse(await raw_exchange(door, head))
        assert (status, content["code"], headers["connection"]) == (400, "BAD_REQUEST", "close")
        await raw_exchange(door, head, end=True)
        assert await door.gateway.services.postgres.fetchval("SELECT count(*) FROM auth_challenges") == 0
        assert door.gateway.services.inbound.used == 0


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET /v1/instance HTTP/9.9\r\n\r\n",
        b"GET /v1/instance HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/instance HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /v1/instance HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 200 + b"\r\n",
        b"POST /v1/envelopes HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/envelopes HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_bytes_that_are_no_request_get_a_problem_with_a_request_id(door: Door, data: bytes) -> None:
    status, headers, content = parse(await raw_exchange(door, data + b"\r\n\r\n"))
    assert (status, content["code"], headers["x-request-id"]) == (400, "BAD_REQUEST", content["request_id"])


async def test_header_bytes_that_are_no_text_are_refused_like_any_wrong_value(door: Door) -> None:
    device = await door.device()
    good = f"Authorization: Bearer {device.token}\r\n".encode()
    get = b"GET /v1/mailbox/status HTTP/1.1\r\nHost: x\r\n"
    odd = b"X-Forwarded-For: \xff\r\nAccept: \xff\r\nContent-Type: \xff\r\n"
    wrong = b"Authorization: Bearer \xff\xfe\r\n"
    keyed = b"POST /v1/mailbox/acks HTTP/1.1\r\nHost: x\r\nIdempotency-Key: \xff\r\nContent-Length: 0\r\n"
    page = b"Origin: https://\xff\r\nConnection: close\r\n"
    requests = [get + good, get + good + odd, get + wrong, keyed + good, get + good + page]
    answer = await raw_exchange(door, b"".join(request + b"\r\n" for request in requests))
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"200", b"401", b"400", b"403"]


async def test_a_head_that_never_ends_is_dropped(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.1)
    host, port = door.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await reader.readuntil(b"}")
        writer.write(b"GET /healthz HTTP/1.1\r\nHost:")
        async with asyncio.timeout(10):
            assert await reader.read() == b""
    finally:
        await close(writer)
    assert answer.startswith(b"HTTP/1.1 200 OK")


async def test_a_client_that_takes_no_answer_is_dropped(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SLOW_CONSUMER_S", 0.1)
    sender, recipient = await door.device(), await door.device()
    for _ in range(24):
        assert (await sender.send(recipient, body=bytes(65_536))).status == 201
    host, port = door.url.removeprefix("http://").split(":")
    pull = f"GET /v1/mailbox HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {recipient.token}\r\n\r\n".encode()
    limits = door.gateway.limits
    before = limits.connections
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect((host, int(port)))
        client.sendall(pull * 8)  # answers of more than 8 MiB, which nobody reads
        await eventually(lambda: limits.connections == before + 1, what="the answers wait")
        await eventually(lambda: limits.connections == before, what="the connection is dropped")
        client.settimeout(10)
        taken = await asyncio.to_thread(lambda: sum(map(len, iter(lambda: client.recv(1 << 20), b""))))
    assert taken < 8 << 20


async def test_pipelined_requests_are_answered_in_order(door: Door) -> None:
    one = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"
    data = (
        one % b"/v1/instance"
        + one % b"/v1/nothing"
        + one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") % b"/healthz"
    )
    answer = await raw_exchange(door, data)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"404", b"200"]


async def test_a_bug_is_told_as_internal_without_its_text(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(door.gateway.services.identities, "register", broken)
    reply = await door.call("POST", "/v1/identities", registration_body(Keys(), door.instance))
    assert (reply.status, reply.code, reply.content["outcome"]) == (500, "INTERNAL", "unknown")
    assert b"secret" not in reply.raw
    assert reply.content["retryable"] is True


async def test_a_bug_in_the_store_is_found_in_the_log_by_its_request_id(
    own_door: Door, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    postgres = own_door.gateway.services.postgres
    await postgres.execute("ALTER TABLE auth_challenges ADD CONSTRAINT broken CHECK (false) NOT VALID")
    body = {"device_id": "AAAAAAAAAAAAAAAAAAAAAQ", "purpose": "token"}
    reply = await own_door.call("POST", "/v1/auth/challenges", body)
    assert (reply.status, reply.code, reply.content["outcome"]) == (500, "INTERNAL", "not_committed")
    assert reply.content["request_id"] in caplog.text + capsys.readouterr().out


async def test_a_time_out_inside_is_internal_and_not_aiohttps_504(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(door.gateway.services.auth, "challenge", slow)
    body = {"device_id": "AAAAAAAAAAAAAAAAAAAAAQ", "purpose": "token"}
    reply = await door.call("POST", "/v1/auth/challenges", body)
    assert (reply.status, reply.code) == (500, "INTERNAL")


async def test_a_retry_time_is_a_header_in_whole_seconds(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object, **__: object) -> None:
        raise MailboxError(ErrorCode.UNAVAILABLE, retry_after_ms=1_001)

    monkeypatch.setattr(door.gateway.services.auth, "challenge", away)
    body = {"device_id": "AAAAAAAAAAAAAAAAAAAAAQ", "purpose": "token"}
    reply = await door.call("POST", "/v1/auth/challenges", body)
    assert (reply.status, reply.headers["Retry-After"], reply.content["retry_after_ms"]) == (503, "2", 1_001)
    assert reply.content["outcome"] == "not_committed"


async def test_the_websockets_path_without_an_upgrade_is_426(door: Door) -> None:
    reply = await door.call("GET", "/v1/ws")
    assert (reply.status, reply.headers["Upgrade"]) == (426, "websocket")
    assert (await door.call("POST", "/v1/ws")).status == 405


async def test_metrics_are_on_the_operations_port_alone_and_health_on_both(door: Door) -> None:
    assert (await door.call("GET", "/metrics")).status == 404
    await door.call("GET", "/v1/instance")
    text = (await door.call("GET", "/metrics", ops=True)).raw.decode()
    assert 'mailboxd_http_requests_total{route="/v1/instance",status="200"} ' in text
    for ops in (False, True):
        assert (await door.call("GET", "/healthz", ops=ops)).content == {"status": "alive"}
        assert (await door.call("GET", "/readyz", ops=ops)).content == {"status": "ready"}
    assert (await door.call("GET", "/v1/instance", ops=True)).status == 404
    assert (await door.call("GET", "/v1/ws", ops=True)).status == 404


async def test_pages_call_only_from_listed_origins(database: str, redis_url: str, tmp_path: Path) -> None:
    listed = {"Origin": "https://app.example"}
    async with running_door(database, redis_url, tmp_path, allowed_origins=("https://app.example",)) as door:
        reply = await door.call("GET", "/v1/instance", headers=listed)
        assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (200, "https://app.example")
        asked = {**listed, "Access-Control-Request-Method": "POST"}
        preflight = await door.call("OPTIONS", "/v1/envelopes", headers=asked)
        assert preflight.status == 204
        assert "Authorization" in preflight.headers["Access-Control-Allow-Headers"]
        error = await door.call("GET", "/v1/mailbox", headers=listed)
        assert (error.status, error.headers["Access-Control-Allow-Origin"]) == (401, "https://app.example")
        for method in ("GET", "OPTIONS"):
            refused = await door.call(method, "/v1/instance", headers={"Origin": "https://evil.example"})
            assert (refused.status, refused.code) == (403, "FORBIDDEN")
            assert "Access-Control-Allow-Origin" not in refused.headers


async def test_calls_without_a_token_are_held_to_a_rate_per_address(own_door: Door) -> None:
    await own_door.set_policy("submit_rate_per_ip=1", "submit_burst_per_ip=64")
    statuses = [(await own_door.call("GET", "/v1/instance")).status for _ in range(80)]
    assert statuses.count(429) >= 10
    refused = await own_door.call("GET", "/v1/mailbox", headers={"Authorization": "Bearer a.b.c"})
    assert (refused.status, refused.code) == (429, "RATE_LIMITED")
    assert (await own_door.call("GET", "/healthz")).status == 200


async def test_who_signs_in_is_held_to_a_budget_before_the_database_is_asked(own_door: Door) -> None:
    device = await own_door.device()
    postgres = own_door.gateway.services.postgres
    before = await postgres.fetchval("SELECT count(*) FROM auth_challenges")
    await own_door.set_policy("handshakes_per_second=5", "submit_rate_per_ip=0")
    body = {"device_id": device.id, "purpose": "token"}
    replies = [await own_door.call("POST", "/v1/auth/challenges", body) for _ in range(40)]
    refused = [reply for reply in replies if reply.status != 201]
    assert len(refused) >= 20
    assert {(reply.status, reply.code, reply.content["outcome"]) for reply in refused} == {
        (503, "UNAVAILABLE", "not_committed")
    }
    # Every client gets a time of its own, at the rate that is welcome.
    times = [reply.content["retry_after_ms"] for reply in refused]
    assert len(set(times)) > 1
    assert max(times) >= 200 * len(refused) * 0.5
    assert own_door.gateway.services.come_back.after_ms() < 2_000  # whom a restart sends away waits no longer for it
    written = await postgres.fetchval("SELECT count(*) FROM auth_challenges") - before
    assert written == len(replies) - len(refused)


async def test_the_budget_of_signing_in_holds_nobody_else(own_door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    device = await own_door.device()
    limits = own_door.gateway.limits
    monkeypatch.setattr(limits.account_requests, "take", lambda: False)
    for path in ("/v1/identities", "/v1/auth/challenges", "/v1/auth/tokens"):
        reply = await own_door.call("POST", path, raw=b"never read", headers={"Expect": "100-continue"})
        assert (reply.status, reply.code) == (503, "UNAVAILABLE")
    for path in ("/v1/instance", "/openapi.json", "/readyz", "/v1/mailbox/status"):
        assert (await device.call("GET", path)).status == 200
    async with own_door.session.ws_connect(own_door.url + "/v1/ws", protocols=("mailboxd.v1",)):
        assert limits.upgrades.take()


async def test_calls_of_a_device_are_held_to_a_rate_of_its_own(own_door: Door) -> None:
    one, other = await own_door.device(), await own_door.device()
    await own_door.set_policy("submit_rate_per_device=1", "submit_burst_per_device=64")
    statuses = [(await one.call("GET", "/v1/mailbox/status")).status for _ in range(80)]
    assert statuses.count(429) >= 10
    assert (await other.call("GET", "/v1/mailbox/status")).status == 200
    assert (await one.send(other)).status == 201


async def test_behind_a_trusted_proxy_the_limit_holds_the_client_it_names(
    database: str, redis_url: str, tmp_path: Path
) -> None:
    async with running_door(database, redis_url, tmp_path, trusted_proxies="127.0.0.1") as door:
        await door.set_policy("submit_rate_per_ip=1", "submit_burst_per_ip=64")
        one, other = {"X-Forwarded-For": "spoofed, 198.51.100.1"}, {"X-Forwarded-For": "198.51.100.2"}
        statuses = [(await door.call("GET", "/v1/instance", headers=one)).status for _ in range(80)]
        assert statuses.count(429) >= 10
        assert (await door.call("GET", "/v1/instance", headers=other)).status == 200


async def test_a_draining_gateway_takes_nobody_new_and_says_when_to_come(
    database: str, redis_url: str, tmp_path: Path
) -> None:
    async with running_door(database, redis_url, tmp_path) as door:
        door.gateway.services.drain.begin()
        reply = await door.call("GET", "/v1/instance")
        assert (reply.status, reply.code, reply.headers["Connection"]) == (503, "UNAVAILABLE", "close")
        assert reply.content["retry_after_ms"] > 0
        assert (await door.call("GET", "/healthz")).status == 200
        assert (await door.call("GET", "/readyz")).content == {"status": "draining"}


async def test_json_and_msgpack_say_the_same(door: Door) -> None:
    """Each answer once in either form: equal once bytes are written as text."""
    one, other = await door.device(), await door.device()
    body = send_body(other.id)
    assert (await one.call("POST", "/v1/envelopes", body)).status == 201
    for method, path, content in (
        ("GET", "/v1/instance", None),
        ("GET", "/v1/devices", None),
        ("GET", "/v1/prekeys", None),
        ("GET", "/v1/mailbox/status", None),
        ("GET", "/v1/mailbox", None),
        ("POST", "/v1/envelopes", body),
    ):
        as_json = await one.call(method, path, content)
        headers = {"Accept": MSGPACK}
        as_msgpack = await one.call(method, path, content, headers=headers)
        assert as_msgpack.headers["Content-Type"] == MSGPACK
        stable = {"cursor", "watermark"}  # sealed anew in every answer
        assert as_text(as_msgpack.content, stable) == as_text(as_json.content, stable)
    bad = {"envelopes": 1}
    as_json = await one.call("POST", "/v1/envelopes", bad, key="k")
    as_msgpack = await one.call("POST", "/v1/envelopes", bad, key="k", as_msgpack=True)
    assert as_text(as_msgpack.content, {"request_id"}) == as_text(as_json.content, {"request_id"})


def as_text(value: Any, leave_out: set[str]) -> Any:
    if isinstance(value, bytes):
        return to_text(value)
    if isinstance(value, dict):
        return {name: as_text(each, leave_out) for name, each in value.items() if name not in leave_out}
    if isinstance(value, list):
        return [as_text(each, leave_out) for each in value]
    return value


async def test_unknown_keys_are_ignored_and_bytes_are_bin(door: Door) -> None:
    body = msgpack.packb({"device_id": b"d" * 16, "purpose": "token", "of_tomorrow": [1, {"a": b"b"}]})
    headers = {"Content-Type": MSGPACK, "Accept": MSGPACK}
    reply = await door.call("POST", "/v1/auth/challenges", raw=body, headers=headers)
    assert reply.status == 201
    assert len(reply.content["challenge"]) == 32
    text = msgpack.packb({"device_id": "d" * 22, "purpose": "token"})
    assert (await door.call("POST", "/v1/auth/challenges", raw=text, headers=headers)).code == "BAD_REQUEST"


async def test_the_contract_is_served(door: Door) -> None:
    reply = await door.call("GET", "/openapi.json")
    assert (reply.status, reply.content["openapi"]) == (200, "3.1.0")
    assert reply.content == json.loads(json.dumps(http_instance.document()))
