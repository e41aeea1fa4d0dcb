"""The upgrade to a WebSocket: judged from the request's head alone, before any other work, refused without a session.

What is no upgrade at all is left to the HTTP door, which answers 426.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

from websockets.exceptions import InvalidHandshake
from websockets.headers import parse_connection, parse_subprotocol, parse_upgrade
from websockets.typing import ConnectionOption, Subprotocol
from websockets.utils import accept_key

from gateway.client_address import Network, client_address
from gateway.come_back import ComeBack
from gateway.connection_limits import ConnectionLimits
from gateway.http.answers import ON_EVERY_ANSWER
from gateway.metrics import GatewayMetrics
from gateway.request_ids import new_request_id
from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.http_answers import PROBLEM_MEDIA_TYPE, problem, retry_after_header

SUBPROTOCOL: Final = "mailboxd.v1"
_KEY_CHARS: Final = 24  # base64 of 16 bytes

Headers = Sequence[tuple[str, str]]  # names in lower case, in order


class Accepted(NamedTuple):
    """The answer that makes the connection a WebSocket, and the client's address, which is counted now."""

    answer: bytes
    address: str


class Refused(NamedTuple):
    """A final answer; the connection closes behind it."""

    status: int
    headers: dict[str, str]
    body: bytes

    def to_bytes(self) -> bytes:
        """The whole HTTP answer."""
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += [f"Content-Length: {len(self.body)}", "Connection: close", "", ""]
        return "\r\n".join(lines).encode("ascii") + self.body


class UpgradeJudge:
    """Says yes or no to upgrades. Limits refuse the newcomer and never evict anybody."""

    def __init__(
        self,
        *,
        limits: ConnectionLimits,
        call_of_address: Callable[[str], int],
        come_back: ComeBack,
        trusted_proxies: Sequence[Network],
        allowed_origins: Sequence[str],
        draining: Callable[[], bool],
        metrics: GatewayMetrics,
    ) -> None:
        """`call_of_address`: count a request that nobody vouches for; 0, or the milliseconds to wait."""
        self._limits = limits
        self._call_of_address = call_of_address
        self._come_back = come_back
        self._trusted = trusted_proxies
        self._origins = frozenset(allowed_origins)
        self._draining = draining
        self._metrics = metrics

    def judge(self, headers: Headers, peer: str) -> Accepted | Refused | None:
        """None when this is no upgrade to a WebSocket. An accepted one has taken its place in the limits."""
        try:
            connection: list[ConnectionOption] = []
            for value in _all(headers, "connection"):
                connection += parse_connection(value)
            upgrade = [item for value in _all(headers, "upgrade") for item in parse_upgrade(value)]
        except InvalidHandshake:
            return self._malformed("The headers Connection and Upgrade cannot be read.")
        if "websocket" not in [item.lower() for item in upgrade] or "upgrade" not in [x.lower() for x in connection]:
            return None
        keys, versions = _all(headers, "sec-websocket-key"), _all(headers, "sec-websocket-version")
        if len(keys) != 1 or len(keys[0].strip()) != _KEY_CHARS or not keys[0].strip().endswith("=="):
            return self._malformed("Sec-WebSocket-Key is missing or malformed.")
        if versions != ["13"]:
            return self._malformed("Sec-WebSocket-Version must be 13.", version=True)
        if _all(headers, "transfer-encoding") or any(value != "0" for value in _all(headers, "content-length")):
            return self._malformed("An upgrade has no body.")
        try:
            offered: list[Subprotocol] = []
            for value in _all(headers, "sec-websocket-protocol"):
                offered += parse_subprotocol(value)
        except InvalidHandshake:
            return self._malformed("Sec-WebSocket-Protocol cannot be read.")
        if SUBPROTOCOL not in offered:
            return self._malformed(f"Offer the subprotocol {SUBPROTOCOL}.")
        origins = _all(headers, "origin")
        if any(origin not in self._origins for origin in origins):
            self._metrics.refused.labels(reason="origin").inc()
            return _refused(MailboxError(ErrorCode.FORBIDDEN, "Pages of this origin may not connect here."))
        return self._admit(keys[0].strip(), client_address(peer, _all(headers, "x-forwarded-for"), self._trusted))

    def _admit(self, key: str, address: str) -> Accepted | Refused:
        limits = self._limits
        if self._draining():
            return self._busy("draining", ErrorCode.UNAVAILABLE)
        if limits.full:
            return self._busy("full", ErrorCode.UNAVAILABLE)
        # The address first: who has all that he may leaves the budget to others.
        if refused_ms := self._call_of_address(address):
            return self._busy("rate", ErrorCode.RATE_LIMITED, refused_ms)
        if not limits.take_address(address):
            return self._busy("address", ErrorCode.RATE_LIMITED)
        if not limits.upgrades.take():
            limits.give_back_address(address)
            return self._busy("handshakes", ErrorCode.UNAVAILABLE)
        answer = (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept_key(key)}\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n"
            f"X-Request-Id: {new_request_id()}\r\n\r\n"
        )
        return Accepted(answer.encode("ascii"), address)

    def busy(self, reason: str, code: ErrorCode = ErrorCode.UNAVAILABLE) -> Refused:
        """A refusal with a come-back time of this client's own."""
        return self._busy(reason, code)

    def _busy(self, reason: str, code: ErrorCode, retry_after_ms: int = 0) -> Refused:
        self._metrics.refused.labels(reason=reason).inc()
        after_ms = retry_after_ms or self._come_back.after_ms()
        return _refused(MailboxError(code, retry_after_ms=after_ms, outcome=Outcome.NOT_COMMITTED))

    def _malformed(self, message: str, *, version: bool = False) -> Refused:
        self._metrics.refused.labels(reason="malformed").inc()
        refused = _refused(MailboxError(ErrorCode.BAD_REQUEST, message))
        if version:
            refused.headers["Sec-WebSocket-Version"] = "13"
        return refused


def _all(headers: Headers, name: str) -> list[str]:
    return [value for given, value in headers if given == name]


def _refused(error: MailboxError) -> Refused:
    request_id = new_request_id()
    headers = {"Content-Type": PROBLEM_MEDIA_TYPE, "X-Request-Id": request_id, **ON_EVERY_ANSWER}
    if (retry_after := retry_after_header(error)) is not None:
        headers["Retry-After"] = retry_after
    return Refused(error.http_status, headers, json.dumps(problem(error, request_id)).encode())
