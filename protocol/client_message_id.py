"""Client message ids as seed 003 repairs them: a durable ordinal of the device, hashed with the whole device id.

Pure: who keeps the high water durable (`BEGIN IMMEDIATE`, read, choose, write back) is the client's local store. An
ordinal that was reserved and never used is skipped for ever; that costs a little of 2^128 and nothing else.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from blake3 import blake3

from protocol.ids import ID_BYTES, ZERO_ID, ClientMessageId, DeviceId

ORDINAL_MAX: Final = 2**128 - 1
ORDINAL_BYTES: Final = 16
LEASE_ORDINALS: Final = 2**40  # what one lease reserves
OUTSTANDING_MAX: Final = 256  # issued and not yet consumed; past it issuing pauses until one is consumed
SERVER_TIME_SHIFT: Final = 64  # ordinal = server milliseconds << 64: above whatever an old phone backup brings back
SKIP_BITS: Final = 63  # of what a lease may skip: below half a millisecond of server time

_LABEL: Final = b"qim.client-message-id.v1\x00"


class OrdinalsExhausted(Exception):
    """The device's 128-bit ordinals do not hold another lease. Nothing was reserved; nothing wraps around."""


class CorruptHighWater(Exception):
    """The stored high water is not one. Issuing stops (fail closed): guessing could hand out an old ordinal again."""


class OrdinalLease(NamedTuple):
    """Ordinals `first` to `last`, both included, reserved for one process. `last` is the new high water."""

    first: int
    last: int


def derive(device_id: DeviceId, ordinal: int) -> ClientMessageId | None:
    """The cmid of one ordinal; None in the one case of 2^128 where the hash is all zero: skip that ordinal.

    blake3("qim.client-message-id.v1" NUL device_id ordinal), both 16 bytes big-endian, first 16 bytes.
    """
    if len(device_id) != ID_BYTES or not 0 <= ordinal <= ORDINAL_MAX:
        raise ValueError("a device id is 16 bytes and an ordinal 128 bits")
    hashed = blake3(_LABEL + device_id + ordinal.to_bytes(ORDINAL_BYTES, "big")).digest(ID_BYTES)
    return None if hashed == ZERO_ID else ClientMessageId(hashed)


def next_lease(
    high_water: int | None, *, server_now_ms: int | None = None, ordinals: int = LEASE_ORDINALS, skip: int = 0
) -> OrdinalLease:
    """The next ordinals to reserve: strictly above `high_water` (None: none was ever reserved).

    Once a server time is known the lease starts no lower than that time shifted left by 64 bits, since a phone backup
    can bring an old high water back. `skip` more ordinals are left out, drawn at random by who calls: a process on such
    a backup that has not heard the server yet starts elsewhere than the process that the backup knows nothing of.
    Raises OrdinalsExhausted when the whole lease does not fit below 2^128.
    """
    first = 0 if high_water is None else high_water + 1
    if server_now_ms is not None:
        first = max(first, server_now_ms << SERVER_TIME_SHIFT)
    first += skip
    last = first + ordinals - 1
    if last > ORDINAL_MAX:
        raise OrdinalsExhausted("no client message ids are left for this device")
    return OrdinalLease(first, last)


def high_water_to_bytes(high_water: int) -> bytes:
    """The stored form: exactly 16 bytes, big-endian."""
    return high_water.to_bytes(ORDINAL_BYTES, "big")


def high_water_from_bytes(stored: object) -> int:
    """The high water that was stored; CorruptHighWater for anything but exactly 16 bytes."""
    if type(stored) is not bytes or len(stored) != ORDINAL_BYTES:
        raise CorruptHighWater("the stored client message id high water is damaged")
    return int.from_bytes(stored, "big")
