"""Bounds of the wire contract that no policy changes, and the policy-driven limits a session works under."""

from __future__ import annotations

from typing import Final, NamedTuple

MIB: Final = 1024 * 1024

MAX_FRAME_BYTES: Final = 4 * MIB
MAX_FRAME_BYTES_BEFORE_HELLO: Final = 16 * 1024
JSON_BODY_FACTOR: Final = 1.4
MAX_OBJECTS: Final = 4_096  # MessagePack objects in one frame; more is refused before decoding
MAX_DEPTH: Final = 6

SEND_ENVELOPES_MAX: Final = 64
ACK_MAX: Final = 100
PULL_LIMIT_MAX: Final = 256
PULL_LIMIT_DEFAULT: Final = 100
PULL_WAIT_S_MAX: Final = 55
BATCH_BYTES_MAX: Final = MIB  # the server's own batches, unless one entry alone is larger
BATCH_ENTRIES_MAX: Final = 256

WINDOW_ENTRIES_DEFAULT: Final = 256
WINDOW_ENTRIES_MAX: Final = 1_024
WINDOW_BYTES_DEFAULT: Final = MIB
WINDOW_BYTES_MAX: Final = 8 * MIB

SENDS_IN_FLIGHT_MAX: Final = 256
BYTES_IN_FLIGHT_MAX: Final = 8 * MIB

CLIENT_NAME_CHARS_MAX: Final = 128
CURSOR_CHARS_MAX: Final = 512
PING_PACKED_BYTES_MAX: Final = 64
PAD_MAX: Final = 12
IDEMPOTENCY_KEY_CHARS_MAX: Final = 255

ECHO_TTL_S: Final = 48 * 3600
ECHO_BACKLOG_MAX: Final = 4_096
ECHO_PROTOCOL_VERSION: Final = 0

HELLO_TIMEOUT_S: Final = 10.0
TOKEN_TTL_S: Final = 900
REAUTH_BEFORE_END_S: Final = 60
SLOW_CONSUMER_S: Final = 30.0
CURSOR_MAX_AGE_S: Final = 45 * 86_400
TAKEOVERS_PER_MINUTE: Final = 10
TAKEOVER_ALIVE_S: Final = 3.0

IDENTITY_BUNDLE_BYTES_MAX: Final = 8_192
PUBLIC_KEY_BYTES: Final = 32
CHALLENGE_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
PREKEYS_PER_UPLOAD_MAX: Final = 200
PREKEYS_STORED_MAX: Final = 1_000
PREKEY_ID_MAX: Final = 2**32 - 1
PREKEY_BYTES_MIN: Final = 32
PREKEY_BYTES_MAX: Final = 2_048
PREKEYS_LOW: Final = 20
MAILBOX_FILLING_SHARE: Final = 0.8


def padded_size(pad: int) -> int:
    """The exact body size of padding class `pad`."""
    return 256 << pad


class WireLimits(NamedTuple):
    """What WELCOME and GET /v1/instance tell the client under `limits`."""

    max_frame_bytes: int
    envelope_bytes_max: int
    ttl_s_min: int
    ttl_s_default: int
    ttl_s_max: int
    sends_in_flight: int = SENDS_IN_FLIGHT_MAX
    bytes_in_flight: int = BYTES_IN_FLIGHT_MAX
    batch_entries_max: int = SEND_ENVELOPES_MAX
    ack_max: int = ACK_MAX
