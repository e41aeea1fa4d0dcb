"""PUT and GET /v1/prekeys, POST /v1/identities/{identity_id}/prekey-claims: keys for first messages."""

from __future__ import annotations

from gateway.http.answers import Answer
from gateway.http.exchange import Exchange
from protocol import http_answers, http_shapes
from protocol.http_answers import ClaimedDevice
from protocol.ids import IdentityId
from store.prekeys import LastResortPrekey, Prekey


async def upload(exchange: Exchange) -> Answer:
    """Keep all keys of the body or none; those that are there already change nothing."""
    key = exchange.idempotency_key()
    asked = http_shapes.prekey_upload(await exchange.fields())
    left = await exchange.services.prekeys.upload(
        exchange.device,
        [Prekey(*prekey) for prekey in asked.one_time],
        None if asked.last_resort is None else LastResortPrekey(*asked.last_resort),
        key=key,
    )
    return Answer(http_answers.prekeys(left))


async def count(exchange: Exchange) -> Answer:
    services = exchange.services
    await services.auth.require_active(exchange.device)
    return Answer(http_answers.prekeys(await services.prekeys.count(exchange.device)))


async def claim(exchange: Exchange) -> Answer:
    """A key of each of the identity's devices. Past the target's limit the one-time key is null, never an error."""
    services = exchange.services
    key = exchange.idempotency_key()
    identity = IdentityId(http_shapes.path_id(exchange.path_ids["identity_id"], "identity_id"))
    await exchange.fields(may_be_empty=True)
    refused_ms = await services.rate_limiter.prekey_claim_by(exchange.device)
    target_ms = 0 if refused_ms else await services.rate_limiter.prekey_claim_of(identity)
    claimed = await services.prekeys.claim(
        exchange.device, identity, key=key, rate_refused_ms=refused_ms or None, one_time_allowed=not target_ms
    )
    for device_id, left in claimed.running_low:
        services.delivery.tell(device_id, "prekeys_low", left=left)
    return Answer(
        http_answers.prekey_claim(
            claimed.identity_public_bundle,
            [
                ClaimedDevice(
                    device.device_id,
                    device.device_public_key,
                    None if device.last_resort is None else device.last_resort._asdict(),
                    None if device.one_time is None else device.one_time._asdict(),
                )
                for device in claimed.devices
            ],
        ),
        201,
    )
