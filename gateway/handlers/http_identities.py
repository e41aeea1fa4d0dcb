"""POST /v1/identities: an identity with its first device."""

from __future__ import annotations

from gateway.http.answers import Answer
from gateway.http.exchange import Exchange
from protocol import http_answers, http_shapes
from protocol.errors import ErrorCode, MailboxError, Outcome
from store.identities import Registration


async def register(exchange: Exchange) -> Answer:
    """The same device key again gives the same ids. Raises as `IdentityStore.register`, and RATE_LIMITED."""
    services = exchange.services
    key = exchange.idempotency_key()
    asked = http_shapes.registration(await exchange.fields())
    refused_ms = await services.rate_limiter.registration(exchange.address)
    if refused_ms:
        raise MailboxError(ErrorCode.RATE_LIMITED, retry_after_ms=refused_ms, outcome=Outcome.NOT_COMMITTED)
    async with exchange.audited_proof(asked.device_public_key):
        registered = await services.identities.register(Registration(*asked), key=key)
    return Answer(http_answers.registered(*registered), 201)
