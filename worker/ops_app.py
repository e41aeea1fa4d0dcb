"""The worker's operations port: alive, ready, metrics. For the operator's network only."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from runtime.metrics import Metrics
from runtime.supervise import Supervisor


def build_ops_app(
    metrics: Metrics,
    supervisor: Supervisor,
    why_not_ready: Callable[[], Awaitable[str | None]],
    hints: Callable[[], Mapping[str, int]],
) -> web.Application:
    """`/healthz`: 503 with the names of the loops that stand still. `/readyz`: 503 with the reason, and hints.

    A hint (dead letters, tasks of a newer release) needs a person and no other process: it never makes 503.
    """

    async def healthz(_request: web.Request) -> web.Response:
        stalled = supervisor.stalled()
        body = {"status": "stalled" if stalled else "alive", **({"loops": list(stalled)} if stalled else {})}
        return web.json_response(body, status=503 if stalled else 200)

    async def readyz(_request: web.Request) -> web.Response:
        reason = await why_not_ready()
        return web.json_response({"status": reason or "ready", **hints()}, status=503 if reason else 200)

    async def exposed(_request: web.Request) -> web.Response:
        body, content_type = metrics.expose()
        return web.Response(body=body, headers={"Content-Type": content_type})

    app = web.Application()
    app.on_response_prepare.append(_name)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", exposed)
    return app


async def _name(_request: web.Request, response: web.StreamResponse) -> None:
    """Every answer has a name of its own, as the gateways' have; one that a client brings is not used."""
    response.headers["X-Request-Id"] = secrets.token_hex(8)
