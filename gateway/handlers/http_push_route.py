"""PUT, GET and DELETE /v1/push-route: where the calling device is woken. The address never comes back out."""

from __future__ import annotations

from gateway.http.answers import Answer
from gateway.http.exchange import Exchange
from protocol import http_answers, http_shapes
from protocol.errors import ErrorCode, MailboxError
from store.push_routes import PushAddress


async def put(exchange: Exchange) -> Answer:
    """Syntax is judged here, the address when pushing. Waiting mail is announced over a new route at once."""
    services = exchange.services
    key = exchange.idempotency_key()
    provider, settings = http_shapes.push_route(await exchange.fields())
    mode = settings.pop("mode", "background")
    state = await services.push_routes.put(exchange.device, PushAddress(provider, settings, mode), key=key)
    services.wake.publish_worker()
    return Answer(http_answers.push_route(*state))


async def show(exchange: Exchange) -> Answer:
    services = exchange.services
    await services.auth.require_active(exchange.device)
    state = await services.push_routes.state(exchange.device)
    if state is None:
        raise MailboxError(ErrorCode.NOT_FOUND, "This device has no push route.")
    return Answer(http_answers.push_route(*state))


async def delete(exchange: Exchange) -> Answer:
    """Deleting what is not there is fine."""
    await exchange.services.push_routes.delete(exchange.device, key=exchange.idempotency_key())
    return Answer({})
