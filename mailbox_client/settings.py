"""The numbers a client works by. The defaults suit a phone; tests and simulations set their own."""

from __future__ import annotations

from dataclasses import dataclass

from mailbox_client.local_store import CRASHES_MAX
from protocol.client_message_id import LEASE_ORDINALS, OUTSTANDING_MAX
from protocol.limits import PULL_LIMIT_DEFAULT, WINDOW_BYTES_DEFAULT, WINDOW_ENTRIES_DEFAULT

DAY_MS = 86_400_000


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
