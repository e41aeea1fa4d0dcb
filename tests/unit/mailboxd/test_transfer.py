"""Files on their way: sealed to one key, equal in size, whole in any order, kept through crashes."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import secrets
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from mailboxd.inbox import Inbox
from mailboxd.send import _parts
from mailboxd.transfer import SEALED_CLASSES, Address, Part, open_sealed, part_bytes, seal
from protocol.ids import DeviceId

SEED = bytes(range(32))
KEY = SigningKey(SEED).verify_key.encode()
TO = Address(DeviceId(b"d" * 16), KEY)
TRANSFER = b"t" * 16


# Addresses


def test_an_address_reads_back_as_it_was() -> None:
    assert Address.from_text(str(TO)) == TO


@pytest.mark.parametrize(
    "text", ["", "x", str(TO)[:-1], f"{TO}.", str(TO).replace(".", ":"), "A" * 22 + "." + "A" * 43]
)
def test_anything_else_is_no_address(text: str) -> None:
    with pytest.raises(ValueError):
        Address.from_text(text)


# Parts


@given(st.binary(max_size=part_bytes(0)), st.sampled_from(SEALED_CLASSES), st.integers(0, 2**32 - 2))
def test_a_part_opens_as_it_was_sealed_and_its_size_tells_nothing(data: bytes, padding: int, number: int) -> None:
    part = Part(TRANSFER, number, number + 1, data)
    body = seal(part, TO, padding)
    assert len(body) == 256 << padding
    assert open_sealed(body, SEED) == part


@pytest.mark.parametrize("padding", SEALED_CLASSES)
def test_a_full_part_fits_exactly(padding: int) -> None:
    part = Part(TRANSFER, 0, 1, b"\0" * part_bytes(padding))
    assert open_sealed(seal(part, TO, padding), SEED) == part


def test_another_key_and_changed_bytes_open_nothing() -> None:
    body = seal(Part(TRANSFER, 0, 1, b"data"), TO, 0)
    assert open_sealed(body, b"\1" * 32) is None
    for place in (0, 31, 40, len(body) - 1):
        changed = bytearray(body)
        changed[place] ^= 1
        assert open_sealed(bytes(changed), SEED) is None


@given(st.binary(max_size=300))
def test_bytes_of_another_app_are_no_part(body: bytes) -> None:
    assert open_sealed(body, SEED) is None


@given(st.binary(max_size=100), st.integers(1, 40))
def test_a_source_is_cut_into_parts_of_which_the_last_alone_knows_the_total(content: bytes, size: int) -> None:
    parts = parts_of(content, size=size)
    assert b"".join(part.data for part in parts) == content
    assert [part.number for part in parts] == list(range(len(parts)))
    assert [part.total for part in parts] == [0] * (len(parts) - 1) + [len(parts)]


# The inbox


def parts_of(content: bytes, transfer: bytes = TRANSFER, size: int = 10) -> list[Part]:
    async def all_of_them() -> list[Part]:
        with tempfile.TemporaryFile() as source:
            source.write(content)
            source.seek(0)
            return [part async for part in _parts(source, transfer, size)]

    return asyncio.run(all_of_them())


def written(inbox: Inbox, transfer: bytes, tmp_path: Path) -> bytes:
    path = tmp_path / "written"
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        assert inbox.write_to(transfer, output) == path.stat().st_size
    finally:
        os.close(output)
    return path.read_bytes()


def test_parts_in_any_order_and_twice_become_the_file(tmp_path: Path) -> None:
    content = secrets.token_bytes(95)
    parts = parts_of(content)
    for seed in range(5):
        inbox = Inbox(tmp_path / str(seed))
        shuffled = parts * 2
        random.Random(seed).shuffle(shuffled)
        for part in shuffled:
            inbox.keep([part])
        assert inbox.complete() == [TRANSFER]
        assert written(inbox, TRANSFER, tmp_path) == content


def test_a_transfer_is_not_whole_while_any_part_is_missing(tmp_path: Path) -> None:
    parts = parts_of(b"x" * 35)
    for number, missing in enumerate(parts):
        inbox = Inbox(tmp_path / str(number))
        inbox.keep([part for part in parts if part is not missing])
        assert inbox.complete() == []
        inbox.keep([missing])
        assert inbox.complete() == [TRANSFER]


def test_an_empty_file_arrives(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "inbox")
    inbox.keep(parts_of(b""))
    assert (inbox.complete(), written(inbox, TRANSFER, tmp_path)) == ([TRANSFER], b"")


def test_transfers_do_not_mix_and_one_forgotten_leaves_the_other(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "inbox")
    other = b"o" * 16
    for pair in itertools.zip_longest(parts_of(b"first" * 9), parts_of(b"second" * 9, other)):
        inbox.keep([part for part in pair if part is not None])
    assert set(inbox.complete()) == {TRANSFER, other}
    inbox.forget(TRANSFER)
    assert inbox.complete() == [other]
    assert written(inbox, other, tmp_path) == b"second" * 9


def test_what_was_kept_is_there_after_a_crash_in_the_middle_of_a_write(tmp_path: Path) -> None:
    content = b"abcdefghij" * 4
    parts = parts_of(content)
    Inbox(tmp_path / "inbox").keep(parts[:2])
    with (tmp_path / "inbox" / f"{TRANSFER.hex()}.data").open("ab") as data:
        data.write(b"half a pa")  # never indexed
    with (tmp_path / "inbox" / f"{TRANSFER.hex()}.index").open("ab") as index:
        index.write(b"\0\0\0")  # an entry cut short
    inbox = Inbox(tmp_path / "inbox")
    assert inbox.complete() == []
    inbox.keep(parts)
    assert inbox.complete() == [TRANSFER]
    assert written(Inbox(tmp_path / "inbox"), TRANSFER, tmp_path) == content
