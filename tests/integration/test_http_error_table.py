"""Every row of the error table that HTTP can meet is met, with its status and whether to try again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from protocol.errors import ERRORS, ErrorCode
from protocol.ids import to_text
from store.faults import overloaded
from tests.support.accounts import Keys
from tests.support.http_door import (
    Door,
    HttpDevice,
    Reply,
    an_envelope,
    random_id,
    registration_body,
    running_door,
    send_body,
)

# Of the WebSocket alone.
FRAMES_ONLY = {ErrorCode.BAD_FRAME, ErrorCode.UNSUPPORTED_FRAME}

Case = Callable[[Door, HttpDevice, HttpDevice], Awaitable[Reply]]
CASES: dict[ErrorCode, Case] = {}


def case(code: ErrorCode) -> Callable[[Case], Case]:
    def keep(function: Case) -> Case:
        CASES[code] = function
        return function

    return keep


@pytest_asyncio.fixture
async def door(database: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Door]:
    async with running_door(database, redis_url, tmp_path) as running:
        yield running


def test_there_is_a_case_for_every_code() -> None:
    assert set(CASES) == set(ErrorCode) - FRAMES_ONLY


@pytest.mark.parametrize("code", list(ErrorCode))
async def test_the_code_comes_with_its_status_and_advice(
    code: ErrorCode, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    if code in FRAMES_ONLY:
        assert ERRORS[code].http_status == 400
        return
    sender, recipient = await door.device(), await door.device()
    if code in _WITH_PATCH:
        monkeypatch.setattr(door.gateway.services.send._submit, "put", _WITH_PATCH[code])
    reply = await CASES[code](door, sender, recipient)
    kind = ERRORS[code]
    assert (reply.status, reply.code, reply.content["retryable"]) == (kind.http_status, code, kind.retryable), reply
    if kind.http_status == 429:
        assert reply.content["retry_after_ms"] > 0


def _broken(*_: object, **__: object) -> Any:
    raise RuntimeError


def _overloaded(*_: object, **__: object) -> Any:
    raise overloaded()


_WITH_PATCH = {ErrorCode.INTERNAL: _broken, ErrorCode.UNAVAILABLE: _overloaded}


@case(ErrorCode.BAD_REQUEST)
async def bad_request(_door: Door, sender: HttpDevice, _recipient: HttpDevice) -> Reply:
    return await sender.call("POST", "/v1/envelopes", {})


@case(ErrorCode.METHOD_NOT_ALLOWED)
async def method_not_allowed(door: Door, _sender: HttpDevice, _recipient: HttpDevice) -> Reply:
    return await door.call("PATCH", "/v1/instance")


@case(ErrorCode.UNSUPPORTED_MEDIA_TYPE)
async def unsupported_media_type(_door: Door, sender: HttpDevice, _recipient: HttpDevice) -> Reply:
    return await sender.call("POST", "/v1/envelopes", raw=b"{}", headers={"Content-Type": "text/plain"})


@case(ErrorCode.UNSUPPORTED_PROTOCOL_VERSION)
async def unsupported_protocol_version(_door: Door, sender: HttpDevice, recipient: HttpDevice) -> Reply:
    body = send_body(recipient.id)
    body["envelopes"][0]["protocol_version"] = 2
    return await sender.call("POST", "/v1/envelopes", body)


@case(ErrorCode.TTL_OUT_OF_RANGE)
async def ttl_out_of_range(_door: Door, sender: HttpDevice, recipient: HttpDevice) -> Reply:
    body = send_body(recipient.id)
    body["envelopes"][0]["ttl_s"] = -5
    return await sender.call("POST", "/v1/envelopes", body)


@case(ErrorCode.CURSOR_INVALID)
async def cursor_invalid(_door: Door, _sender: HttpDevice, recipient: HttpDevice) -> Reply:
    return await recipient.call("GET", "/v1/mailbox?cursor=nonsense")


@case(ErrorCode.CURSOR_EXPIRED)
async def cursor_expired(door: Door, _sender: HttpDevice, recipient: HttpDevice) -> Reply:
    services = door.gateway.services
    cursors = services.cursors.for_device(services.instance_id, recipient.device_id)
    old = cursors.seal(0, services.database_time.now_ms() - 46 * 86_400_000, services.postgres.epoch)
    return await recipient.call("GET", f"/v1/mailbox?cursor={old}")


@case(ErrorCode.UNAUTHENTICATED)
async def unauthenticated(door: Door, _sender: HttpDevice, _recipient: HttpDevice) -> Reply:
    return await door.call("GET", "/v1/mailbox")


@case(ErrorCode.TOKEN_EXPIRED)
async def token_expired(door: Door, sender: HttpDevice, _recipient: HttpDevice) -> Reply:
    auth = door.gateway.services.auth

    class AnHourAgo:
        def __init__(self, clock: Any) -> None:
            self._clock = clock

        def wall_ms(self) -> int:
            return int(self._clock.wall_ms()) - 3_600_000

    clock = auth._clock
    auth._clock = AnHourAgo(clock)  # type: ignore[assignment]
    token = auth.issue(sender.device_id).token
    auth._clock = clock
    return await door.call("GET", "/v1/mailbox", token=token)


@case(ErrorCode.DEVICE_REVOKED)
async def device_revoked(door: Door, sender: HttpDevice, _recipient: HttpDevice) -> Reply:
    await door.gateway.services.identities.revoke_by_operator(sender.device_id, request_id="r")
    return await sender.call("GET", "/v1/mailbox")


@case(ErrorCode.FORBIDDEN)
async def forbidden(door: Door, sender: HttpDevice, _recipient: HttpDevice) -> Reply:
    await door.gateway.services.postgres.execute("UPDATE identities SET status = 'disabled'")
    return await sender.call("GET", "/v1/mailbox")


@case(ErrorCode.REGISTRATION_CLOSED)
async def registration_closed(door: Door, _sender: HttpDevice, _recipient: HttpDevice) -> Reply:
    await door.set_policy("registration=closed")
    return await door.call("POST", "/v1/identities", registration_body(Keys(), door.instance))


@case(ErrorCode.INVITE_INVALID)
async def invite_invalid(door: Door, _sender: HttpDevice, _recipient: HttpDevice) -> Reply:
    await door.set_policy("registration=invite")
    return await door.call("POST", "/v1/identities", registration_body(Keys(), door.instance))


@case(ErrorCode.NOT_FOUND)
async def not_found(_door: Door, sender: HttpDevice, _recipient: HttpDevice) -> Reply:
    return await sender.call("GET", "/v1/push-route")


@case(ErrorCode.UNKNOWN_RECIPIENT)
async def unknown_recipient(_door: Door, sender: HttpDevice, _recipient: HttpDevice) -> Reply:
    return await sender.call("POST", "/v1/envelopes", send_body(random_id()))


@case(ErrorCode.IDEMPOTENCY_KEY_REUSED)
async def idempotency_key_reused(_door: Door, sender: HttpDevice, recipient: HttpDevice) -> Reply:
    cmid = random_id()
    assert (await sender.call("POST", "/v1/envelopes", send_body(recipient.id, cmid=cmid))).status == 201
    return await sender.call("POST", "/v1/envelopes", send_body(recipient.id, cmid=cmid))


@case(ErrorCode.MESSAGE_ID_CONFLICT)
async def message_id_conflict(_door: Door, sender: HttpDevice, recipient: HttpDevice) -> Reply:
    envelope = an_envelope(recipient.id)
    assert (await sender.call("POST", "/v1/envelopes", {"envelopes": [envelope]}, key="1")).status == 201
    other = {**envelope, "body": to_text(b"other")}
    return await sender.call("POST", "/v1/envelopes", {"envelopes": [other]}, key="2")


@case(ErrorCode.DEVICE_LIMIT)
async def device_limit(_door: Door, sender: HttpDevice, _recipient: HttpDevice) -> Reply:
    return await sender.call("POST", "/v1/devices", await sender.addition_body(Keys()))


@case(ErrorCode.PREKEY_LIMIT)
async def prekey_limit(_door: Door, sender: HttpDevice, _recipient: HttpDevice) -> Reply:
    for first in range(0, 1_000, 200):
        keys = [{"key_id": first + n, "public_key": to_text(bytes(32))} for n in range(200)]
        assert (await sender.call("PUT", "/v1/prekeys", {"one_time": keys})).status == 200
    one_more = {"one_time": [{"key_id": 1_000, "public_key": to_text(bytes(32))}]}
    return await sender.call("PUT", "/v1/prekeys", one_more)


@case(ErrorCode.ENVELOPE_TOO_LARGE)
async def envelope_too_large(_door: Door, sender: HttpDevice, recipient: HttpDevice) -> Reply:
    return await sender.send(recipient, body=bytes(65_537))


@case(ErrorCode.REQUEST_TOO_LARGE)
async def request_too_large(_door: Door, sender: HttpDevice, recipient: HttpDevice) -> Reply:
    body = {"client_message_id": random_id(), "envelopes": [an_envelope(recipient.id, bytes(5 << 20))]}
    return await sender.call("POST", "/v1/envelopes", body)


@case(ErrorCode.MAILBOX_FULL)
async def mailbox_full(door: Door, sender: HttpDevice, recipient: HttpDevice) -> Reply:
    await door.set_policy("pending_entries_max=1")
    assert (await sender.send(recipient)).status == 201
    return await sender.send(recipient)


@case(ErrorCode.ECHO_BACKLOG_FULL)
async def echo_backlog_full(door: Door, sender: HttpDevice, recipient: HttpDevice) -> Reply:
    await door.gateway.services.postgres.execute(
        "UPDATE mailboxes SET stored_echoes = 4096 WHERE device_id = $1", sender.device_id
    )
    return await sender.send(recipient)


@case(ErrorCode.RATE_LIMITED)
async def rate_limited(door: Door, sender: HttpDevice, recipient: HttpDevice) -> Reply:
    await door.set_policy("submit_rate_per_device=1", "submit_burst_per_device=64")
    body = {"client_message_id": random_id(), "envelopes": [an_envelope(recipient.id) for _ in range(64)]}
    assert (await sender.call("POST", "/v1/envelopes", body)).status == 201
    body["client_message_id"] = random_id()
    body["envelopes"] = [an_envelope(recipient.id) for _ in range(64)]
    return await sender.call("POST", "/v1/envelopes", body)


@case(ErrorCode.UNAVAILABLE)
async def unavailable(_door: Door, sender: HttpDevice, recipient: HttpDevice) -> Reply:
    reply = await sender.send(recipient)
    assert reply.content["outcome"] == "not_committed"
    return reply


@case(ErrorCode.INTERNAL)
async def internal(_door: Door, sender: HttpDevice, recipient: HttpDevice) -> Reply:
    reply = await sender.send(recipient)
    assert reply.content["outcome"] == "unknown"
    return reply
