"""Padding of plaintexts to the size classes of WIRE."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.public import PrivateKey, SealedBox

from mailbox_client.padding import pad, pad_to, padding_class, unpad
from protocol.limits import padded_size

SEALED_BOX_BYTES = 48


@given(st.binary(max_size=5_000), st.integers(0, 200))
def test_what_is_padded_comes_back_and_seals_to_exactly_its_class(plaintext: bytes, overhead: int) -> None:
    padded, chosen = pad(plaintext, overhead)
    assert len(padded) + overhead == padded_size(chosen)
    assert unpad(padded) == plaintext


@given(st.integers(0, 1_048_576 - 49))
def test_the_class_is_the_smallest_that_holds_it(size: int) -> None:
    chosen = padding_class(size, SEALED_BOX_BYTES)
    assert size + 1 + SEALED_BOX_BYTES <= padded_size(chosen)
    assert chosen == 0 or size + 1 + SEALED_BOX_BYTES > padded_size(chosen - 1)


def test_a_sealed_box_of_a_padded_plaintext_has_the_size_that_pad_promises() -> None:
    key = PrivateKey.generate()
    padded, chosen = pad(b"hello", SEALED_BOX_BYTES)
    sealed = SealedBox(key.public_key).encrypt(padded)
    assert len(sealed) == padded_size(chosen)
    assert unpad(SealedBox(key).decrypt(sealed)) == b"hello"


def test_what_fits_no_class_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        padding_class(1_048_576 - SEALED_BOX_BYTES, SEALED_BOX_BYTES)
    with pytest.raises(ValueError, match="at least one byte"):
        pad_to(bytes(10), 10)


@pytest.mark.parametrize("damaged", [b"", b"\x00", bytes(20), b"text", b"text\x00\x00"])
def test_what_was_not_padded_is_noticed(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="not a padded"):
        unpad(damaged)
