"""What a push can come to, and who sends it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple, Protocol

from protocol.ids import WakeRouteId


class Accepted(NamedTuple):
    """The provider took the push."""


class Retry(NamedTuple):
    """Not now: trouble on the provider's side or on the way. `after` when the provider said so."""

    cause: str
    after: timedelta | None = None


class Gone(NamedTuple):
    """The provider says that this route is no more."""


class Misconfigured(NamedTuple):
    """This will not work until somebody changes something; `cause` from a small fixed set."""

    cause: str


Outcome = Accepted | Retry | Gone | Misconfigured


class Target(NamedTuple):
    """An opened route. `settings` as store.push_routes.PushAddress has them for each provider: all of it is secret."""

    wake_route_id: WakeRouteId
    settings: Mapping[str, str]
    mode: str


class Provider(Protocol):
    """Sends wakes of one kind. Never raises for what a provider or the network does; a bug may raise."""

    def host(self, target: Target) -> str:
        """Whom the push goes to, for caps and pauses: never logged, never a label."""
        ...

    async def push(self, target: Target) -> Outcome:
        """Send one wake within a bounded time."""
        ...
