"""Padding of plaintexts to the size classes of WIRE, so that a sealed body leaks its class and not its length.

Pad, then seal so that the ciphertext has exactly `256 << pad` bytes; send it with `pad`; after opening, unpad.
"""

from __future__ import annotations

from typing import Final

from protocol.limits import PAD_MAX, padded_size

_MARK: Final = b"\x80"  # ISO/IEC 7816-4: one mark, then zeros; the plaintext may end in anything


def padding_class(plaintext_bytes: int, overhead_bytes: int) -> int:
    """The smallest class `pad` (0..12) whose sealed body holds a plaintext of this size.

    `overhead_bytes` is what sealing adds (libsodium's sealed box: 48). Raises ValueError if even the largest, 1 MiB,
    is too small.
    """
    for pad in range(PAD_MAX + 1):
        if plaintext_bytes + len(_MARK) + overhead_bytes <= padded_size(pad):
            return pad
    raise ValueError("the plaintext does not fit the largest padding class")


def pad(plaintext: bytes, overhead_bytes: int) -> tuple[bytes, int]:
    """The padded plaintext and its class: sealed with exactly `overhead_bytes` more it has `256 << class` bytes."""
    chosen = padding_class(len(plaintext), overhead_bytes)
    return pad_to(plaintext, padded_size(chosen) - overhead_bytes), chosen


def pad_to(plaintext: bytes, size: int) -> bytes:
    """The plaintext padded to exactly `size` bytes, which must be more than it has."""
    if len(plaintext) >= size:
        raise ValueError("padding needs at least one byte")
    return (plaintext + _MARK).ljust(size, b"\x00")


def unpad(padded: bytes) -> bytes:
    """The plaintext that was padded; ValueError if this is no padded plaintext."""
    end = len(padded.rstrip(b"\x00"))
    if end == 0 or padded[end - 1 : end] != _MARK:
        raise ValueError("not a padded plaintext")
    return padded[: end - 1]
