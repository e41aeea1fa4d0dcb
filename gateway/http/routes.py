"""What the HTTP door offers: one line a route, in the order of WIRE's table; and how a path finds its route."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from aiohttp import web

from gateway.handlers import (
    http_auth,
    http_devices,
    http_envelopes,
    http_health,
    http_identities,
    http_instance,
    http_mailbox,
    http_prekeys,
    http_push_route,
)
from gateway.http.answers import Answer
from gateway.http.exchange import Exchange
from protocol.errors import ErrorCode, MailboxError, Outcome

Handler = Callable[[Exchange], Awaitable[Answer | web.Response]]


class Caller(Enum):
    """Who may call a route, and which rate it counts in."""

    ANYBODY = auto()  # per address
    NEWCOMER = auto()  # the same, and it makes the database work: in the budget of handshakes too
    DEVICE = auto()  # a token; per device
    SENDER = auto()  # a token; the handler counts envelopes itself
    PROBE = auto()  # not counted


class Route(NamedTuple):
    method: str
    path: str
    handler: Handler
    caller: Caller


ROUTES: Final = (
    Route("GET", "/v1/instance", http_instance.show, Caller.ANYBODY),
    Route("POST", "/v1/identities", http_identities.register, Caller.NEWCOMER),
    Route("POST", "/v1/auth/challenges", http_auth.create_challenge, Caller.NEWCOMER),
    Route("POST", "/v1/auth/tokens", http_auth.create_token, Caller.NEWCOMER),
    Route("GET", "/v1/devices", http_devices.show_all, Caller.DEVICE),
    Route("POST", "/v1/devices", http_devices.add, Caller.DEVICE),
    Route("POST", "/v1/devices/{device_id}/revocation", http_devices.revoke, Caller.DEVICE),
    Route("PUT", "/v1/prekeys", http_prekeys.upload, Caller.DEVICE),
    Route("GET", "/v1/prekeys", http_prekeys.count, Caller.DEVICE),
    Route("POST", "/v1/identities/{identity_id}/prekey-claims", http_prekeys.claim, Caller.DEVICE),
    Route("POST", "/v1/envelopes", http_envelopes.send, Caller.SENDER),
    Route("GET", "/v1/mailbox", http_mailbox.pull, Caller.DEVICE),
    Route("GET", "/v1/mailbox/status", http_mailbox.status, Caller.DEVICE),
    Route("POST", "/v1/mailbox/acks", http_mailbox.ack, Caller.DEVICE),
    Route("PUT", "/v1/push-route", http_push_route.put, Caller.DEVICE),
    Route("GET", "/v1/push-route", http_push_route.show, Caller.DEVICE),
    Route("DELETE", "/v1/push-route", http_push_route.delete, Caller.DEVICE),
    Route("GET", "/healthz", http_health.alive, Caller.PROBE),
    Route("GET", "/readyz", http_health.ready, Caller.PROBE),
    Route("GET", "/openapi.json", http_instance.contract, Caller.ANYBODY),
)


class MethodNotAllowed(MailboxError):
    """The path is there, with other methods."""

    def __init__(self, allowed: Sequence[str]) -> None:
        super().__init__(ErrorCode.METHOD_NOT_ALLOWED, outcome=Outcome.NOT_COMMITTED)
        self.allowed = ", ".join(sorted(allowed))


class Router:
    """Finds the route of a method and path. Paths are exact: no trailing slash, no other spelling."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._with_ids: list[tuple[re.Pattern[str], dict[str, Route]]] = []
        for route in routes:
            if "{" not in route.path:
                self._exact.setdefault(route.path, {})[route.method] = route
            else:
                pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route.path)
                self._with_ids.append((re.compile(pattern), {route.method: route}))

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route and the ids in its path; raises NOT_FOUND or MethodNotAllowed."""
        by_method, ids = self._exact.get(path), {}
        if by_method is None:
            for pattern, methods in self._with_ids:
                if match := pattern.fullmatch(path):
                    by_method, ids = methods, match.groupdict()
                    break
            else:
                raise MailboxError(ErrorCode.NOT_FOUND, "There is no such path here.", outcome=Outcome.NOT_COMMITTED)
        route = by_method.get(method)
        if route is None:
            raise MethodNotAllowed(list(by_method))
        return route, ids
