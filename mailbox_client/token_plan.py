"""The device's token: when one is needed, asked for, and renewed ahead of its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from mailbox_client.engine_io import Abandon, FetchToken, Output

SPARE_MS: Final = 10_000  # a token that ends sooner is not worth a connection
AHEAD_MS_MAX: Final = 60_000
AHEAD_MS_MIN: Final = 1_000


class TokenPlan:
    """At most one request for a token at a time. All durations are counted by the local monotonic clock."""

    def __init__(self, random: Callable[[], float], numbers: Iterator[int], out: list[Output]) -> None:
        self._random = random
        self._numbers = numbers
        self._out = out
        self._request: int | None = None
        self._token: str | None = None
        self._good_until = 0
        self._renew_at: int | None = None

    def usable(self, now: int) -> str | None:
        """The token, if it is good for long enough to open something with it."""
        return self._token if self._good_until - now >= SPARE_MS else None

    def fetch(self) -> None:
        """Ask for one, unless an answer is waited for already."""
        if self._request is None:
            self._renew_at = None
            self._request = next(self._numbers)
            self._out.append(FetchToken(self._request))

    def answered(self, request: int) -> bool:
        """Take note that a request is over; False if it is not the one that is waited for."""
        if request != self._request:
            return False
        self._request = None
        return True

    def keep(self, now: int, token: str, reauth_in_ms: int) -> None:
        self._token = token
        self._good_until = now + reauth_in_ms  # from then on the server wants another one
        self.renew_before(now, reauth_in_ms)

    def renew_before(self, now: int, reauth_in_ms: int) -> None:
        """Plan the renewal well ahead of `reauth_before`, where the server says GOAWAY, and not for all at one time."""
        ahead = min(AHEAD_MS_MAX, reauth_in_ms // 4)
        self._renew_at = now + max(AHEAD_MS_MIN, reauth_in_ms - ahead - int(self._random() * ahead))

    def renew_at(self, instant: int) -> None:
        self._renew_at = instant

    def renew_when_due(self, now: int) -> None:
        if self._renew_at is not None and now >= self._renew_at:
            self.fetch()

    def next_due(self) -> int | None:
        return self._renew_at

    def drop(self) -> None:
        """The server does not take it."""
        self._token = None

    def give_up(self) -> None:
        """Wait for no answer any more."""
        if self._request is not None:
            self._out.append(Abandon(self._request))
            self._request = None
            self._renew_at = 0  # as soon as there is a connection again
