"""What a revocation ends, each part by itself: sessions, tokens, route, keys, mail; and who can bring one about."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from protocol.errors import MailboxError
from protocol.frames import Hello, Send, SendEnvelope
from protocol.ids import ClientMessageId, DeviceId, MessageId, from_text, to_text
from store.policy_rules import Policy
from store.retention import RetentionStore, Table
from tests.support.accounts import Keys
from tests.support.http_door import Door, HttpDevice, Reply, running_door
from tests.support.raw_client import RawClient
from tests.support.waiting import eventually, in_time

NOWHERE = "redis://127.0.0.1:1"

Revoke = Callable[[HttpDevice], Awaitable[None]]


@pytest.fixture
async def doors(database: str, redis_url: str, tmp_path: Path) -> AsyncIterator[tuple[Door, Door]]:
    """Two gateways of one instance."""
    async with (
        running_door(database, redis_url, tmp_path) as here,
        running_door(database, redis_url, tmp_path) as there,
    ):
        yield here, there


@asynccontextmanager
async def session(device: HttpDevice, door: Door) -> AsyncIterator[RawClient]:
    parts = urlsplit(door.url)
    client = await RawClient.connect(str(parts.hostname), int(parts.port or 0))
    try:
        assert (await client.upgrade()).status == 101
        await client.hello(device.token)
        await client.caught_up()
        yield client
    finally:
        client.cut()
        with suppress(ConnectionError):
            await client.writer.wait_closed()


async def by_itself(device: HttpDevice) -> None:
    body = await device.revocation_body(device.device_id)
    assert (await device.call("POST", f"/v1/devices/{device.id}/revocation", body)).status == 200


async def by_a_new_phone(device: HttpDevice) -> None:
    body = await device.addition_body(Keys(), replaces=device.id)
    assert (await device.call("POST", "/v1/devices", body)).status == 201


async def by_the_operator(device: HttpDevice) -> None:
    services = device.door.gateway.services
    assert await services.identities.revoke_by_operator(device.device_id, request_id="admin")
    services.wake.publish_revoked([device.device_id])


WAYS = pytest.mark.parametrize("revoke", [by_itself, by_a_new_phone, by_the_operator])


async def another_of(device: HttpDevice) -> HttpDevice:
    """A second device of the same identity."""
    await device.door.set_policy("max_active_devices_per_identity=2")
    keys = Keys()
    added = await device.call("POST", "/v1/devices", await device.addition_body(keys))
    assert added.status == 201
    other = HttpDevice(device.door, keys, device.identity_id, DeviceId(from_text(added.content["device_id"])))
    other.token = await other.fresh_token()
    return other


class TestSessions:
    @WAYS
    @pytest.mark.parametrize("where", [0, 1])
    async def test_the_live_session_ends_within_a_second_on_any_gateway(
        self, doors: tuple[Door, Door], revoke: Revoke, where: int
    ) -> None:
        async def closed_after() -> float:
            device = await doors[0].device()
            async with session(device, doors[where]) as client:
                await revoke(device)
                began = time.monotonic()
                assert (await client.closed()).code == 4403
                return time.monotonic() - began

        await in_time(closed_after, at_most_s=1)

    async def test_the_identitys_other_device_keeps_its_session(self, doors: tuple[Door, Door]) -> None:
        device = await doors[0].device()
        other = await another_of(device)
        async with session(device, doors[0]) as ends, session(other, doors[1]) as stays:
            await by_itself(device)
            assert (await ends.closed()).code == 4403
            await stays.deliver(other.device_id)
            assert stays.errors() == []

    @WAYS
    async def test_without_redis_it_ends_within_the_sweep(self, database: str, tmp_path: Path, revoke: Revoke) -> None:
        settings: dict[str, Any] = {"sweep_without_redis_s": 0.5, "sweep_s": 60.0}
        async with (
            running_door(database, NOWHERE, tmp_path, **settings) as here,
            running_door(database, NOWHERE, tmp_path, **settings) as there,
        ):
            device = await here.device()
            async with session(device, there) as client:
                await eventually(lambda: not there.gateway.listener.alive, what="it knows that Redis is away")
                await revoke(device)
                began = time.monotonic()
                assert (await client.closed()).code == 4403
                assert time.monotonic() - began < 20

    async def test_a_gateway_that_dies_before_it_tells_leaves_it_to_the_sweep(
        self, database: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with (
            running_door(database, redis_url, tmp_path, sweep_s=0.5) as here,
            running_door(database, redis_url, tmp_path, sweep_s=0.5) as there,
        ):
            monkeypatch.setattr(type(here.gateway.services.wake), "publish_revoked", lambda *_: None)
            device = await here.device()
            async with session(device, there) as client:
                await by_itself(device)
                assert (await client.closed()).code == 4403

    async def test_what_the_session_asks_for_before_it_hears_of_it_is_refused(
        self, doors: tuple[Door, Door], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No wake and no sweep: the commit alone already counts."""
        here, there = doors
        monkeypatch.setattr(type(here.gateway.services.wake), "publish_revoked", lambda *_: None)
        device, friend = await here.device(), await here.device()
        async with session(device, there) as client:
            await by_itself(device)
            mid = MessageId(os.urandom(16))
            client.send(Send(ClientMessageId(os.urandom(16)), (SendEnvelope(friend.device_id, mid, 1, b"x"),)))
            while not client.errors():
                await client.frame()
            assert [error.code for error in client.errors()] == ["DEVICE_REVOKED"]
        assert (await friend.call("GET", "/v1/mailbox/status")).content["pending_entries"] == 0


class TestTokens:
    @WAYS
    async def test_its_token_ends_at_once_at_every_gateway_and_door(
        self, doors: tuple[Door, Door], revoke: Revoke
    ) -> None:
        device = await doors[0].device()
        for door in doors:
            assert (await door.call("GET", "/v1/mailbox", token=device.token)).status == 200
        await revoke(device)
        for door in doors:
            reply = await door.call("GET", "/v1/mailbox", token=device.token)
            assert (reply.status, reply.code) == (403, "DEVICE_REVOKED")
            parts = urlsplit(door.url)
            client = await RawClient.connect(str(parts.hostname), int(parts.port or 0))
            assert (await client.upgrade()).status == 101
            client.send(Hello(device.token))
            assert (await client.closed()).code == 4403
            await client.leave()
        assert (await device.ask_token()).code == "DEVICE_REVOKED"


class TestEverythingElse:
    @WAYS
    async def test_route_keys_and_mailbox_go_in_the_same_transaction(
        self, doors: tuple[Door, Door], revoke: Revoke
    ) -> None:
        here, _ = doors
        device, sender = await here.device(), await here.device()
        key = {"key_id": 1, "public_key": "A" * 43}
        last = {**key, "signature": "A" * 86}
        uploaded = await device.call("PUT", "/v1/prekeys", {"one_time": [key], "last_resort": last})
        assert uploaded.status == 200
        assert (await device.call("PUT", "/v1/push-route", {"provider": "fcm", "token": "t"})).status == 200
        assert (await sender.send(device)).status == 201
        postgres = here.gateway.services.postgres
        # Whatever part of it fails: nothing of it happened.
        for table in ("push_routes", "prekeys", "last_resort_prekeys"):
            await postgres.execute(
                "CREATE OR REPLACE FUNCTION stop_here() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN RAISE EXCEPTION 'stopped by a test'; END $$"
            )
            await postgres.execute(
                f"CREATE TRIGGER stop BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION stop_here()"
            )
            with pytest.raises((AssertionError, MailboxError)):  # 500 over HTTP
                await revoke(device)
            await postgres.execute(f"DROP TRIGGER stop ON {table}")
            assert await standing(here, device) == ("active", 1, 1, 1, 1)
            assert (await sender.send(device)).status == 201
        await revoke(device)
        assert await standing(here, device) == ("revoked", 2, 0, 0, 0)
        assert (await sender.send(device)).code == "UNKNOWN_RECIPIENT"
        claim = await sender.call("POST", f"/v1/identities/{to_text(device.identity_id)}/prekey-claims", {})
        assert device.id not in [each["device_id"] for each in claim.content["devices"]]

    @WAYS
    async def test_no_send_gets_in_after_the_commit_however_many_race(
        self, doors: tuple[Door, Door], revoke: Revoke
    ) -> None:
        """Each SEND either came before the revocation, and was confirmed, or finds an unknown recipient."""
        device = await doors[0].device()
        senders = [await door.device() for door in doors for _ in range(3)]
        replies: list[Reply] = []

        async def keep_sending(sender: HttpDevice) -> None:
            while True:
                replies.append(await sender.send(device))
                if replies[-1].status != 201:
                    return

        sending = asyncio.gather(*map(keep_sending, senders))
        await eventually(lambda: len(replies) > 20, what="they send")
        await revoke(device)
        stored = await count(doors[0], "envelopes WHERE recipient_device_id = $1 AND kind = 0", device)
        await sending
        assert [reply.code for reply in replies if reply.status != 201] == ["UNKNOWN_RECIPIENT"] * len(senders)
        assert await count(doors[0], "envelopes WHERE recipient_device_id = $1 AND kind = 0", device) == stored
        assert sum(reply.status == 201 for reply in replies) == stored

    async def test_cleanup_removes_its_mail(self, doors: tuple[Door, Door]) -> None:
        here, _ = doors
        device, sender = await here.device(), await here.device()
        for _ in range(3):
            assert (await sender.send(device)).status == 201
        await by_itself(device)
        assert (await RetentionStore(here.gateway.services.postgres).sweep(Table.REVOKED, Policy(), 10)).deleted == 3
        assert await count(here, "envelopes WHERE recipient_device_id = $1", device) == 0


async def standing(door: Door, device: HttpDevice) -> tuple[Any, ...]:
    postgres = door.gateway.services.postgres
    status = await postgres.fetchval("SELECT status FROM devices WHERE device_id = $1", device.device_id)
    state = await postgres.fetchval("SELECT state FROM mailboxes WHERE device_id = $1", device.device_id)
    tables = ("push_routes", "prekeys", "last_resort_prekeys")
    return (status, state, *[await count(door, f"{table} WHERE device_id = $1", device) for table in tables])


async def count(door: Door, rows: str, device: HttpDevice) -> int:
    return int(await door.gateway.services.postgres.fetchval(f"SELECT count(*) FROM {rows}", device.device_id))


class TestStolenToken:
    """Who has a token and not the device's key: challenges are open to anybody, signatures are not."""

    async def thief_of(self, door: Door) -> tuple[HttpDevice, HttpDevice]:
        """The owner, and what a thief can be: the owner's ids and token, with other keys."""
        owner = await door.device()
        return owner, HttpDevice(door, Keys(), owner.identity_id, owner.device_id, owner.token)

    async def test_it_cannot_add_a_device(self, doors: tuple[Door, Door]) -> None:
        door = doors[0]
        owner, thief = await self.thief_of(door)
        own_keys = Keys()
        good = await owner.addition_body(own_keys)  # never sent by the owner, say: it was taken on its way
        attempts = [
            await thief.addition_body(Keys()),
            await thief.addition_body(Keys(), replaces=owner.id),
            # Another key under a signature that is the owner's.
            {**good, "device_public_key": to_text(thief.keys.public)},
            # A challenge that the owner signed for something else.
            await self.signed_for_a_token(owner, thief),
        ]
        for body in attempts:
            reply = await thief.call("POST", "/v1/devices", body)
            assert (reply.status, reply.code, reply.content["outcome"]) == (401, "UNAUTHENTICATED", "not_committed")
        assert (
            await count(
                door, "devices WHERE identity_id = (SELECT identity_id FROM devices WHERE device_id = $1)", owner
            )
            == 1
        )

    async def signed_for_a_token(self, owner: HttpDevice, thief: HttpDevice) -> dict[str, Any]:
        challenge = await owner.challenge("token")
        body = await thief.addition_body(Keys())
        signature = owner.keys.token_signature(owner.door.instance, owner.device_id, challenge)
        return {**body, "challenge": to_text(challenge), "signature": to_text(signature)}

    async def test_it_cannot_revoke_one(self, doors: tuple[Door, Door]) -> None:
        door = doors[0]
        owner, thief = await self.thief_of(door)
        spent = await owner.revocation_body(owner.device_id)
        other = await another_of(owner)
        used = await owner.revocation_body(other.device_id)
        path = f"/v1/devices/{other.id}/revocation"
        assert (await owner.call("POST", path, used)).status == 200
        for target, body in (
            (owner, await thief.revocation_body(owner.device_id)),
            (owner, used),  # the owner's own, and another target
            (other, used),  # the owner's own, and used up
            (other, spent),
            (owner, {**spent, "challenge": to_text(await owner.challenge("device.revoke"))}),
        ):
            reply = await thief.call("POST", f"/v1/devices/{target.id}/revocation", body)
            assert (reply.status, reply.code) == (401, "UNAUTHENTICATED")
        assert (await owner.call("GET", "/v1/mailbox")).status == 200

    async def test_it_gets_no_other_token_and_no_account_of_the_owners(self, doors: tuple[Door, Door]) -> None:
        door = doors[0]
        owner, thief = await self.thief_of(door)
        assert (await thief.ask_token()).code == "UNAUTHENTICATED"
        # Registering the owner's key anew takes a signature by it too.
        registration = owner.keys.registration(door.instance)
        forged = thief.keys.registration(door.instance)
        body = {
            "identity_public_bundle": to_text(registration.identity_public_bundle),
            "device_public_key": to_text(registration.device_public_key),
            "signature": to_text(forged.signature),
        }
        reply = await door.call("POST", "/v1/identities", body, token=thief.token)
        assert (reply.status, reply.code) == (401, "UNAUTHENTICATED")
