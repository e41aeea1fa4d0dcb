"""Whole arrays in PostgreSQL's binary form, without a database."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.array_codecs import CODECS

BY_NAME = {name: codec for (_, name), codec in CODECS.items()}
ELEMENTS = {
    "_bool": st.booleans(),
    "_bytea": st.binary(max_size=40),
    "_int2": st.integers(-(2**15), 2**15 - 1),
    "_int4": st.integers(-(2**31), 2**31 - 1),
    "_int8": st.integers(-(2**63), 2**63 - 1),
    "_uuid": st.binary(min_size=16, max_size=16),
}


@pytest.mark.parametrize("name", sorted(ELEMENTS))
@given(data=st.data())
def test_what_goes_in_comes_out_nulls_included(name: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(ELEMENTS[name] | st.none(), max_size=20))
    encode, decode = BY_NAME[name]
    assert decode(encode(values)) == values


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_int2", 2**15),
        ("_int4", 2**31),
        ("_int8", 2**63),
        ("_int4", "1"),
        ("_int4", 1.5),
        ("_bool", 1),
        ("_bytea", "text"),
        ("_bytea", 5),
        ("_uuid", b"fifteen bytes.."),
        ("_uuid", "0" * 32),
    ],
)
def test_a_value_that_does_not_fit_is_refused_also_beside_a_null(name: str, wrong: object) -> None:
    encode, _ = BY_NAME[name]
    for values in ([wrong], [wrong, None]):
        with pytest.raises((struct.error, TypeError, ValueError)):
            encode(values)


def test_ids_of_wrong_lengths_that_add_up_are_refused() -> None:
    encode, _ = BY_NAME["_uuid"]
    with pytest.raises(ValueError, match="16 bytes"):
        encode([b"x" * 15, b"y" * 17])


def test_an_array_of_two_dimensions_is_refused() -> None:
    _, decode = BY_NAME["_int4"]
    with pytest.raises(ValueError, match="one dimension"):
        decode(struct.pack(">iiIiiii", 2, 0, 23, 1, 1, 1, 1) + struct.pack(">ii", 4, 7))
