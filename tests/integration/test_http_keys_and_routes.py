"""Prekeys and push routes over HTTP (WIRE, "HTTP")."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import pytest_asyncio

from protocol.ids import from_text, to_text
from tests.support.http_door import MSGPACK, Door, random_id, running_door, shared_door
from tests.support.services import Services

pytestmark = pytest.mark.asyncio(loop_scope="module")

LAST_RESORT = {"key_id": 9, "public_key": to_text(b"l" * 32), "signature": to_text(b"s" * 64)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(services: Services, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    async with shared_door(services, tmp_path_factory.mktemp("door")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def own_door(database: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Door]:
    async with running_door(database, redis_url, tmp_path) as running:
        yield running


def one_time(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"key_id": first + n, "public_key": to_text(os.urandom(32))} for n in range(count)]


async def test_keys_are_uploaded_counted_and_claimed(door: Door) -> None:
    owner, claimer = await door.device(), await door.device()
    keys = one_time(3)
    reply = await owner.call("PUT", "/v1/prekeys", {"one_time": keys, "last_resort": LAST_RESORT})
    assert (reply.status, reply.content) == (200, {"one_time_left": 3})
    path = f"/v1/identities/{to_text(owner.identity_id)}/prekey-claims"
    claim = await claimer.call("POST", path, {}, key="claim")
    assert claim.status == 201
    assert claim.content["identity_public_bundle"] == to_text(owner.keys.bundle)
    assert claim.content["devices"] == [
        {
            "device_id": owner.id,
            "device_public_key": to_text(owner.keys.public),
            "last_resort": LAST_RESORT,
            "one_time": keys[0],
        }
    ]
    again = await claimer.call("POST", path, {}, key="claim")
    assert (again.status, again.content) == (201, claim.content)
    assert (await owner.call("GET", "/v1/prekeys")).content == {"one_time_left": 2}
    assert (await claimer.call("POST", path)).content["devices"][0]["one_time"] == keys[1]


async def test_an_empty_upload_is_fine_and_changes_nothing(door: Door) -> None:
    owner = await door.device()
    assert (await owner.call("PUT", "/v1/prekeys", {})).content == {"one_time_left": 0}
    assert (await owner.call("PUT", "/v1/prekeys", {"one_time": []})).content == {"one_time_left": 0}


@pytest.mark.parametrize(
    "body",
    [
        {"one_time": one_time(201)},
        {"one_time": {}},
        {"one_time": None},
        {"one_time": [{"key_id": -1, "public_key": to_text(bytes(32))}]},
        {"one_time": [{"key_id": 2**32, "public_key": to_text(bytes(32))}]},
        {"one_time": [{"key_id": True, "public_key": to_text(bytes(32))}]},
        {"one_time": [{"key_id": 1.0, "public_key": to_text(bytes(32))}]},
        {"one_time": [{"key_id": 1, "public_key": to_text(bytes(31))}]},
        {"one_time": [{"key_id": 1, "public_key": to_text(bytes(2_049))}]},
        {"one_time": [{"key_id": 1}]},
        {"one_time": [*one_time(1), *one_time(1)]},
        {"last_resort": {**LAST_RESORT, "signature": to_text(bytes(63))}},
        {"last_resort": {**LAST_RESORT, "signature": to_text(bytes(65))}},
        {"last_resort": one_time(1)[0]},
        {"last_resort": None},
    ],
)
async def test_a_malformed_upload_is_a_bad_request(door: Door, body: dict[str, Any]) -> None:
    owner = await door.device()
    reply = await owner.call("PUT", "/v1/prekeys", body)
    assert (reply.status, reply.code) == (400, "BAD_REQUEST")
    assert (await owner.call("GET", "/v1/prekeys")).content == {"one_time_left": 0}


async def test_the_limits_of_prekeys_are_told(door: Door) -> None:
    owner = await door.device()
    for first in range(0, 1_000, 200):
        assert (await owner.call("PUT", "/v1/prekeys", {"one_time": one_time(200, first)})).status == 200
    reply = await owner.call("PUT", "/v1/prekeys", {"one_time": one_time(1, 1_000)})
    assert (reply.status, reply.code) == (409, "PREKEY_LIMIT")
    other = {"one_time": [{"key_id": 1, "public_key": to_text(bytes(32))}]}
    assert (await owner.call("PUT", "/v1/prekeys", other)).code == "BAD_REQUEST"


async def test_a_claim_of_an_unknown_identity_is_not_found(door: Door) -> None:
    claimer = await door.device()
    reply = await claimer.call("POST", f"/v1/identities/{random_id()}/prekey-claims", {})
    assert (reply.status, reply.code) == (404, "NOT_FOUND")


async def test_a_claimer_past_its_rate_is_refused_and_its_repeats_are_not(own_door: Door) -> None:
    owner, claimer = await own_door.device(), await own_door.device()
    await owner.call("PUT", "/v1/prekeys", {"one_time": one_time(5)})
    await own_door.set_policy("prekey_claims_per_claimer_per_hour=2")
    path = f"/v1/identities/{to_text(owner.identity_id)}/prekey-claims"
    claims = [await claimer.call("POST", path, {}, key=f"k{n}") for n in range(3)]
    assert [claim.status for claim in claims] == [201, 201, 429]
    assert (await claimer.call("POST", path, {}, key="k0")).content == claims[0].content
    assert (await owner.call("GET", "/v1/prekeys")).content == {"one_time_left": 3}


async def test_past_the_targets_rate_the_one_time_key_is_null_and_never_an_error(own_door: Door) -> None:
    owner, claimer = await own_door.device(), await own_door.device()
    await owner.call("PUT", "/v1/prekeys", {"one_time": one_time(5), "last_resort": LAST_RESORT})
    await own_door.set_policy("prekey_claims_per_target_per_hour=2")
    path = f"/v1/identities/{to_text(owner.identity_id)}/prekey-claims"
    claims = [await claimer.call("POST", path, {}) for _ in range(4)]
    assert [claim.status for claim in claims] == [201] * 4
    given = [claim.content["devices"][0]["one_time"] is not None for claim in claims]
    assert given == [True, True, False, False]
    assert claims[3].content["devices"][0]["last_resort"] == LAST_RESORT


async def test_100_claims_at_once_give_100_different_keys(own_door: Door) -> None:
    owner, claimer = await own_door.device(), await own_door.device()
    await owner.call("PUT", "/v1/prekeys", {"one_time": one_time(100)})
    path = f"/v1/identities/{to_text(owner.identity_id)}/prekey-claims"
    slots = asyncio.Semaphore(10)

    async def claim() -> int:
        async with slots:
            reply = await claimer.call("POST", path, {})
        assert reply.status == 201, reply
        return int(reply.content["devices"][0]["one_time"]["key_id"])

    assert sorted(await asyncio.gather(*[claim() for _ in range(100)])) == list(range(100))


async def test_keys_cross_over_between_the_two_forms(door: Door) -> None:
    owner, claimer = await door.device(), await door.device()
    body = {"one_time": [{"key_id": 7, "public_key": b"k" * 40}]}
    reply = await owner.call("PUT", "/v1/prekeys", body, as_msgpack=True)
    assert reply.content == {"one_time_left": 1}
    path = f"/v1/identities/{to_text(owner.identity_id)}/prekey-claims"
    (device,) = (await claimer.call("POST", path, {})).content["devices"]
    assert device["one_time"] == {"key_id": 7, "public_key": to_text(b"k" * 40)}


PUSH_ROUTES = [
    {"provider": "webpush", "endpoint": "https://push.example/abc"},
    {
        "provider": "webpush",
        "endpoint": "http://127.0.0.1:1/abc",
        "p256dh": to_text(b"\x04" + bytes(64)),
        "auth": to_text(bytes(16)),
    },
    {"provider": "apns", "token": "ab" * 32, "topic": "org.example.app", "mode": "alert"},
    {"provider": "fcm", "token": "t" * 152},
    {"provider": "gateway", "url": "https://gateway.example/wake/1"},
]


async def test_a_route_is_put_shown_without_its_address_and_deleted(door: Door) -> None:
    device = await door.device()
    for body in PUSH_ROUTES:
        put = await device.call("PUT", "/v1/push-route", body)
        assert put.status == 200, put
        assert put.content.keys() == {"provider", "status", "wake_route_id", "created_at"}
        assert (put.content["provider"], put.content["status"]) == (body["provider"], "active")
        assert len(from_text(put.content["wake_route_id"])) == 16
        assert (await device.call("GET", "/v1/push-route")).content == put.content
    for _ in range(2):
        deleted = await device.call("DELETE", "/v1/push-route")
        assert (deleted.status, deleted.content) == (200, {})
    reply = await device.call("GET", "/v1/push-route")
    assert (reply.status, reply.code) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"provider": "pigeon"},
        {"provider": "webpush"},
        {"provider": "webpush", "endpoint": "ftp://push.example/a"},
        {"provider": "webpush", "endpoint": "push.example/a"},
        {"provider": "webpush", "endpoint": "https://"},
        {"provider": "webpush", "endpoint": "https://push.example/a b"},
        {"provider": "webpush", "endpoint": "https://push.example/" + "a" * 5_000},
        {"provider": "webpush", "endpoint": "https://push.example/a", "p256dh": to_text(bytes(65))},
        {"provider": "webpush", "endpoint": "https://push.example/a", "auth": to_text(bytes(16))},
        {"provider": "webpush", "endpoint": "https://push.example/a", "p256dh": "AA", "auth": to_text(bytes(16))},
        {"provider": "apns", "token": "ab", "topic": "org.example.app"},
        {"provider": "apns", "token": "ab", "topic": "org.example.app", "mode": "loud"},
        {"provider": "apns", "token": "", "topic": "t", "mode": "alert"},
        {"provider": "fcm", "token": ""},
        {"provider": "apns", "token": "ab", "topic": "org.example\r\napns-id: x", "mode": "alert"},
        {"provider": "apns", "token": "ab", "topic": "org.exämple", "mode": "alert"},
        {"provider": "apns", "token": "a b", "topic": "t", "mode": "alert"},
        {"provider": "fcm", "token": 5},
        {"provider": "fcm", "token": "a\nb"},
        {"provider": "gateway", "url": "javascript:alert(1)"},
    ],
)
async def test_a_malformed_route_is_a_bad_request(door: Door, body: dict[str, Any]) -> None:
    device = await door.device()
    reply = await device.call("PUT", "/v1/push-route", body)
    assert (reply.status, reply.code) == (400, "BAD_REQUEST")
    assert (await device.call("GET", "/v1/push-route")).status == 404


async def test_a_put_is_idempotent_by_key_and_by_address(door: Door) -> None:
    device = await door.device()
    first = await device.call("PUT", "/v1/push-route", PUSH_ROUTES[0], key="k")
    assert (await device.call("PUT", "/v1/push-route", PUSH_ROUTES[0])).content == first.content
    second = await device.call("PUT", "/v1/push-route", PUSH_ROUTES[3])
    assert second.content["wake_route_id"] != first.content["wake_route_id"]
    assert (await device.call("PUT", "/v1/push-route", PUSH_ROUTES[0], key="k")).content == first.content
    reply = await device.call("PUT", "/v1/push-route", PUSH_ROUTES[3], key="k")
    assert (reply.status, reply.code) == (409, "IDEMPOTENCY_KEY_REUSED")


async def test_binary_settings_may_come_as_bin(door: Door) -> None:
    device = await door.device()
    body = {"provider": "webpush", "endpoint": "https://p.example/1", "p256dh": b"\x04" + bytes(64), "auth": bytes(16)}
    reply = await device.call("PUT", "/v1/push-route", raw=msgpack.packb(body), headers={"Content-Type": MSGPACK})
    assert reply.status == 200
    route = await door.gateway.services.push_routes.route(device.device_id)
    assert route is not None
    assert dict(route.address.settings) == {
        "endpoint": "https://p.example/1",
        "p256dh": to_text(b"\x04" + bytes(64)),
        "auth": to_text(bytes(16)),
    }
