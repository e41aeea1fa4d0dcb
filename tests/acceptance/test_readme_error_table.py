"""docs/protocol.md says what the code does."""

from __future__ import annotations

import re

from protocol.errors import CloseCode, ErrorCode
from protocol.frames import FrameType
from tests.acceptance.error_table import DOCUMENT, with_table


def test_the_error_table_is_the_one_in_the_code() -> None:
    document = DOCUMENT.read_text()
    assert document == with_table(document), "run: python -m tests.acceptance.error_table"


def test_every_code_has_its_row() -> None:
    rows = set(re.findall(r"^\| ([A-Z_]+) \| \d+ \|", DOCUMENT.read_text(), re.MULTILINE))
    assert rows == {code.value for code in ErrorCode}


def test_every_frame_type_is_described_with_its_number() -> None:
    described = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", DOCUMENT.read_text(), re.MULTILINE)
    assert {(int(number), name) for number, name in described} == {(kind.value, kind.name) for kind in FrameType}


def test_every_close_code_of_ours_is_described() -> None:
    document = DOCUMENT.read_text()
    codes = {value for name, value in vars(CloseCode).items() if name.isupper()}
    assert codes
    assert all(re.search(rf"^\|.*\b{code}\b.*\|", document, re.MULTILINE) for code in codes)
