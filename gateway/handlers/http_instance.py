"""GET /v1/instance and GET /openapi.json: what anybody may know."""

from __future__ import annotations

from gateway.http.answers import Answer
from gateway.http.exchange import Exchange
from gateway.http.openapi import document
from protocol import http_answers
from protocol.http_answers import SigningKey


async def show(exchange: Exchange) -> Answer:
    """The instance with the keys that its tokens are signed with, and its limits."""
    services = exchange.services
    policy = services.policy()
    keys = [SigningKey(kid, key.public_bytes_raw()) for kid, key in services.keyring.token_keys.items()]
    return Answer(
        http_answers.instance(
            services.instance_id,
            keys,
            policy.version,
            policy.registration,
            policy.protocol_versions,
            policy.wire_limits(),
            services.keyring.vapid_public_key,
        )
    )


async def contract(_exchange: Exchange) -> Answer:
    """This door's own description."""
    return Answer(document())
