"""When to try again: what failed in a row, and the come-back times that the server gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mailbox_client.backoff import full_jitter
from mailbox_client.errors import StopReason
from mailbox_client.settings import ClientSettings
from protocol.errors import ErrorCode

TOKEN_REFUSALS_MAX: Final = 3


class NextTry:
    """Waits grow with each failure in a row until a connection held for `stable_ms`. Durations are in milliseconds.

    Nothing overrides a come-back time of the server's, not even a wake.
    """

    def __init__(self, settings: ClientSettings, random: Callable[[], float]) -> None:
        self._settings = settings
        self._random = random
        self._failures = 0
        self._auth_failures = 0
        self._token_refusals = 0
        self._not_before = 0
        self._online_since = 0

    def begin_anew(self) -> None:
        """The app or its user acted: earlier failures count no more."""
        self._failures = self._auth_failures = self._token_refusals = 0

    # -- what works

    def token_came(self) -> None:
        self._token_refusals = 0

    def online(self, now: int) -> None:
        self._online_since = now

    def still_online(self, now: int) -> None:
        """A connection that held so long ends the backoff."""
        if now - self._online_since >= self._settings.stable_ms:
            self._failures = self._auth_failures = 0

    def stable_at(self) -> int | None:
        """When a connection that is online will have held long enough; None: there is nothing to forget."""
        return self._online_since + self._settings.stable_ms if self._failures else None

    # -- what failed, and the wait that follows

    def failed(self, retry_after_ms: int | None) -> int:
        self._failures += 1
        return max(retry_after_ms or 0, self.backoff(self._failures))

    def token_not_taken(self) -> int:
        """The server did not take a token that was new to it: the first time another one may well do, at once."""
        self._auth_failures += 1
        return 0 if self._auth_failures == 1 else self.backoff(self._auth_failures)

    def token_refused(self, code: ErrorCode | None) -> StopReason | None:
        """No token was given; `code` is why, as far as the server said. A reason if more tries are of no use."""
        if code is ErrorCode.DEVICE_REVOKED:
            return StopReason.REVOKED
        if code is ErrorCode.UNAUTHENTICATED:
            self._token_refusals += 1
        return StopReason.NOT_KNOWN if self._token_refusals >= TOKEN_REFUSALS_MAX else None

    def backoff(self, attempt: int = 1) -> int:
        return full_jitter(self._settings.backoff_base_ms, self._settings.backoff_cap_ms, attempt, self._random())

    # -- the server's come-back time

    def come_back_at(self, instant: int) -> None:
        self._not_before = instant

    def earliest(self, instant: int) -> int:
        """That instant, or the server's come-back time if it is later."""
        return max(instant, self._not_before)
