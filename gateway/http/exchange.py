"""One HTTP request with what handlers ask of it: its parsed body, its device, its Idempotency-Key."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from hmac import compare_digest
from typing import Final

from aiohttp import HttpVersion11, web
from aiohttp.web_protocol import RequestPayloadError

from gateway.auth import TokenClaims
from gateway.byte_budget import ByteBudget
from gateway.client_address import client_address
from gateway.http.connection import HttpConnection
from gateway.http.media import BODY_BYTES_MAX, answer_format, body_format
from gateway.request_ids import new_request_id
from gateway.services import GatewayServices
from protocol.errors import ErrorCode, MailboxError
from protocol.http_shapes import idempotency_key
from protocol.http_values import BodyFormat, Fields, bad_request, parse_body
from protocol.ids import DeviceId
from store.audit import AuditType

NO_ROUTE: Final = "none"
_BEARER: Final = "bearer "
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

# Below zero, where no WebSocket session's number lies: each request is a sender of its own to the coalescers.
_orders = itertools.count(-1, -1)


class Exchange:
    """Made for each request. Everything it reads from the peer is bounded in size and time."""

    def __init__(self, services: GatewayServices, request: web.BaseRequest) -> None:
        self.services = services
        self.request = request
        self.request_id = new_request_id()
        self.order = next(_orders)
        self.route = NO_ROUTE  # the path as the route table writes it
        self.is_write = request.method not in ("GET", "HEAD", "OPTIONS")
        self.path_ids: dict[str, str] = {}  # what stands in the path where the route has an id
        self.format = answer_format(request.headers.get("Accept"), request.headers.get("Content-Type"))
        self._claims: TokenClaims | None = None
        self._held = 0  # bytes of the body in the process's budget
        self._continue_asked = "Expect" in request.headers and request.version >= HttpVersion11

    @property
    def _connection(self) -> HttpConnection:
        connection = self.request.protocol
        if not isinstance(connection, HttpConnection):
            raise AssertionError("the server makes its connections itself")
        return connection

    @property
    def address(self) -> str:
        """Whom limits per address hold: behind trusted proxies the client that they name."""
        return client_address(
            self._connection.peer,
            self.request.headers.getall("X-Forwarded-For", []),
            self.services.config.trusted_proxies,
        )

    @contextmanager
    def told_when_gone(self, tell: Callable[[], None]) -> Iterator[None]:
        """Have `tell` called when the client's connection ends: nobody should wait for somebody who has left."""
        self._connection.when_lost = tell
        try:
            yield
        finally:
            self._connection.when_lost = None

    @property
    def client_is_gone(self) -> bool:
        return self.request.transport is None

    @property
    def device(self) -> DeviceId:
        """The device that the request's token names; only for routes that ask for one."""
        return self.claims.device

    @property
    def claims(self) -> TokenClaims:
        if self._claims is None:
            raise AssertionError("this route asks for no token")
        return self._claims

    def authenticate(self) -> None:
        """Judge the bearer token; raises UNAUTHENTICATED or TOKEN_EXPIRED. Revocation is asked of the database."""
        headers = self.request.headers.getall("Authorization", [])
        if len(headers) != 1 or not headers[0].lower().startswith(_BEARER):
            raise MailboxError(ErrorCode.UNAUTHENTICATED, "A bearer token is needed: Authorization: Bearer <token>.")
        token = headers[0][len(_BEARER) :].strip()
        known = self._connection.verified
        # Header bytes that are no UTF-8 arrive as lone surrogates.
        if known is not None and compare_digest(known[0].encode(), token.encode("utf-8", "surrogateescape")):
            self._claims = known[1]
            self.services.auth.require_fresh(self._claims)
        else:
            self._claims = self.services.auth.verify(token)
            self._connection.verified = (token, self._claims)

    def idempotency_key(self) -> bytes | None:
        """The key as ASCII, None without the header; raises BAD_REQUEST."""
        headers = self.request.headers.getall("Idempotency-Key", [])
        if len(headers) > 1:
            raise bad_request("one Idempotency-Key at most")
        return idempotency_key(headers[0] if headers else None)

    async def fields(self, *, may_be_empty: bool = False) -> Fields:
        """The map in the body. Raises UNSUPPORTED_MEDIA_TYPE, REQUEST_TOO_LARGE, UNAVAILABLE or BAD_REQUEST."""
        headers = self.request.headers
        if may_be_empty and not self.request.body_exists:
            return Fields({}, BodyFormat.JSON)  # some clients name a media type for nothing
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            raise MailboxError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "Send the body as it is: no Content-Encoding.")
        sent_as = body_format(headers.get("Content-Type"))
        limit = BODY_BYTES_MAX[sent_as]
        if (self.request.content_length or 0) > limit:
            raise MailboxError(ErrorCode.REQUEST_TOO_LARGE)
        return parse_body(await self._read(limit), sent_as)

    @asynccontextmanager
    async def audited_proof(self, actor: bytes) -> AsyncIterator[None]:
        """Around what a signature stands for: a proof that fails leaves an audit event, a bounded number of them."""
        try:
            yield
        except MailboxError as error:
            if error.code is ErrorCode.UNAUTHENTICATED:
                await self.services.audit.record_refusal(
                    AuditType.PROOF_FAILED,
                    request_id=self.request_id,
                    policy_version=self.services.policy().version,
                    actor=actor,
                )
            raise

    async def _read(self, limit: int) -> bytes:
        budget = self.services.inbound
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.services.config.request_timeout_s):
                await self._let_it_come()
                while part := await self.request.content.readany():
                    self._held += len(part)
                    budget.take(len(part))
                    size += len(part)
                    parts.append(part)
                    if size > limit:
                        raise MailboxError(ErrorCode.REQUEST_TOO_LARGE)
                    while budget.exceeded:
                        await _room_in(budget)
        except TimeoutError as error:
            raise bad_request("the body did not arrive in time") from error
        except RequestPayloadError as error:
            raise bad_request("the body broke off") from error
        return b"".join(parts)

    async def _let_it_come(self) -> None:
        """Answer `Expect: 100-continue`: a body that would be refused is never sent."""
        if self._continue_asked and self.request.headers["Expect"].lower() == "100-continue":
            await self.request.writer.write(_CONTINUE)
            self.request.writer.output_size = 0  # the answer itself has not begun

    def close(self) -> None:
        """Give back the memory that the body was counted with. Called once the answer is made."""
        self.services.inbound.give_back(self._held)
        self._held = 0


class _Waiting:
    """Reads no further until the process has room for inbound bytes again."""

    def __init__(self) -> None:
        self.free: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def budget_free(self) -> None:
        if not self.free.done():
            self.free.set_result(None)


async def _room_in(budget: ByteBudget) -> None:
    waiting = _Waiting()
    budget.wait(waiting)
    try:
        await waiting.free
    finally:
        budget.forget(waiting)
