"""Cursors cannot be forged, moved to another device, or read; keys rotate (seed 000, 7.2)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.cursor import HOT_CIPHERS_MAX, CursorPosition, CursorRing, DeviceCursors
from protocol.errors import ErrorCode, MailboxError
from protocol.ids import from_text, to_text

INSTANCE: Any = b"I" * 16
DEVICE: Any = b"D" * 16
EPOCH = b"epoch--8"
NOW = 1_767_225_600_000
DAY_MS = 86_400_000
OLD, NEW = b"o" * 32, b"n" * 32


def cursors(current: int = 1, keys: dict[int, bytes] | None = None, device: Any = DEVICE) -> DeviceCursors:
    return CursorRing(current, keys or {1: OLD}).for_device(INSTANCE, device)


def code_of(opener: DeviceCursors, text: str, now_ms: int = NOW) -> ErrorCode:
    with pytest.raises(MailboxError) as caught:
        opener.open(text, now_ms)
    return caught.value.code


@pytest.mark.parametrize("position", [0, 1, NOW * 1000, 2**63 - 1])
def test_a_cursor_opens_to_what_was_sealed(position: int) -> None:
    text = cursors().seal(position, NOW, EPOCH)
    assert 1 <= len(text) <= 512
    assert cursors().open(text, NOW) == CursorPosition(position, NOW, EPOCH)


def test_adr009_7_2_every_tampered_bit_is_noticed() -> None:
    text = cursors().seal(NOW * 1000, NOW, EPOCH)
    data = from_text(text)
    for bit in range(len(data) * 8):
        tampered = bytearray(data)
        tampered[bit // 8] ^= 1 << bit % 8
        assert code_of(cursors(), to_text(bytes(tampered))) is ErrorCode.CURSOR_INVALID


def test_adr009_7_2_every_other_character_is_noticed() -> None:
    text = cursors().seal(NOW * 1000, NOW, EPOCH)
    for at in range(len(text)):
        for char in "A_=!\x00é ":
            if text[at] != char:
                assert code_of(cursors(), text[:at] + char + text[at + 1 :]) is ErrorCode.CURSOR_INVALID


@pytest.mark.parametrize("text", ["", "x", "A" * 75, "A" * 76, "A" * 77, "é" * 76, "A" * 512])
def test_a_text_that_is_no_cursor_is_invalid(text: str) -> None:
    assert code_of(cursors(), text) is ErrorCode.CURSOR_INVALID


def test_adr009_7_2_another_devices_cursor_is_invalid() -> None:
    text = cursors(device=b"E" * 16).seal(1, NOW, EPOCH)
    assert code_of(cursors(), text) is ErrorCode.CURSOR_INVALID


def test_adr009_7_2_another_instances_cursor_is_invalid_even_under_the_same_key() -> None:
    other = CursorRing(1, {1: OLD}).for_device(b"J" * 16, DEVICE)  # type: ignore[arg-type]
    assert code_of(cursors(), other.seal(1, NOW, EPOCH)) is ErrorCode.CURSOR_INVALID


def test_adr009_7_2_old_keys_open_and_do_not_seal_and_retired_ones_are_refused() -> None:
    old_text = cursors(1, {1: OLD}).seal(5, NOW, EPOCH)
    rotated = cursors(2, {1: OLD, 2: NEW})
    assert rotated.open(old_text, NOW).position == 5
    new_text = rotated.seal(5, NOW, EPOCH)
    assert code_of(cursors(1, {1: OLD}), new_text) is ErrorCode.CURSOR_INVALID
    retired = cursors(2, {2: NEW})
    assert retired.open(new_text, NOW).position == 5
    assert code_of(retired, old_text) is ErrorCode.CURSOR_INVALID


def test_a_key_under_the_id_of_another_does_not_open() -> None:
    text = cursors(1, {1: OLD}).seal(5, NOW, EPOCH)
    assert code_of(cursors(1, {1: NEW}), text) is ErrorCode.CURSOR_INVALID


def test_adr009_7_2_a_cursor_expires_after_45_days() -> None:
    text = cursors().seal(5, NOW, EPOCH)
    assert cursors().open(text, NOW + 45 * DAY_MS).position == 5
    assert code_of(cursors(), text, NOW + 45 * DAY_MS + 1) is ErrorCode.CURSOR_EXPIRED


def test_a_cursor_from_a_clock_that_was_ahead_still_opens_since_the_epoch_judges_restores() -> None:
    text = cursors().seal(5, NOW + DAY_MS, EPOCH)
    assert cursors().open(text, NOW).position == 5


def test_a_cursor_shows_nothing_of_its_position_and_is_the_same_for_the_same_arguments() -> None:
    first, second = (from_text(cursors().seal(position, NOW, EPOCH)) for position in (1, 2))
    assert cursors().seal(1, NOW, EPOCH) == to_text(first)
    differing = sum(a != b for a, b in zip(first[5:], second[5:], strict=True))
    assert differing > 40  # 52 bytes of nonce and sealed text: all but chance ones differ


@pytest.mark.parametrize(
    ("current", "keys"), [(2, {1: OLD}), (1, {1: b"short"}), (2**32, {2**32: OLD}), (-1, {-1: OLD})]
)
def test_a_ring_that_cannot_seal_is_refused_at_once(current: int, keys: dict[int, bytes]) -> None:
    with pytest.raises(ValueError):
        CursorRing(current, keys)


def test_the_ciphers_that_are_kept_are_bounded_and_change_no_cursor() -> None:
    ring = CursorRing(1, {1: OLD})
    devices: list[Any] = [number.to_bytes(16, "big") for number in range(1, HOT_CIPHERS_MAX + 3)]
    sealing = [ring.for_device(INSTANCE, device) for device in devices]
    for _ in range(2):
        for device, cursors_of_one in zip(devices, sealing, strict=True):
            assert cursors_of_one.seal(7, NOW, EPOCH) == cursors(device=device).seal(7, NOW, EPOCH)
            assert len(ring._hot) <= HOT_CIPHERS_MAX
