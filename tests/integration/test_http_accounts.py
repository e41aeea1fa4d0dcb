"""Identities, challenges, tokens and devices over HTTP (WIRE, "HTTP"; seed 001, 2.2 and 2.3)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.auth import AuthService
from protocol.errors import ErrorCode
from protocol.ids import DeviceId, from_text, to_text
from store.auth import ChallengeStore
from store.postgres import Postgres
from tests.support.accounts import Keys
from tests.support.http_door import (
    Door,
    HttpDevice,
    random_id,
    registration_body,
    running_door,
    send_body,
    shared_door,
)
from tests.support.services import Services, set_clock_offset
from worker.push.vapid import Vapid

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(services: Services, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    async with shared_door(services, tmp_path_factory.mktemp("door")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def own_door(database: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Door]:
    async with running_door(database, redis_url, tmp_path) as running:
        yield running


async def test_the_instance_tells_its_keys_limits_and_mode(door: Door) -> None:
    reply = await door.call("GET", "/v1/instance")
    assert reply.content["instance_id"] == to_text(door.instance)
    assert [len(from_text(key["public_key"])) for key in reply.content["signing_keys"]] == [32]
    assert reply.content["limits"] == {
        "max_frame_bytes": 4_194_304,
        "envelope_bytes_max": 65_536,
        "ttl_s_min": 60,
        "ttl_s_default": 604_800,
        "ttl_s_max": 604_800,
        "sends_in_flight": 256,
        "bytes_in_flight": 8_388_608,
        "batch_entries_max": 64,
        "ack_max": 100,
    }
    assert (reply.content["registration"], reply.content["protocol_versions"]) == ("open", [1])
    # The key that the worker shows to push services is the one that apps bind their subscriptions to.
    worker = Vapid(door.gateway.services.keyring.vapid_key, contact=None, wall_seconds=lambda: 0.0)
    assert reply.content["vapid_public_key"] == worker.public_key
    assert from_text(worker.public_key)[:1] == b"\x04"
    assert len(from_text(worker.public_key)) == 65


async def test_a_registration_is_repeatable_by_its_key_and_by_its_device_key(door: Door) -> None:
    body = registration_body(Keys(), door.instance)
    first = await door.call("POST", "/v1/identities", body, key="r-1")
    assert first.status == 201
    assert first.content["public_address"] == first.content["identity_id"]
    for key in ("r-1", "r-2", None):
        again = await door.call("POST", "/v1/identities", body, key=key)
        assert (again.status, again.content) == (201, first.content)


@pytest.mark.parametrize(
    "change",
    [
        {"device_public_key": ""},
        {"device_public_key": None},
        {"device_public_key": 5},
        {"device_public_key": "A" * 44},
        {"device_public_key": "A" * 42 + "B"},  # stray bits
        {"device_public_key": "A" * 43 + "="},
        {"device_public_key": "+" * 43},
        {"identity_public_bundle": ""},
        {"identity_public_bundle": to_text(bytes(8_193))},
        {"signature": to_text(bytes(63))},
        {"signature": True},
        {"invite": ""},
        {"invite": 1},
    ],
)
async def test_a_malformed_registration_is_a_bad_request_that_names_the_field(
    door: Door, change: dict[str, Any]
) -> None:
    reply = await door.call("POST", "/v1/identities", {**registration_body(Keys(), door.instance), **change})
    assert (reply.status, reply.code, reply.content["outcome"]) == (400, "BAD_REQUEST", "not_committed")
    assert next(iter(change)) in reply.content["detail"]


@pytest.mark.parametrize("key", ["", "with space", "a" * 256, "tab\there"])
async def test_an_idempotency_key_is_visible_ascii_of_255_characters_at_most(door: Door, key: str) -> None:
    reply = await door.call("POST", "/v1/identities", registration_body(Keys(), door.instance), key=key)
    assert (reply.status, reply.code) == (400, "BAD_REQUEST")


async def test_registration_modes_open_closed_and_by_invite(own_door: Door) -> None:
    await own_door.set_policy("registration=closed")
    reply = await own_door.call("POST", "/v1/identities", registration_body(Keys(), own_door.instance))
    assert (reply.status, reply.code) == (403, "REGISTRATION_CLOSED")
    await own_door.set_policy("registration=invite")
    body = registration_body(Keys(), own_door.instance, invite="no-such-invite")
    reply = await own_door.call("POST", "/v1/identities", body)
    assert (reply.status, reply.code) == (403, "INVITE_INVALID")


async def test_registrations_are_held_to_a_number_an_hour_and_address(own_door: Door) -> None:
    await own_door.set_policy("registrations_per_ip_per_hour=2")
    replies = [
        await own_door.call("POST", "/v1/identities", registration_body(Keys(), own_door.instance)) for _ in range(3)
    ]
    assert [reply.status for reply in replies] == [201, 201, 429]
    assert replies[2].code == "RATE_LIMITED"
    assert 1_700_000 < replies[2].content["retry_after_ms"] <= 1_800_000


async def test_a_challenge_tells_its_context_and_looks_the_same_for_unknown_devices(door: Door) -> None:
    device = await door.device()
    for purpose, context in (
        ("token", "mailboxd.token.v1"),
        ("device.add", "mailboxd.device-add.v1"),
        ("device.revoke", "mailboxd.device-revoke.v1"),
    ):
        answers = [
            await door.call("POST", "/v1/auth/challenges", {"device_id": each, "purpose": purpose})
            for each in (device.id, random_id())
        ]
        for answer in answers:
            assert answer.status == 201
            assert answer.content["context"] == context
            assert len(from_text(answer.content["challenge"])) == 32
        known, unknown = (answer.content for answer in answers)
        assert known.keys() == unknown.keys()
        assert abs(known["expires_at"] - unknown["expires_at"]) < 5_000
    reply = await door.call("POST", "/v1/auth/challenges", {"device_id": device.id, "purpose": "other"})
    assert reply.code == "BAD_REQUEST"


async def test_an_unknown_device_costs_the_same_queries_as_a_known_one(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the time tell them apart by more than what the database makes of the same statements."""
    device, stranger = await door.device(), Keys()
    asked: list[str] = []
    for name in ("fetch", "fetchrow", "fetchval", "execute"):
        original = getattr(Postgres, name)

        async def noting(self: Postgres, query: str, *args: Any, original: Any = original) -> Any:
            if "auth_challenges" in query or "device_public_key" in query:
                asked.append(query)
            return await original(self, query, *args)

        monkeypatch.setattr(Postgres, name, noting)

    async def sign_in(device_id: str) -> tuple[list[str], list[tuple[int, str]]]:
        """What the database is asked, and what is answered, when somebody without the key tries."""
        asked.clear()
        challenge = await door.call("POST", "/v1/auth/challenges", {"device_id": device_id, "purpose": "token"})
        signature = stranger.token_signature(
            door.instance, DeviceId(from_text(device_id)), from_text(challenge.content["challenge"])
        )
        body = {
            "device_id": device_id,
            "challenge": challenge.content["challenge"],
            "signature": to_text(signature),
        }
        refused = await door.call("POST", "/v1/auth/tokens", body)
        return list(asked), [(challenge.status, ""), (refused.status, refused.content["detail"])]

    known, unknown = await sign_in(device.id), await sign_in(random_id())
    assert known == unknown
    assert len(known[0]) >= 2
    assert known[1][1][0] == 401


async def test_a_signing_key_written_into_the_database_makes_no_token(own_door: Door) -> None:
    """The table only publishes keys; what signs and what is believed is in the keyring."""
    services = own_door.gateway.services
    device = await own_door.device()
    forger = Ed25519PrivateKey.generate()
    await services.postgres.execute(
        "INSERT INTO instance_signing_keys (kid, purpose, public_key) VALUES ('forged', 'token', $1)",
        forger.public_key().public_bytes_raw(),
    )
    auth = AuthService(
        services.postgres, ChallengeStore(services.postgres), services.auth._verifier, own_door.instance,
        ("forged", forger), services.clock,
    )  # fmt: skip
    reply = await own_door.call("GET", "/v1/mailbox", token=auth.issue(device.device_id).token)
    assert (reply.status, reply.code) == (401, "UNAUTHENTICATED")
    assert [key["kid"] for key in (await own_door.call("GET", "/v1/instance")).content["signing_keys"]] == [
        services.keyring.token_signing[0]
    ]


async def test_a_token_tells_its_end_and_opens_the_mailbox(door: Door) -> None:
    device = await door.device()
    reply = await device.ask_token()
    assert reply.content["expires_in_s"] == 900
    assert reply.content["reauth_before"] == reply.content["expires_at"] - 60_000
    assert (await door.call("GET", "/v1/mailbox", token=reply.content["token"])).status == 200


async def test_a_challenge_makes_one_token_even_when_many_ask(door: Door) -> None:
    device = await door.device()
    challenge = await device.challenge()
    signature = device.keys.token_signature(door.instance, device.device_id, challenge)
    body = {"device_id": device.id, "challenge": to_text(challenge), "signature": to_text(signature)}
    replies = await asyncio.gather(*[door.call("POST", "/v1/auth/tokens", body, key="same") for _ in range(8)])
    assert sorted(reply.status for reply in replies) == [201] + [401] * 7


async def test_unknown_device_wrong_key_wrong_purpose_and_old_challenge_are_not_told_apart(own_door: Door) -> None:
    door = own_door
    device, other = await door.device(), await door.device()
    good = await device.challenge()

    def body(device_id: str, challenge: bytes, signature: bytes) -> dict[str, str]:
        return {"device_id": device_id, "challenge": to_text(challenge), "signature": to_text(signature)}

    def signed(keys: Keys, challenge: bytes, device_id: DeviceId = device.device_id) -> bytes:
        return keys.token_signature(door.instance, device_id, challenge)

    for_revoking = await device.challenge("device.revoke")
    unknown = DeviceId(os.urandom(16))
    wrong = [
        body(to_text(unknown), good, signed(device.keys, good, unknown)),
        body(device.id, good, signed(other.keys, good)),
        body(device.id, for_revoking, signed(device.keys, for_revoking)),
        body(device.id, os.urandom(32), signed(device.keys, good)),
        body(other.id, good, signed(other.keys, good, other.device_id)),
    ]
    replies = [await door.call("POST", "/v1/auth/tokens", each) for each in wrong]
    assert {(reply.status, reply.code, reply.content["detail"]) for reply in replies} == {
        (401, "UNAUTHENTICATED", replies[0].content["detail"])
    }
    assert (await door.call("POST", "/v1/auth/tokens", body(device.id, good, signed(device.keys, good)))).status == 201
    events = await door.gateway.services.audit.list(limit=10)
    assert [event.event_type for event in events].count("proof.failed") == len(wrong)
    assert all(event.outcome == "refused" for event in events if event.event_type == "proof.failed")


async def test_a_challenge_is_too_old_after_a_minute(own_door: Door, database: str) -> None:
    device = await own_door.device()
    challenge = await device.challenge()
    signature = device.keys.token_signature(own_door.instance, device.device_id, challenge)
    connection = await asyncpg.connect(database)
    try:
        await set_clock_offset(connection, 61)
    finally:
        await connection.close()
    body = {"device_id": device.id, "challenge": to_text(challenge), "signature": to_text(signature)}
    assert (await own_door.call("POST", "/v1/auth/tokens", body)).code == "UNAUTHENTICATED"


async def test_a_phone_is_changed_and_the_old_one_may_do_nothing_any_more(door: Door) -> None:
    old = await door.device()
    sender = await door.device()
    new_keys = Keys()
    body = await old.addition_body(new_keys, replaces=old.id)
    added = await old.call("POST", "/v1/devices", body, key="change")
    assert added.status == 201
    new = HttpDevice(door, new_keys, old.identity_id, DeviceId(from_text(added.content["device_id"])))
    new.token = await new.fresh_token()
    listed = (await new.call("GET", "/v1/devices")).content["devices"]
    assert {device["device_id"]: device["status"] for device in listed} == {old.id: "revoked", new.id: "active"}
    assert {device["device_public_key"] for device in listed} == {to_text(old.keys.public), to_text(new_keys.public)}
    for method, path, content in everything_a_device_may_ask(old):
        reply = await old.call(method, path, content)
        assert (reply.status, reply.code) == (403, "DEVICE_REVOKED"), (method, path)
    assert (await old.ask_token()).code == "DEVICE_REVOKED"
    assert (await sender.send(old)).code == "UNKNOWN_RECIPIENT"
    assert (await sender.send(new)).status == 201
    # But the repeat of what revoked it is answered.
    assert (await old.call("POST", "/v1/devices", body, key="change")).content == added.content


def everything_a_device_may_ask(device: HttpDevice) -> list[tuple[str, str, Any]]:
    key = to_text(os.urandom(32))
    return [
        ("GET", "/v1/devices", None),
        ("PUT", "/v1/prekeys", {"one_time": [{"key_id": 1, "public_key": key}]}),
        ("GET", "/v1/prekeys", None),
        ("POST", f"/v1/identities/{to_text(device.identity_id)}/prekey-claims", {}),
        ("POST", "/v1/envelopes", send_body(device.id)),
        ("GET", "/v1/mailbox", None),
        ("GET", "/v1/mailbox/status", None),
        ("POST", "/v1/mailbox/acks", {"message_ids": [random_id()]}),
        ("PUT", "/v1/push-route", {"provider": "fcm", "token": "t"}),
        ("GET", "/v1/push-route", None),
        ("DELETE", "/v1/push-route", None),
    ]


async def test_a_token_alone_neither_adds_nor_revokes(door: Door) -> None:
    device = await door.device()
    body = await device.addition_body(Keys(), replaces=device.id)
    used = {**body, "challenge": to_text(os.urandom(32))}
    assert (await device.call("POST", "/v1/devices", used)).code == "UNAUTHENTICATED"
    revocation = {"challenge": to_text(os.urandom(32)), "signature": to_text(bytes(64))}
    assert (await device.call("POST", f"/v1/devices/{device.id}/revocation", revocation)).code == "UNAUTHENTICATED"
    assert (await device.call("GET", "/v1/mailbox")).status == 200


async def test_the_device_limit_is_told(door: Door) -> None:
    device = await door.device()
    reply = await device.call("POST", "/v1/devices", await device.addition_body(Keys()))
    assert (reply.status, reply.code, reply.content["outcome"]) == (409, "DEVICE_LIMIT", "not_committed")


async def test_revoking_answers_its_repeat_even_to_the_revoked_device(door: Door) -> None:
    device = await door.device()
    path = f"/v1/devices/{device.id}/revocation"
    body = await device.revocation_body(device.device_id)
    for _ in range(2):
        reply = await device.call("POST", path, body, key="bye")
        assert (reply.status, reply.content) == (200, {})
    fresh = await device.revocation_body(device.device_id)
    assert (await device.call("POST", path, fresh)).code == "DEVICE_REVOKED"
    assert (await device.call("GET", "/v1/mailbox")).code == "DEVICE_REVOKED"


@pytest.mark.parametrize("path_id", ["short", "A" * 22, "=" * 22, "%00" * 3, "A" * 21 + "B"])
async def test_a_malformed_id_in_a_path_is_a_bad_request(door: Door, path_id: str) -> None:
    device = await door.device()
    body = {"challenge": to_text(bytes(32)), "signature": to_text(bytes(64))}
    reply = await device.call("POST", f"/v1/devices/{path_id}/revocation", body)
    assert (reply.status, reply.code) == (400, "BAD_REQUEST")
    reply = await device.call("POST", f"/v1/identities/{path_id}/prekey-claims", {})
    assert (reply.status, reply.code) == (400, "BAD_REQUEST")


async def test_another_identitys_device_is_not_found(door: Door) -> None:
    device, stranger = await door.device(), await door.device()
    body = await device.revocation_body(stranger.device_id)
    reply = await device.call("POST", f"/v1/devices/{stranger.id}/revocation", body)
    assert (reply.status, reply.code) == (404, ErrorCode.NOT_FOUND)
    assert (await stranger.call("GET", "/v1/mailbox")).status == 200
