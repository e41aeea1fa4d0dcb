"""The operations port: metrics and health. Nothing here is for devices; loopback only unless told otherwise."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from gateway.handlers import http_health
from gateway.http.exchange import Exchange
from gateway.http.routes import Caller, Route
from gateway.http_app import HttpServer
from gateway.services import GatewayServices


async def _metrics(exchange: Exchange) -> web.Response:
    """Everything that this process counts, for Prometheus."""
    body, content_type = exchange.services.metrics.expose()
    return web.Response(body=body, headers={"Content-Type": content_type})


OPS_ROUTES: Final = (
    Route("GET", "/metrics", _metrics, Caller.PROBE),
    Route("GET", "/healthz", http_health.alive, Caller.PROBE),
    Route("GET", "/readyz", http_health.ready, Caller.PROBE),
)


def build_ops_server(services: GatewayServices) -> HttpServer:
    """The HTTP of the operations port. Its own requests are not counted: a scrape would change what it reads."""
    return HttpServer(services, OPS_ROUTES)
