"""Requests to the platforms' own push services: fixed names, TLS, HTTP/2 where they speak it, one client a worker."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, Self

import httpx

from worker.push.http_post import Answer, retry_after
from worker.push.outcome import Retry

REQUEST_SECONDS_MAX: Final = 10.0
CONNECT_SECONDS_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 16_384


class PlatformClient:
    """`async with`: keeps connections open between pushes, as the services ask for, and closes them at the end."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, connections_max: int = 8) -> None:
        """Few connections: one carries hundreds of requests at once."""
        self._client = httpx.AsyncClient(
            http2=True,
            verify=tls or ssl.create_default_context(),
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(REQUEST_SECONDS_MAX, connect=CONNECT_SECONDS_MAX),
            limits=httpx.Limits(max_connections=connections_max, keepalive_expiry=600),
            headers={"User-Agent": "mailboxd"},
        )

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._client.aclose()

    async def post(self, url: str, *, headers: Mapping[str, str], body: bytes) -> Answer | Retry:
        """The answer, or what kept it from coming."""
        try:
            async with self._client.stream("POST", url, headers=dict(headers), content=body) as response:
                return Answer(response.status_code, _after(response), await _bounded(response))
        except httpx.TimeoutException:
            return Retry("timeout")
        except (httpx.HTTPError, httpx.StreamError, OSError):
            return Retry("connection")


def _after(response: httpx.Response) -> timedelta | None:
    return retry_after(response.headers.get("Retry-After", ""))


async def _bounded(response: httpx.Response) -> bytes:
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) >= ANSWER_BYTES_MAX:
            break
    return body[:ANSWER_BYTES_MAX]
