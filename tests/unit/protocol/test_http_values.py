"""Bodies in two forms, one map; whatever is wrong is BAD_REQUEST and names the field, never its value."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest

from protocol.errors import ErrorCode, MailboxError
from protocol.http_values import BodyFormat, Fields, parse_body, render_body
from protocol.ids import to_text
from protocol.packing import pack

ID = b"i" * 16
MIB = 1024 * 1024
FORMATS = list(BodyFormat)


def fields(value: Any, body_format: BodyFormat) -> Fields:
    return parse_body(render_body(value, body_format), body_format)


def message_of(call: Any) -> str:
    with pytest.raises(MailboxError) as caught:
        call()
    assert caught.value.code is ErrorCode.BAD_REQUEST
    return caught.value.message


@pytest.mark.parametrize("body_format", FORMATS)
def test_the_same_map_gives_the_same_values_in_both_forms(body_format: BodyFormat) -> None:
    read = fields(
        {"id": ID, "bytes": b"", "int": -5, "flag": True, "text": "é", "ids": [ID, ID], "maps": [{"a": 1}], "map": {}},
        body_format,
    )
    assert read.id("id") == ID
    assert read.binary("bytes", 0, 5) == b""
    assert read.integer("int") == -5
    assert read.boolean("flag") is True
    assert read.text("text", 1, 1) == "é"
    assert read.ids("ids", 1, 2) == [ID, ID]
    assert [inner.integer("a", 0, 1) for inner in read.maps("maps", 1, 1)] == [1]
    assert "x" not in read.map("map")
    assert read.choice("text", ("é",)) == "é"


@pytest.mark.parametrize("body_format", FORMATS)
@pytest.mark.parametrize("wrong", [None, True, 1.0, "1", [1], {}, 2**63, -1, 6])
def test_an_integer_is_an_integer_within_its_bounds(wrong: Any, body_format: BodyFormat) -> None:
    message = message_of(lambda: fields({"limit": wrong}, body_format).integer("limit", 0, 5))
    assert "limit is an integer from 0 to 5" in message


def test_an_integer_beyond_64_bits_is_refused_although_json_can_say_it() -> None:
    assert fields({"pv": 2**64 - 1}, BodyFormat.JSON).integer("pv") == 2**64 - 1
    for number in (2**64, -(2**63) - 1):
        assert "pv is an integer" in message_of(lambda n=number: fields({"pv": n}, BodyFormat.JSON).integer("pv"))
    digits = b'{"pv": ' + b"9" * 5_000 + b"}"
    message_of(lambda: parse_body(digits, BodyFormat.JSON))


@pytest.mark.parametrize(
    "text",
    [
        to_text(bytes(16)),
        to_text(ID) + "==",
        to_text(ID)[:-1],
        to_text(ID)[:-1] + "x",
        "+" + to_text(ID)[1:],
        "é" * 22,
        "",
        5,
        None,
        [to_text(ID)],
    ],
)
def test_json_ids_are_canonical_base64url_and_not_all_zero(text: Any) -> None:
    assert "device_id is" in message_of(lambda: fields({"device_id": text}, BodyFormat.JSON).id("device_id"))


@pytest.mark.parametrize("value", [bytes(16), ID[:-1], ID + b"x", to_text(ID), None, 5])
def test_messagepack_ids_are_bin_of_16_and_not_all_zero(value: Any) -> None:
    data = pack({"device_id": value})
    assert "device_id is" in message_of(lambda: parse_body(data, BodyFormat.MSGPACK).id("device_id"))


@pytest.mark.parametrize("text", ["", "toolong", "a\x00b", "\ud800", 5, None, ["a"]])
def test_texts_are_bounded_well_formed_and_free_of_nul(text: Any) -> None:
    data = json.dumps({"invite": text}).encode()
    assert "invite is a text" in message_of(lambda: parse_body(data, BodyFormat.JSON).text("invite", 1, 5))


@pytest.mark.parametrize("body_format", FORMATS)
def test_a_missing_field_and_null_are_both_wrong(body_format: BodyFormat) -> None:
    assert "signature is missing" in message_of(lambda: fields({}, body_format).binary("signature", 64))
    for call in (
        lambda read: read.binary("x", 1),
        lambda read: read.id("x"),
        lambda read: read.text("x", 1, 2),
        lambda read: read.boolean("x"),
        lambda read: read.integer("x"),
        lambda read: read.maps("x", 0, 1),
        lambda read: read.map("x"),
        lambda read: read.choice("x", ("a",)),
    ):
        message_of(lambda call=call: call(fields({"x": None}, body_format)))


@pytest.mark.parametrize("body_format", FORMATS)
def test_errors_in_nested_maps_name_the_place(body_format: BodyFormat) -> None:
    read = fields({"outer": {"list": [{}, {"size": "no"}]}}, body_format)
    inner = read.map("outer").maps("list", 0, 9)
    assert "outer.list[1].size is" in message_of(lambda: inner[1].integer("size", 0, 9))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"1",
        b"{",
        b'{"a": 1} x',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'\xef\xbb\xbf{"a": 1}',
        b'{"a": "\xff"}',
        '{"a": 1}'.encode("utf-16"),
        b'{"a": ' + b"[" * 3_000 + b"]" * 3_000 + b"}",
    ],
)
def test_what_is_not_one_json_object_in_utf8_is_refused(data: bytes) -> None:
    message_of(lambda: parse_body(data, BodyFormat.JSON))


@pytest.mark.parametrize("data", [b"", pack([]), pack(1), pack({}) + b"x", b"\x81\xa1t\xd4\x01\x00", pack({b"bin": 1})])
def test_what_is_not_one_messagepack_map_is_refused(data: bytes) -> None:
    message_of(lambda: parse_body(data, BodyFormat.MSGPACK))


@pytest.mark.parametrize(
    ("data", "body_format"),
    [
        (b'{"a": [' + b"[]," * 1_900_000 + b"0]}", BodyFormat.JSON),
        (b'{"a": [' + b"{}," * 1_900_000 + b"0]}", BodyFormat.JSON),
        (b'{"a": ' + b"[" * 5_000_000, BodyFormat.JSON),
        (b"\x81\xa1a\xdd\x00\x3f\xff\xff" + b"\x90" * 4_194_303, BodyFormat.MSGPACK),
    ],
    ids=["arrays", "maps", "deep", "packed-arrays"],
)
def test_a_hostile_body_costs_no_memory_and_no_time(data: bytes, body_format: BodyFormat) -> None:
    tracemalloc.start()
    started = time.process_time()
    try:
        message_of(lambda: parse_body(data, body_format))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB
    assert time.process_time() - started < 0.5


def test_a_full_submit_and_a_full_prekey_upload_are_within_the_bound_of_values() -> None:
    envelope = {"to": ID, "message_id": ID, "protocol_version": 1, "body": b"", "ttl_s": 1, "pad": 1, "later": 1}
    prekey = {"key_id": 1, "public_key": bytes(32)}
    for body_format in FORMATS:
        submit = fields({"client_message_id": ID, "envelopes": [envelope] * 64, "echo": True}, body_format)
        upload = fields({"one_time": [prekey] * 200, "last_resort": prekey}, body_format)
        assert (len(submit.maps("envelopes", 1, 64)), len(upload.maps("one_time", 0, 200))) == (64, 200)


@pytest.mark.parametrize("secret", ["swordfish", "\u2028"])
def test_messages_never_quote_what_was_sent(secret: str) -> None:
    for call in (
        lambda read: read.integer("x"),
        lambda read: read.id("x"),
        lambda read: read.choice("x", ("a",)),
        lambda read: read.text("x", 1, 1) if len(secret) > 1 else read.integer("x"),
    ):
        assert secret not in message_of(lambda call=call: call(fields({"x": secret, secret: 1}, BodyFormat.JSON)))


def test_an_answer_cannot_hold_what_neither_form_can_say() -> None:
    with pytest.raises(TypeError):
        render_body({"x": object()}, BodyFormat.JSON)
