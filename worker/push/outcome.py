"""What a push can come to, and who sends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple, Protocol

from protocol.ids import WakeRouteId


@dataclass(frozen=True, slots=True)
class Accepted:  # no tuple: an empty one would be false, and equal to Gone
    """The provider took the push."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Not now: trouble on the provider's side or on the way. `after` when the provider said so."""

    cause: str
    after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """The provider says that this route is no more."""


@dataclass(frozen=True, slots=True)
class Misconfigured:
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
