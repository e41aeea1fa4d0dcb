"""GET and POST /v1/devices, POST /v1/devices/{device_id}/revocation: the devices of one's own identity."""

from __future__ import annotations

from gateway.http.answers import Answer
from gateway.http.exchange import Exchange
from protocol import http_answers, http_shapes
from protocol.http_answers import DeviceView
from protocol.ids import DeviceId
from store.identities import DeviceAddition, DeviceRevocation


async def show_all(exchange: Exchange) -> Answer:
    services = exchange.services
    await services.auth.require_active(exchange.device)
    devices = await services.identities.devices(exchange.device)
    return Answer(http_answers.devices([DeviceView(*device) for device in devices]))


async def add(exchange: Exchange) -> Answer:
    """Add a device with a fresh challenge; a token alone is not enough."""
    services = exchange.services
    key = exchange.idempotency_key()
    asked = http_shapes.device_addition(await exchange.fields())
    async with exchange.audited_proof(exchange.device):
        device_id, revoked = await services.identities.add_device(
            DeviceAddition(exchange.device, *asked), key=key, request_id=exchange.request_id
        )
    services.wake.publish_revoked(revoked)
    return Answer(http_answers.device_added(device_id), 201)


async def revoke(exchange: Exchange) -> Answer:
    """Revoke a device, perhaps the calling one, with a fresh challenge. Its sessions are closed everywhere."""
    services = exchange.services
    key = exchange.idempotency_key()
    target = DeviceId(http_shapes.path_id(exchange.path_ids["device_id"], "device_id"))
    asked = http_shapes.device_revocation(await exchange.fields())
    async with exchange.audited_proof(exchange.device):
        revoked = await services.identities.revoke_device(
            DeviceRevocation(exchange.device, target, *asked), key=key, request_id=exchange.request_id
        )
    services.wake.publish_revoked(revoked)
    return Answer({})
