"""No client message id twice: not after a restart, a clock set back, or in another process (seed 003)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol import client_message_id as cmid
from protocol.client_message_id import CorruptHighWater, OrdinalLease, OrdinalsExhausted, next_lease

DEVICE: Any = bytes(range(16))


def test_seed003_devices_that_share_their_low_64_bits_get_different_ids() -> None:
    low = bytes(range(8, 16))
    one, other = b"\x00" * 8 + low, b"\x01" * 8 + low
    assert cmid.derive(one, 0) != cmid.derive(other, 0)  # type: ignore[arg-type]


def test_seed003_a_lease_starts_strictly_above_the_high_water() -> None:
    first = next_lease(None)
    assert first == OrdinalLease(0, cmid.LEASE_ORDINALS - 1)
    second = next_lease(first.last)
    assert second.first == first.last + 1
    assert second.last - second.first + 1 == 2**40


def test_a_lease_starts_at_the_server_time_when_an_old_backup_brought_the_high_water_back() -> None:
    lease = next_lease(5, server_now_ms=1_767_225_600_000)
    assert lease.first == 1_767_225_600_000 << 64
    assert next_lease(lease.last, server_now_ms=1_000).first == lease.last + 1


def test_seed003_overflow_is_a_clear_error_and_the_last_lease_still_goes() -> None:
    last = next_lease(cmid.ORDINAL_MAX - cmid.LEASE_ORDINALS)
    assert last.last == cmid.ORDINAL_MAX
    for high_water in (cmid.ORDINAL_MAX - cmid.LEASE_ORDINALS + 1, cmid.ORDINAL_MAX):
        with pytest.raises(OrdinalsExhausted):
            next_lease(high_water)
    with pytest.raises(OrdinalsExhausted):
        next_lease(None, server_now_ms=2**64)


@pytest.mark.parametrize("high_water", [0, 1, 2**64, cmid.ORDINAL_MAX])
def test_seed003_a_stored_high_water_is_exactly_16_bytes(high_water: int) -> None:
    stored = cmid.high_water_to_bytes(high_water)
    assert len(stored) == 16
    assert cmid.high_water_from_bytes(stored) == high_water


@pytest.mark.parametrize("stored", [b"", bytes(15), bytes(17), "0" * 16, 5, None])
def test_seed003_a_damaged_high_water_fails_closed(stored: object) -> None:
    with pytest.raises(CorruptHighWater):
        cmid.high_water_from_bytes(stored)


def test_an_all_zero_hash_is_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zero:
        def digest(self, size: int) -> bytes:
            return bytes(size)

    monkeypatch.setattr(cmid, "blake3", lambda _data: Zero())
    assert cmid.derive(DEVICE, 0) is None


@pytest.mark.parametrize(("device", "ordinal"), [(b"short", 0), (DEVICE, -1), (DEVICE, 2**128)])
def test_what_is_no_device_or_no_ordinal_is_refused(device: Any, ordinal: int) -> None:
    with pytest.raises(ValueError):
        cmid.derive(device, ordinal)
