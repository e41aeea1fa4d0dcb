"""The HTTP door: every request through one funnel, every answer with the same headers, every error as a problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import structlog
from aiohttp import hdrs, web

from gateway.come_back import ComeBack
from gateway.http.answers import answer_response, finish, problem_response
from gateway.http.connection import HttpConnection
from gateway.http.exchange import Exchange
from gateway.http.metrics import HttpMetrics
from gateway.http.origins import cors_headers, preflight_headers, require_allowed
from gateway.http.routes import ROUTES, Caller, MethodNotAllowed, Route, Router
from gateway.services import GatewayServices
from protocol.errors import ErrorCode, MailboxError, Outcome

logger = structlog.get_logger(__name__)

WEBSOCKET_PATH: Final = "/v1/ws"

# Takes GET /v1/ws where it brings an upgrade, as a later request on a connection that a balancer reuses. Gives the
# answer, None when it asks for no upgrade.
Upgrade = Callable[[web.BaseRequest], web.StreamResponse | None]


class HttpServer(web.Server):
    """One port's HTTP: call it for the protocol of each new connection, `shutdown` it at the end."""

    def __init__(
        self,
        services: GatewayServices,
        routes: Sequence[Route],
        *,
        upgrade: Upgrade | None = None,
        metrics: HttpMetrics | None = None,
    ) -> None:
        """Make it inside the running loop. Without `upgrade` there is no WebSocket path here."""
        super().__init__(self._serve)
        self._services = services
        self._router = Router(routes)
        self._upgrade = upgrade
        self._metrics = metrics

    def __call__(self) -> HttpConnection:
        return HttpConnection(self, loop=self._loop)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if (
            self._upgrade is not None
            and path_of(request) == WEBSOCKET_PATH
            and (taken := self._upgrade(request)) is not None
        ):
            return taken
        services = self._services
        exchange = Exchange(services, request)
        origin = request.headers.get(hdrs.ORIGIN)
        allowed = services.config.allowed_origins
        began = services.clock.monotonic()
        try:
            require_allowed(origin, allowed)
            if origin is not None and request.method == hdrs.METH_OPTIONS:
                response: web.Response = web.Response(status=204, headers=preflight_headers(origin, allowed))
            else:
                response = await self._handle(exchange)
        except MailboxError as error:
            if error.code is ErrorCode.INTERNAL:  # a bug that the store met
                logger.exception("a request failed", request_id=exchange.request_id, route=exchange.route)
            response = self._refusal(exchange, error)
        except Exception:  # a bug, or a time-out that nobody expected: told as such, found by its request id
            logger.exception("a request failed", request_id=exchange.request_id, route=exchange.route)
            response = self._refusal(exchange, MailboxError(ErrorCode.INTERNAL))
        finally:
            exchange.close()
        response.headers.update(cors_headers(origin, allowed))
        finish(response, exchange.request_id, secure=request.secure)
        if services.drain.draining:
            response.force_close()
        if self._metrics is not None:
            self._metrics.answered(exchange.route, response.status, services.clock.monotonic() - began)
        return response

    async def _handle(self, exchange: Exchange) -> web.Response:
        request = exchange.request
        path = path_of(request)
        if self._upgrade is not None and path == WEBSOCKET_PATH:
            if request.method != hdrs.METH_GET:
                raise MethodNotAllowed([hdrs.METH_GET])
            return _upgrade_required(exchange)
        route, exchange.path_ids = self._router.find(request.method, path)
        exchange.route = route.path
        self._admit(exchange, route.caller)
        answer = await route.handler(exchange)
        return answer if isinstance(answer, web.Response) else answer_response(answer, exchange.format)

    def _admit(self, exchange: Exchange, caller: Caller) -> None:
        """Everything that is judged before the body is read and before the database is asked."""
        if caller is Caller.PROBE:
            return
        if self._services.drain.draining:
            raise _come_back(self._services.come_back, "This server is going away; come again.")
        limiter = self._services.rate_limiter
        if caller in (Caller.ANYBODY, Caller.NEWCOMER):
            _refuse(limiter.call_of_address(exchange.address))
            if caller is Caller.NEWCOMER and not self._services.limits.account_requests.take():
                self._services.metrics.refused.labels(reason="handshakes").inc()
                raise _come_back(
                    self._services.sign_in_come_back, "Too many devices want to sign in at the moment; come again."
                )
            return
        try:
            exchange.authenticate()
        except MailboxError:
            _refuse(limiter.call_of_address(exchange.address))  # who tries tokens out is as anybody
            raise
        if caller is Caller.DEVICE:
            _refuse(limiter.call_of_device(exchange.device))

    def _refusal(self, exchange: Exchange, error: MailboxError) -> web.Response:
        self._services.metrics.errors.labels(code=str(error.code)).inc()
        response = problem_response(error, exchange.request_id, exchange.format, write=exchange.is_write)
        if isinstance(error, MethodNotAllowed):
            response.headers[hdrs.ALLOW] = error.allowed
        if not exchange.request.content.is_eof():
            response.force_close()  # the rest of the body is not worth reading
        return response


def path_of(request: web.BaseRequest) -> str:
    """The path as it was sent. No route has a percent sign: with one it is another path, whatever that stands for.

    Decoded it would have spellings that a proxy in front, or a rule of it, does not know as the same.
    """
    target = request.raw_path.partition("?")[0]
    return target if target.startswith("/") else request.rel_url.raw_path  # absolute form (RFC 9112, 3.2.2)


def build_http_server(services: GatewayServices, upgrade: Upgrade) -> HttpServer:
    """The HTTP of the device-facing port."""
    return HttpServer(services, ROUTES, upgrade=upgrade, metrics=HttpMetrics(services.metrics))


def _come_back(slots: ComeBack, message: str) -> MailboxError:
    """UNAVAILABLE with a come-back time of this client's own."""
    return MailboxError(ErrorCode.UNAVAILABLE, message, retry_after_ms=slots.after_ms(), outcome=Outcome.NOT_COMMITTED)


def _refuse(refused_ms: int) -> None:
    if refused_ms:
        raise MailboxError(ErrorCode.RATE_LIMITED, retry_after_ms=refused_ms, outcome=Outcome.NOT_COMMITTED)


def _upgrade_required(exchange: Exchange) -> web.Response:
    """The WebSocket's path without an upgrade; the listener takes those that bring one."""
    error = MailboxError(ErrorCode.BAD_REQUEST, "This path takes WebSockets only: ask for an upgrade to mailboxd.v1.")
    response = problem_response(error, exchange.request_id, exchange.format, write=False, status=426)
    response.headers[hdrs.UPGRADE] = "websocket"
    response.headers[hdrs.CONNECTION] = "Upgrade"
    return response
