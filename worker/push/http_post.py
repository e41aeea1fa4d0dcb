"""One bounded POST to a judged endpoint, and what its answer means: shared by the providers that speak HTTP/1.1."""

from __future__ import annotations

import email.utils
import socket
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, Self

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from worker.push.address_guard import AddressGuard, AddressRefused, Endpoint, ResolveFailed
from worker.push.outcome import Gone, Misconfigured, Outcome, Retry

POST_SECONDS_MAX: Final = 10.0
CONNECT_SECONDS_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 4_096  # of which nobody needs more


class Answer(NamedTuple):
    status: int
    retry_after: timedelta | None
    body: bytes


class HttpPoster:
    """Posts to endpoints that clients named. Follows no redirect, takes no proxy from the environment, keeps no cookie.

    `async with`: closes its connections at the end.
    """

    def __init__(self, guard: AddressGuard, *, connections_max: int = 64, tls: ssl.SSLContext | None = None) -> None:
        self._guard = guard
        self._judged = _JudgedResolver()
        self._connections_max = connections_max
        self._tls = tls or ssl.create_default_context()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            resolver=self._judged, use_dns_cache=False, limit=self._connections_max, limit_per_host=8, ssl=self._tls
        )
        timeout = aiohttp.ClientTimeout(total=POST_SECONDS_MAX, connect=CONNECT_SECONDS_MAX)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            trust_env=False,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "mailboxd"},
        )
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, url: str, *, headers: Mapping[str, str], body: bytes) -> Answer | Outcome:
        """The answer, or the outcome where there was none. Bounded by POST_SECONDS_MAX after the name is resolved."""
        if self._session is None:
            raise RuntimeError("used outside of its context")
        try:
            endpoint = await self._guard.judge(url)
        except AddressRefused:
            return Misconfigured("address_refused")
        except ResolveFailed:
            return Retry("resolve")
        try:
            target = URL(url, encoded=True)
            if (target.raw_host, target.port) != (endpoint.host, endpoint.port):
                return Misconfigured("bad_url")  # two readings of one URL: judged would not be where it goes
            with self._judged.answering(endpoint):
                async with self._session.post(
                    target, data=body, headers=dict(headers), allow_redirects=False
                ) as response:
                    return Answer(
                        response.status, retry_after(response.headers.get("Retry-After", "")), await _bounded(response)
                    )
        except (aiohttp.InvalidURL, ValueError):
            return Misconfigured("bad_url")
        except aiohttp.ClientConnectorCertificateError:
            return Retry("certificate")
        except TimeoutError:
            return Retry("timeout")
        except (aiohttp.ClientError, OSError):
            return Retry("connection")


class _JudgedResolver(AbstractResolver):
    """Gives the connector the judged addresses of a request in flight, and knows no others."""

    def __init__(self) -> None:
        self._endpoints: dict[tuple[str, int], list[Endpoint]] = {}

    def answering(self, endpoint: Endpoint) -> _Answering:
        return _Answering(self._endpoints, endpoint)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        endpoints = self._endpoints.get((host, port))
        if not endpoints:
            raise OSError("not judged")
        # Any of them was judged for this very host and port.
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in endpoints[-1].addresses
        ]

    async def close(self) -> None:
        self._endpoints.clear()


class _Answering:
    def __init__(self, endpoints: dict[tuple[str, int], list[Endpoint]], endpoint: Endpoint) -> None:
        self._endpoints = endpoints
        self._endpoint = endpoint

    def __enter__(self) -> None:
        self._endpoints.setdefault((self._endpoint.host, self._endpoint.port), []).append(self._endpoint)

    def __exit__(self, *_exc: object) -> None:
        key = (self._endpoint.host, self._endpoint.port)
        self._endpoints[key].remove(self._endpoint)
        if not self._endpoints[key]:
            del self._endpoints[key]


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    body = await response.content.read(ANSWER_BYTES_MAX)
    if not response.content.at_eof():
        response.close()  # more than anybody needs: the connection is not worth keeping
    return body


def retry_after(value: str) -> timedelta | None:
    """RFC 9110, 10.2.3: seconds or a date; anything else counts as absent."""
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return timedelta(seconds=int(text))
    try:
        at = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    if at.tzinfo is None:
        return None
    return max(timedelta(0), at - datetime.now(UTC))


def judge_status(answer: Answer, *, gone: frozenset[int]) -> Outcome | None:
    """What every HTTP provider's status means alike; None for 2xx, which each provider judges itself."""
    status = answer.status
    if 200 <= status < 300:
        return None
    if status in gone:
        return Gone()
    if status in (408, 425, 429) or status >= 500:
        return Retry(f"status_{status}" if status in (429, 500, 502, 503, 504) else "status_other", answer.retry_after)
    return Misconfigured("redirect" if 300 <= status < 400 else "refused")
