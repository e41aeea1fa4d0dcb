"""One HTTP connection: aiohttp's, with a time limit on request heads and problem documents for what is no HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from gateway.auth import TokenClaims
from gateway.client_address import peer_of
from gateway.http.answers import finish, problem_response
from gateway.request_ids import new_request_id
from protocol.errors import ErrorCode, MailboxError
from protocol.http_values import BodyFormat, bad_request
from protocol.limits import SLOW_CONSUMER_S

logger = structlog.get_logger(__name__)

HEAD_SECONDS: Final = 10.0  # from a request's first byte to the end of its head
KEEPALIVE_SECONDS: Final = 75.0  # above the 60 s for which balancers usually keep idle connections
LINGER_SECONDS: Final = 2.0  # what is still being sent is read and dropped for this long, so that the answer is seen
HEAD_LINE_BYTES_MAX: Final = 8 * 1024
HEADERS_MAX: Final = 64


class HttpConnection(RequestHandler):
    """A peer that never finishes a head or takes no answer is dropped; errors below the routes look like all others."""

    __slots__ = ("_head_timer", "_stuck_timer", "peer", "verified", "when_lost")

    def __init__(self, server: web.Server, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # no line per request, and no address in any line
            auto_decompress=False,  # a compressed body could be any size
            keepalive_timeout=KEEPALIVE_SECONDS,
            lingering_time=LINGER_SECONDS,
            max_line_size=HEAD_LINE_BYTES_MAX,
            max_field_size=HEAD_LINE_BYTES_MAX,
            max_headers=HEADERS_MAX,
        )
        self.peer = ""  # the other end's address; of a connection that a PROXY header opened, the client's
        self._head_timer: asyncio.TimerHandle | None = None
        self._stuck_timer: asyncio.TimerHandle | None = None
        # The last token that was judged on this connection, so that a keep-alive client pays for it once. Whether it
        # has run out, and whether its device may still act, is asked each time.
        self.verified: tuple[str, TokenClaims] | None = None
        self.when_lost: Callable[[], None] | None = None  # of the request in hand, if it wants to know

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.peer = self.peer or peer_of(transport)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        waiting_for_head = self._waiter is not None and not self._waiter.done() and not self._messages
        if not waiting_for_head:
            self._stop_head_timer()
        elif self._head_timer is None:
            self._head_timer = self._loop.call_later(HEAD_SECONDS, self.force_close)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck_timer is None:
            self._stuck_timer = self._loop.call_later(SLOW_CONSUMER_S, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stuck_timer()

    def _abort(self) -> None:
        """The peer took nothing for too long: drop it with all that waits for it."""
        if self.transport is not None:
            self.transport.abort()

    def _stop_stuck_timer(self) -> None:
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
            self._stuck_timer = None

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_head_timer()
        self._stop_stuck_timer()
        super().connection_lost(exc)
        if self.when_lost is not None:
            self.when_lost()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """For what never reached a route: bytes that are no HTTP, heads too long, a handler that fell through."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun already")
        request_id = new_request_id()
        if status >= 500:
            logger.error("a request failed outside of its route", request_id=request_id, exc_info=exc)
            error = MailboxError(ErrorCode.INTERNAL)
        else:
            error = bad_request("not HTTP/1.1, or a head that is too long")
        response = problem_response(error, request_id, BodyFormat.JSON, write=False)
        finish(response, request_id, secure=self.ssl_context is not None)
        response.force_close()
        return response
