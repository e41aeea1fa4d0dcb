"""Nothing that could be an id, a token, an address or ciphertext passes into a log line."""

from __future__ import annotations

import base64
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.redaction import HIDDEN, is_secret_field, redact, scrub, scrub_value


def text_id(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "secret",
    [
        "8nNqPmTzQkKo2mKzq0mYdA",
        "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl",
        "0f8fad5b-d9cb-469f-a165-70867728950e",
        "203.0.113.7",
        "2001:db8:0:1:1:1:1:1",
        "2001:db8::7",
        "::1",
        "fe80::1",
        "https://push.example/send/abc?token=1",
        "postgresql://u:p@db/mailboxd",
        r"\x00112233445566778899aabb",
        "deadbeefdeadbeefdeadbeef",
        r"b'\x93\x00secret'",
        'b"it\'s secret"',
    ],
)
def test_it_is_taken_out_of_any_text(secret: str) -> None:
    for text in (secret, f"for {secret}.", f"({secret})", f"a={secret}", f'"{secret}"'):
        assert secret not in scrub(text)
        assert HIDDEN in scrub(text)


@pytest.mark.parametrize(
    "text",
    [
        "loop failed",
        "submit_batch_v1 took 12.5 ms at 12:34:56",
        "delivery.py:120 read_and_push",
        "Key (device_id) already exists",
        "release_expired_entries_of_mailbox_v1",
        "23505 duplicate key value violates unique constraint",
    ],
)
def test_what_an_operator_needs_stays(text: str) -> None:
    assert scrub(text) == text


@given(st.binary(min_size=16, max_size=16).filter(lambda raw: any(byte.isupper() for byte in text_id(raw))))
def test_no_id_passes_in_either_form(raw: bytes) -> None:
    assert text_id(raw) not in scrub(f"device {text_id(raw)} failed")
    assert str(uuid.UUID(bytes=raw)) not in scrub(f"Key (device_id)=({uuid.UUID(bytes=raw)}) already exists")
    assert raw.hex() not in scrub(f"value {raw.hex()}")
    assert repr(raw) not in scrub(f"argument {raw!r}")


@given(st.binary(min_size=0, max_size=64))
def test_bytes_are_shown_by_their_length_only(raw: bytes) -> None:
    for value in (raw, bytearray(raw), memoryview(raw), [raw], {"data": raw}):
        shown = scrub_value(value)
        assert f"[{len(raw)} bytes]" in str(shown)


@pytest.mark.parametrize(
    "name", ["token", "push_token", "device_proof", "remote_ip", "body", "Authorization", "cursor"]
)
def test_a_field_with_a_secret_name_is_hidden_whatever_it_holds(name: str) -> None:
    assert is_secret_field(name)
    assert redact(None, "info", {"event": "x", name: 1})[name] == HIDDEN
    assert scrub_value({name: "abc"}) == {name: HIDDEN}


@pytest.mark.parametrize("name", ["tokens_issued", "key_id", "entries", "loop", "bodies_total"])
def test_a_harmless_name_is_not(name: str) -> None:
    assert not is_secret_field(name)


def test_numbers_and_nesting_survive() -> None:
    value = {"entries": 3, "at": [1, 2.5, None, True], "why": "10.0.0.1 gone"}
    assert scrub_value(value) == {"entries": 3, "at": [1, 2.5, None, True], "why": f"{HIDDEN} gone"}


def test_where_a_process_listens_is_shown_and_no_other_address() -> None:
    line = {
        "event": "ready",
        "listen": "127.0.0.1:8080",
        "ops_listen": "[::1]:9090",
        "peer": "10.0.0.1",
        "at": "10.0.0.1",
    }
    assert redact(None, "info", dict(line)) == {**line, "peer": HIDDEN, "at": HIDDEN}
