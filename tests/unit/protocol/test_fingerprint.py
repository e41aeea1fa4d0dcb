"""A fingerprint is equal exactly for the same submit, through either door, and says nothing without the key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from protocol import fingerprint
from protocol.codec import decode_client_frame
from protocol.frames import Send, SendEnvelope
from protocol.http_shapes import submit_body
from protocol.http_values import BodyFormat, parse_body, render_body
from protocol.packing import pack, unpack

KEY, OTHER_KEY = b"k" * 32, b"K" * 32
ID: Any = b"i" * 16
OTHER: Any = b"o" * 16
ENVELOPE = SendEnvelope(ID, OTHER, 1, bytes(256), 3_600, 0)


def of(*envelopes: SendEnvelope, echo: bool = True, key: bytes = KEY) -> bytes:
    return fingerprint.submit_fingerprint(key, envelopes, echo)


@pytest.mark.parametrize(
    "change",
    [
        {"to": OTHER},
        {"mid": ID},
        {"pv": 2},
        {"body": b"\x01" + bytes(255)},
        {"ttl_s": 3_601},
        {"ttl_s": None},
        {"pad": None},
    ],
)
def test_every_field_of_an_envelope_counts(change: dict[str, Any]) -> None:
    assert of(ENVELOPE._replace(**change)) != of(ENVELOPE)


def test_echo_order_and_number_of_envelopes_and_the_key_count() -> None:
    other = ENVELOPE._replace(to=OTHER)
    fingerprints = [
        of(ENVELOPE),
        of(ENVELOPE, echo=False),
        of(ENVELOPE, other),
        of(other, ENVELOPE),
        of(ENVELOPE, key=OTHER_KEY),
    ]
    assert len(set(fingerprints)) == len(fingerprints)
    assert {len(value) for value in fingerprints} == {fingerprint.HASH_BYTES}


def test_the_canonical_form_holds_no_ciphertext() -> None:
    body = b"ciphertext" * 20
    canonical = fingerprint.canonical_submit([ENVELOPE._replace(body=body, pad=None)], True)
    assert b"ciphertext" not in canonical
    assert unpack(canonical) == (
        1,
        ((ID, OTHER, 1, fingerprint.body_hash(body), 3_600, None),),
        True,
    )


@pytest.mark.parametrize("body_format", list(BodyFormat))
def test_adr009_3_1_both_doors_give_the_same_fingerprint_and_unknown_keys_none(body_format: BodyFormat) -> None:
    frame = decode_client_frame(
        pack(
            (
                2,
                {
                    "cmid": ID,
                    "envelopes": [{"to": ID, "mid": OTHER, "pv": 1, "body": b"sealed", "later": 1}],
                    "later": True,
                },
            )
        )
    )
    assert isinstance(frame, Send)
    over_http = submit_body(
        parse_body(
            render_body(
                {
                    "client_message_id": ID,
                    "envelopes": [{"to": ID, "message_id": OTHER, "protocol_version": 1, "body": b"sealed"}],
                },
                body_format,
            ),
            body_format,
        ),
        None,
    )
    assert of(*frame.envelopes, echo=frame.echo) == of(*over_http.envelopes, echo=over_http.echo)


def test_hashes_of_one_text_differ_by_kind_operation_and_key() -> None:
    makers: list[Callable[[bytes], bytes]] = [
        lambda key: fingerprint.actor_scope_hash(key, ID),
        lambda key: fingerprint.idempotency_key_hash(key, "send", ID),
        lambda key: fingerprint.idempotency_key_hash(key, "send.key", ID),
        lambda key: fingerprint.request_fingerprint(key, "send", [ID]),
        lambda key: fingerprint.request_fingerprint(key, "revoke", [ID]),
        lambda key: fingerprint.echo_mid(key, ID, ID),
    ]
    values = [make(key) for make in makers for key in (KEY, OTHER_KEY)]
    assert len(set(values)) == len(values)
    assert {len(value) for value in values} == {16}


def test_an_echo_mid_is_of_one_device_and_one_cmid() -> None:
    assert len({fingerprint.echo_mid(KEY, a, b) for a in (ID, OTHER) for b in (ID, OTHER)}) == 4


def test_a_canonical_value_with_a_map_is_refused_since_its_order_is_not_the_requests() -> None:
    with pytest.raises(TypeError):
        fingerprint.request_fingerprint(KEY, "prekeys", [1, ({"b": 1},)])
