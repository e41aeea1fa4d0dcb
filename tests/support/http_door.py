"""A gateway inside the test's own process, and devices that speak HTTP to it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgpack

from gateway.app import Gateway
from protocol.ids import DeviceId, IdentityId, InstanceId, from_text, id_from_text, to_text
from runtime.clock import Clock, SystemClock
from runtime.config import GatewayConfig
from runtime.keyring import KEYRING_FILE, create
from runtime.setting_types import ListenAddress
from store.instance import ensure_instance
from store.policy import PolicyStore
from store.policy_rules import Policy
from tests.support.accounts import Keys
from tests.support.services import Services

FREE_PORT = ListenAddress("127.0.0.1", 0)
MSGPACK = "application/msgpack"
ON_EVERY_ANSWER = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Server": "mailboxd",
}


class Reply(NamedTuple):
    """One answer, its body read by its media type."""

    status: int
    headers: Mapping[str, str]
    content: Any
    raw: bytes

    @property
    def code(self) -> str:
        """The error code of a problem document."""
        return str(self.content["code"])


@dataclass
class Door:
    """A running gateway and a client for its two ports."""

    gateway: Gateway
    session: aiohttp.ClientSession
    url: str
    ops_url: str
    stopping: asyncio.Event

    @property
    def instance(self) -> InstanceId:
        return self.gateway.services.instance_id

    async def set_policy(self, *assignments: str) -> None:
        """Change the policy and have this gateway follow at once."""
        services = self.gateway.services
        await PolicyStore(services.postgres, services.audit).change(assignments, request_id="test")
        await services.policy.refresh()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        as_msgpack: bool = False,
        raw: bytes | BytesIO | None = None,
        ops: bool = False,
    ) -> Reply:
        """Ask, and check what holds for every answer. `body` is a map of JSON or, `as_msgpack`, of MessagePack."""
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        if key is not None:
            sent["Idempotency-Key"] = key
        data: bytes | BytesIO | None = raw
        if body is not None:
            data = msgpack.packb(body) if as_msgpack else json.dumps(body).encode()
            sent.setdefault("Content-Type", MSGPACK if as_msgpack else "application/json")
        if isinstance(data, bytes) and len(data) > 1 << 20:
            data = BytesIO(data)  # the client's library warns of large bodies in one piece
        if as_msgpack:
            sent.setdefault("Accept", MSGPACK)
        async with self.session.request(
            method, (self.ops_url if ops else self.url) + path, data=data, headers=sent
        ) as response:
            return check_reply(response, await response.read())

    async def device(self, keys: Keys | None = None) -> HttpDevice:
        """A device of an identity of its own, with a token."""
        keys = keys or Keys()
        reply = await self.call("POST", "/v1/identities", registration_body(keys, self.instance))
        assert reply.status == 201, reply
        device = HttpDevice(
            self,
            keys,
            IdentityId(id_from_text(reply.content["identity_id"])),
            DeviceId(id_from_text(reply.content["device_id"])),
        )
        device.token = await device.fresh_token()
        return device


@dataclass
class HttpDevice:
    door: Door
    keys: Keys
    identity_id: IdentityId
    device_id: DeviceId
    token: str = field(default="", repr=False)

    @property
    def id(self) -> str:
        return to_text(self.device_id)

    async def challenge(self, purpose: str = "token") -> bytes:
        reply = await self.door.call("POST", "/v1/auth/challenges", {"device_id": self.id, "purpose": purpose})
        assert reply.status == 201, reply
        return from_text(reply.content["challenge"])

    async def ask_token(self) -> Reply:
        challenge = await self.challenge()
        signature = self.keys.token_signature(self.door.instance, self.device_id, challenge)
        body = {"device_id": self.id, "challenge": to_text(challenge), "signature": to_text(signature)}
        return await self.door.call("POST", "/v1/auth/tokens", body)

    async def fresh_token(self) -> str:
        reply = await self.ask_token()
        assert reply.status == 201, reply
        return str(reply.content["token"])

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> Reply:
        return await self.door.call(method, path, body, token=self.token, **more)

    async def send(self, *to: HttpDevice, body: bytes = b"sealed", **more: Any) -> Reply:
        """One envelope to each, under a fresh cmid."""
        return await self.call("POST", "/v1/envelopes", send_body(*[each.id for each in to], body=body), **more)

    async def addition_body(self, new: Keys, replaces: str | None = None) -> dict[str, Any]:
        challenge = await self.challenge("device.add")
        addition = self.keys.addition(self.door.instance, self.identity_id, self.device_id, challenge, new)
        body = {
            "device_public_key": to_text(new.public),
            "proof": to_text(addition.proof),
            "challenge": to_text(challenge),
            "signature": to_text(addition.signature),
        }
        return body if replaces is None else {**body, "replaces": replaces}

    async def revocation_body(self, target: DeviceId) -> dict[str, Any]:
        challenge = await self.challenge("device.revoke")
        revocation = self.keys.revocation(self.door.instance, self.device_id, challenge, target)
        return {"challenge": to_text(challenge), "signature": to_text(revocation.signature)}


def registration_body(keys: Keys, instance: InstanceId, invite: str | None = None) -> dict[str, Any]:
    registration = keys.registration(instance)
    body = {
        "identity_public_bundle": to_text(registration.identity_public_bundle),
        "device_public_key": to_text(registration.device_public_key),
        "signature": to_text(registration.signature),
    }
    return body if invite is None else {**body, "invite": invite}


def an_envelope(to: str, body: bytes = b"sealed") -> dict[str, Any]:
    return {"to": to, "message_id": random_id(), "protocol_version": 1, "body": to_text(body)}


def send_body(*to: str, body: bytes = b"sealed", cmid: str | None = None) -> dict[str, Any]:
    return {"client_message_id": cmid or random_id(), "envelopes": [an_envelope(each, body) for each in to]}


def random_id() -> str:
    return to_text(os.urandom(16))


def check_reply(response: aiohttp.ClientResponse, raw: bytes) -> Reply:
    """The answer; AssertionError when it lacks what every answer has."""
    for name, value in ON_EVERY_ANSWER.items():
        assert response.headers.get(name) == value, (name, response.headers)
    request_id = response.headers["X-Request-Id"]
    content: Any = None
    if response.content_type == MSGPACK:
        content = msgpack.unpackb(raw)
    elif response.content_type.endswith("json"):
        content = json.loads(raw)
    if response.status >= 400 and isinstance(content, dict) and "code" in content:
        assert response.content_type in ("application/problem+json", MSGPACK)
        assert content["status"] == response.status
        assert content["request_id"] == request_id
        if "retry_after_ms" in content:
            assert int(response.headers["Retry-After"]) >= content["retry_after_ms"] / 1000
    return Reply(response.status, response.headers, content, raw)


@asynccontextmanager
async def running_door(
    dsn: str, redis_url: str, secrets_dir: Path, *, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[Door]:
    """A gateway on free ports, registration open. Loopback is not exempt from limits."""
    if not (secrets_dir / KEYRING_FILE).exists():
        create(secrets_dir, SystemClock().wall_ms())
    config = GatewayConfig(
        postgres_dsn=dsn,
        redis_url=redis_url,
        secrets_dir=secrets_dir,
        listen=FREE_PORT,
        ops_listen=FREE_PORT,
        drain_deadline_s=settings.pop("drain_deadline_s", 0.5),
        **settings,
    )
    async with AsyncExitStack() as stack:
        gateway = await Gateway.open(config, clock or SystemClock(), stack)
        session = await stack.enter_async_context(aiohttp.ClientSession(auto_decompress=False))
        stopping = asyncio.Event()
        running = asyncio.create_task(gateway.run(stopping))
        door = Door(gateway, session, f"http://{gateway.ports[0]}", f"http://{gateway.ports[1]}", stopping)
        try:
            await door.set_policy("registration=open")
            yield door
        finally:
            stopping.set()
            await running


@asynccontextmanager
async def shared_door(services: Services, directory: Path) -> AsyncIterator[Door]:
    """A gateway for a whole module, on a database of its own: for tests that change neither policy nor settings."""
    dsn = services.create(services.migrated_template())
    try:
        await ensure_instance(dsn, policy=Policy(), signing_keys={})
        async with running_door(dsn, services.empty_redis(), directory, loopback_exempt=True) as door:
            await door.set_policy("submit_rate_per_device=0")
            yield door
    finally:
        services.drop(dsn)
