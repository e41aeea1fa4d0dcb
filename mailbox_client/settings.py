"""The numbers a client works by. The defaults suit a phone; tests and simulations set their own."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from mailbox_client.local_store import CRASHES_MAX
from protocol.client_message_id import LEASE_ORDINALS, OUTSTANDING_MAX
from protocol.limits import (
    PULL_LIMIT_DEFAULT,
    PULL_LIMIT_MAX,
    PULL_WAIT_S_MAX,
    WINDOW_BYTES_DEFAULT,
    WINDOW_BYTES_MAX,
    WINDOW_ENTRIES_DEFAULT,
    WINDOW_ENTRIES_MAX,
)

DAY_MS = 86_400_000
_AT_LEAST_ONE: Final = frozenset(
    {
        "window_entries",
        "window_bytes",
        "hand_over_batch",
        "crashes_max",
        "unconfirmed_max",
        "pending_max",
        "pending_bytes_max",
        "lease_ordinals",
        "outstanding_max",
        "socket_failures_max",
        "page_limit",
    }
)
# What the server caps (WIRE): who counted on more would wait for room in a window that is full.
_AT_MOST: Final = {
    "window_entries": WINDOW_ENTRIES_MAX,
    "window_bytes": WINDOW_BYTES_MAX,
    "poll_wait_s": PULL_WAIT_S_MAX,
    "page_limit": PULL_LIMIT_MAX,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Durations are in milliseconds of the monotonic clock, except those that end in `_age_ms` (server time)."""

    client_name: str = "mailbox_client"

    # receiving
    window_entries: int = WINDOW_ENTRIES_DEFAULT
    window_bytes: int = WINDOW_BYTES_DEFAULT
    hand_over_batch: int = 16
    crashes_max: int = CRASHES_MAX
    dedup_age_ms: int = 37 * DAY_MS  # 30 days and a week's restore horizon
    full_walk_age_ms: int = DAY_MS  # how often deferred messages are fetched again
    unconfirmed_max: int = 1_024  # over HTTP, where no window holds the server back

    # sending
    pending_max: int = 1_024
    pending_bytes_max: int = 64 * 1024 * 1024
    pending_age_ms: int = DAY_MS  # seed 002: client_pending_max_age
    send_answer_ms: int = 30_000  # no answer for so long: the connection is dead, whatever it says
    retry_base_ms: int = 200
    retry_cap_ms: int = 30_000
    lease_ordinals: int = LEASE_ORDINALS
    outstanding_max: int = OUTSTANDING_MAX

    # connection
    open_ms: int = 10_000  # TCP, TLS and upgrade
    welcome_ms: int = 15_000
    token_ms: int = 30_000
    pong_ms: int = 10_000
    pong_after_sleep_ms: int = 3_000
    leave_ms: int = 5_000  # after GOAWAY: at most so long for what is in flight
    backoff_base_ms: int = 500
    backoff_cap_ms: int = 60_000
    stable_ms: int = 10_000  # a connection that held so long ends the backoff

    # HTTP instead of a WebSocket
    socket_failures_max: int = 2  # refused upgrades in a row before HTTP is tried
    socket_retry_base_ms: int = 60_000
    socket_retry_cap_ms: int = 900_000
    poll_wait_s: int = 25
    request_ms: int = 60_000  # must be longer than a poll may wait
    page_limit: int = PULL_LIMIT_DEFAULT

    def __post_init__(self) -> None:
        """Raises ValueError for numbers that nothing could work by."""
        for field in fields(self):
            value = getattr(self, field.name)
            least = 1 if field.name in _AT_LEAST_ONE else 0
            if isinstance(value, int) and value < least:
                raise ValueError(f"{field.name} is at least {least}")
            if isinstance(value, int) and value > (most := _AT_MOST.get(field.name, value)):
                raise ValueError(f"{field.name} is at most {most}")
