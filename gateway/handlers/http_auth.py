"""POST /v1/auth/challenges and /v1/auth/tokens: from a signature to a token. Nothing here is ever replayed."""

from __future__ import annotations

from gateway.http.answers import Answer
from gateway.http.exchange import Exchange
from protocol import http_answers, http_shapes
from protocol.signed_messages import CHALLENGE_CONTEXTS


async def create_challenge(exchange: Exchange) -> Answer:
    """A challenge for the purpose. An unknown device gets one that looks the same."""
    services = exchange.services
    device, purpose = http_shapes.challenge_request(await exchange.fields())
    lifetime_s = services.policy().challenge_ttl_s
    challenge = await services.auth.challenge(device, purpose, lifetime_s=lifetime_s)
    return Answer(http_answers.challenge(challenge.value, CHALLENGE_CONTEXTS[purpose], challenge.expires_at_ms), 201)


async def create_token(exchange: Exchange) -> Answer:
    """A token for a signed challenge."""
    asked = http_shapes.token_request(await exchange.fields())
    async with exchange.audited_proof(asked.device_id):
        token = await exchange.services.auth.token(*asked)
    return Answer(http_answers.token(*token), 201)
