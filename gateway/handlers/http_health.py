"""GET /healthz and /readyz, on both ports: alive, and able to accept durable writes."""

from __future__ import annotations

from gateway.http.answers import Answer
from gateway.http.exchange import Exchange


async def alive(exchange: Exchange) -> Answer:
    """200 while every loop makes progress; else 503, and the process should be started anew."""
    stalled = exchange.services.readiness.stalled()
    return Answer({"status": "stalled" if stalled else "alive"}, 503 if stalled else 200)


async def ready(exchange: Exchange) -> Answer:
    """200 when a write went through a moment ago and this process does not drain."""
    reason = await exchange.services.readiness.why_not_ready()
    return Answer({"status": "ready" if reason is None else reason}, 200 if reason is None else 503)
