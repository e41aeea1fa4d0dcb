"""POST /v1/envelopes: the SEND of HTTP, the same request as over the WebSocket where it has a client_message_id."""

from __future__ import annotations

from gateway.http.answers import Answer
from gateway.http.exchange import Exchange
from protocol import http_answers, http_shapes


async def send(exchange: Exchange) -> Answer:
    """All envelopes or none. 201 the first time, 200 for a repeat and when nothing new was stored."""
    body = http_shapes.submit_body(await exchange.fields(), exchange.idempotency_key())
    submitted = await exchange.services.send.http(
        order=exchange.order,
        device=exchange.device,
        address=exchange.address,
        cmid=body.cmid,
        idempotency_key=body.key,
        envelopes=body.envelopes,
        echo=body.echo,
        request_id=exchange.request_id,
    )
    return Answer(http_answers.submitted(submitted.duplicate, submitted.results), 200 if submitted.duplicate else 201)
