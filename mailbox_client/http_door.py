"""One request to a server's HTTP door and its answer, in MessagePack, with the token that it needs."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from mailbox_client.addresses import http_url
from mailbox_client.errors import NoAnswer, ServerNotUnderstood
from mailbox_client.http_refusals import understood
from protocol.errors import ErrorCode, MailboxError
from protocol.http_values import BodyFormat, render_body
from protocol.limits import MAX_FRAME_BYTES

MEDIA_TYPE: Final = BodyFormat.MSGPACK.value
ANSWER_BYTES_MAX: Final = 2 * MAX_FRAME_BYTES
REQUEST_TIMEOUT_S: Final = 30.0


class HttpDoor:
    """The connections to one server and the device's token. What may be asked for, MailboxHttp says."""

    def __init__(
        self, url: str, *, session: aiohttp.ClientSession | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.url = http_url(url)
        self.token: str | None = None
        self.token_source: Callable[[], Awaitable[object]] | None = None
        self._asking = asyncio.Lock()
        self._session = session
        self._own_session = session is None
        self._tls: ssl.SSLContext | bool = True if tls is None else tls

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._own_session and self._session is not None:
            await self._session.close()
            self._session = None

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None, **how: Any) -> dict[str, Any]:
        """A call that needs a token."""
        if self.token is None:
            await self._ask_for_token(None)
        used = self.token
        try:
            return await self._request(method, path, body, **how)
        except MailboxError as error:
            # Nothing was done, so the same call may be made again.
            if error.code not in (ErrorCode.UNAUTHENTICATED, ErrorCode.TOKEN_EXPIRED) or self.token_source is None:
                raise
        await self._ask_for_token(used)
        return await self._request(method, path, body, **how)

    async def _ask_for_token(self, refused: str | None) -> None:
        async with self._asking:
            if self.token_source is not None and self.token == refused:
                await self.token_source()

    async def _request(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        query: dict[str, str] | None = None,
        idempotency_key: str | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> dict[str, Any]:
        headers = {"Accept": MEDIA_TYPE}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        data = None
        if body is not None:
            headers["Content-Type"] = MEDIA_TYPE
            data = render_body(body, BodyFormat.MSGPACK)
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar())
        try:
            async with asyncio.timeout(timeout_s):
                async with self._session.request(
                    method, self.url + path, params=query, data=data, headers=headers, ssl=self._tls,
                    allow_redirects=False, skip_auto_headers=("Accept-Encoding",),
                ) as answer:  # fmt: skip
                    raw = await _read(answer)
                    status = answer.status
                    retry_after = answer.headers.get("Retry-After", "")
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise NoAnswer(f"no answer from the server: {type(error).__name__}") from error
        return understood(status, raw, retry_after)


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    async for chunk in answer.content.iter_chunked(65_536):
        raw += chunk
        if len(raw) > ANSWER_BYTES_MAX:
            raise ServerNotUnderstood("the answer is larger than any of the contract")
    return bytes(raw)
