"""Devices for a run: registered and given tokens over HTTP, as an app would."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from nacl.signing import SigningKey

from protocol.ids import DeviceId, InstanceId, from_text, id_from_text, to_text
from protocol.signed_messages import register_message, token_message

CONCURRENCY: Final = 32
ATTEMPTS: Final = 5


class RegistrationFailed(Exception):
    """The server did not give this run its devices."""


@dataclass(slots=True)
class Account:
    """One registered device and its current token."""

    device: DeviceId
    key: SigningKey
    token: str


async def register(base_url: str, count: int, *, tls: ssl.SSLContext | None = None) -> list[Account]:
    """Register `count` identities with one device each and get their tokens; else RegistrationFailed."""
    connector = aiohttp.TCPConnector(limit=CONCURRENCY, ssl=tls or True)
    gate = asyncio.Semaphore(CONCURRENCY)
    async with aiohttp.ClientSession(base_url, connector=connector) as http:
        instance = await _instance(http)

        async def one() -> Account:
            async with gate:
                return await _register(http, instance)

        return list(await asyncio.gather(*(one() for _ in range(count))))


async def renew(base_url: str, accounts: Sequence[Account]) -> None:
    """Get fresh tokens for devices that are registered already."""
    gate = asyncio.Semaphore(CONCURRENCY)
    async with aiohttp.ClientSession(base_url, connector=aiohttp.TCPConnector(limit=CONCURRENCY)) as http:
        instance = await _instance(http)

        async def one(account: Account) -> None:
            async with gate:
                account.token = await _token(http, instance, account.device, account.key)

        await asyncio.gather(*(one(account) for account in accounts))


async def _instance(http: aiohttp.ClientSession) -> InstanceId:
    try:
        async with http.get("/v1/instance") as answer:
            return InstanceId(id_from_text((await answer.json())["instance_id"]))
    except aiohttp.ClientError as error:
        raise RegistrationFailed(f"no mailboxd server answers: {error}") from error


async def _register(http: aiohttp.ClientSession, instance: InstanceId) -> Account:
    key = SigningKey.generate()
    public = bytes(key.verify_key)
    bundle = public  # opaque to the server
    registered = await _post(
        http,
        "/v1/identities",
        {
            "identity_public_bundle": to_text(bundle),
            "device_public_key": to_text(public),
            "signature": to_text(key.sign(register_message(instance, bundle, public)).signature),
        },
    )
    device = DeviceId(id_from_text(registered["device_id"]))
    return Account(device, key, await _token(http, instance, device, key))


async def _token(http: aiohttp.ClientSession, instance: InstanceId, device: DeviceId, key: SigningKey) -> str:
    asked = await _post(http, "/v1/auth/challenges", {"device_id": to_text(device), "purpose": "token"})
    challenge = from_text(asked["challenge"])
    signature = to_text(key.sign(token_message(instance, device, challenge)).signature)
    answer = await _post(
        http, "/v1/auth/tokens", {"device_id": to_text(device), "challenge": asked["challenge"], "signature": signature}
    )
    return str(answer["token"])


async def _post(http: aiohttp.ClientSession, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    for attempt in range(ATTEMPTS):
        async with http.post(path, json=body) as answer:
            document: dict[str, Any] = await answer.json(content_type=None)
            if answer.status < 400:
                return document
            if not document.get("retryable") or attempt == ATTEMPTS - 1:
                raise RegistrationFailed(f"POST {path}: {answer.status} {document.get('code')}")
        await asyncio.sleep(document.get("retry_after_ms", 500) / 1_000)
    raise AssertionError("unreachable")
