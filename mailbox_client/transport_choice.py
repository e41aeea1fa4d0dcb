"""WebSocket or HTTP: what the app prefers, and what the network lets through."""

from __future__ import annotations

from collections.abc import Callable

from mailbox_client.backoff import full_jitter
from mailbox_client.events import Transport
from mailbox_client.settings import ClientSettings


class TransportChoice:
    """HTTP is taken after upgrades failed in a row while the host can be reached, and left again from time to time."""

    def __init__(self, settings: ClientSettings, random: Callable[[], float]) -> None:
        self._settings = settings
        self._random = random
        self._prefer: Transport | None = None
        self._failures = 0  # upgrades that did not lead to a WELCOME
        self._retries = 0
        self._retry_at = 0

    def prefer(self, transport: Transport | None) -> None:
        """The app's choice; None: as the network lets."""
        self._prefer = transport
        self._failures = 0

    def is_http(self, now: int) -> bool:
        if self._prefer is not None:
            return self._prefer is Transport.HTTP
        return self._failures >= self._settings.socket_failures_max and now < self._retry_at

    def socket_works(self) -> None:
        self._failures = self._retries = 0

    def socket_failed(self, now: int) -> None:
        """An upgrade was refused, hung, or led to something that is no WebSocket of this server."""
        self._failures += 1
        settings = self._settings
        if self._failures >= settings.socket_failures_max:
            self._retries += 1
            base, cap = settings.socket_retry_base_ms, settings.socket_retry_cap_ms
            self._retry_at = now + max(base, full_jitter(base, cap, self._retries, self._random()))

    def wants_socket(self, now: int) -> bool:
        """While HTTP is in use: whether it is time to try a WebSocket again."""
        return self._prefer is not Transport.HTTP and now >= self._retry_at

    def next_try(self, now: int) -> int | None:
        """While HTTP is in use: when it will be time. Past it, the answer that is waited for brings the next step."""
        return self._retry_at if self._prefer is not Transport.HTTP and self._retry_at > now else None
