"""What `listen` keeps until a file is whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mailboxd.inbox import Inbox, InboxFull
from mailboxd.transfer import Part

FIRST, SECOND = b"1" * 16, b"2" * 16


def test_parts_are_kept_up_to_a_bound_and_one_more_is_not(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, bytes_max=100)
    inbox.keep([Part(FIRST, 0, 0, b"x" * 60)])
    with pytest.raises(InboxFull):
        inbox.keep([Part(FIRST, 1, 0, b"x" * 41)])
    assert inbox.kept_bytes == 60
    inbox.keep([Part(FIRST, 1, 2, b"x" * 40)])
    assert inbox.complete() == [FIRST]


def test_the_bound_counts_what_an_earlier_process_kept(tmp_path: Path) -> None:
    Inbox(tmp_path).keep([Part(FIRST, 0, 0, b"x" * 60)])
    inbox = Inbox(tmp_path, bytes_max=100)
    assert inbox.kept_bytes == 60
    with pytest.raises(InboxFull):
        inbox.keep([Part(SECOND, 0, 0, b"x" * 41)])


def test_a_part_that_comes_twice_is_kept_once(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    for _ in range(2):
        inbox.keep([Part(FIRST, 0, 1, b"x" * 60)])
    assert inbox.kept_bytes == 60


def test_what_is_handed_out_or_dropped_makes_room(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, bytes_max=100)
    inbox.keep([Part(FIRST, 0, 1, b"x" * 60), Part(SECOND, 0, 0, b"y" * 40)])
    assert inbox.drop_incomplete() == 1
    assert inbox.complete() == [FIRST]
    assert inbox.kept_bytes == 60
    inbox.forget(FIRST)
    assert (inbox.kept_bytes, list(tmp_path.iterdir())) == (0, [])


def test_a_transfer_is_written_out_in_order(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.keep([Part(FIRST, 1, 2, b"second"), Part(FIRST, 0, 0, b"first ")])
    output = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    assert inbox.write_to(FIRST, output) == 12
    os.close(output)
    assert (tmp_path / "out").read_bytes() == b"first second"
