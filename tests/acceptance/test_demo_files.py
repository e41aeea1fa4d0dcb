"""Files become pieces that fit an envelope, and come out the same whatever the order of arrival."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboxd.demo.files import ENVELOPE_BYTES_MAX, SEAL_BYTES, Outgoing, Rebuilder, pieces_of, read_files

contents = st.lists(st.binary(max_size=3_000), min_size=1, max_size=4)


@given(contents, st.randoms(use_true_random=False))
def test_files_come_out_as_they_went_in_whatever_the_order(bodies: list[bytes], shuffler: object) -> None:
    files = [Outgoing(f"file-{number}", body) for number, body in enumerate(bodies)]
    pieces = list(pieces_of(files))
    shuffler.shuffle(pieces)  # type: ignore[attr-defined]
    rebuilder = Rebuilder()
    for piece in pieces:
        rebuilder.add(piece)
    assert [(file.name, file.content, file.intact) for file in rebuilder.files()] == [
        (file.name, file.content, True) for file in files
    ]


@pytest.mark.parametrize("size", [0, 1, 10_000, 2_000_000])
def test_every_piece_fits_a_sealed_padded_envelope(size: int) -> None:
    for piece in pieces_of([Outgoing("file", bytes(size))]):
        assert len(piece) + SEAL_BYTES + 1 <= ENVELOPE_BYTES_MAX


def test_small_inputs_make_enough_envelopes_to_lose_a_connection_in_between() -> None:
    assert len(list(pieces_of([Outgoing("readme", bytes(6_000)), Outgoing("licence", bytes(11_000))]))) >= 16


@pytest.mark.parametrize("lost", [0, 1, 5])
def test_a_missing_piece_is_no_intact_file(lost: int) -> None:
    pieces = list(pieces_of([Outgoing("file", bytes(range(256)) * 20)]))
    rebuilder = Rebuilder()
    for number, piece in enumerate(pieces):
        if number != lost:
            rebuilder.add(piece)
    assert not any(file.intact for file in rebuilder.files())


def test_a_changed_byte_is_no_intact_file() -> None:
    rebuilder = Rebuilder()
    for piece in pieces_of([Outgoing("file", bytes(1_000))]):
        rebuilder.add(piece[:-1] + b"\x01" if piece.endswith(b"\x00") else piece)
    assert [file.intact for file in rebuilder.files()] == [False]


@pytest.mark.parametrize("piece", [b"", b"\x09" + bytes(6)])
def test_bytes_that_are_no_piece_are_refused(piece: bytes) -> None:
    with pytest.raises(ValueError, match="piece"):
        Rebuilder().add(piece)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.txt"):
        read_files([tmp_path / "nowhere.txt"])
