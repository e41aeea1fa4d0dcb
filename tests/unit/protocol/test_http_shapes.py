"""The requests of the HTTP door: what is needed, what is optional, and what goes together (WIRE, "HTTP")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from protocol import http_shapes
from protocol.errors import ErrorCode, MailboxError
from protocol.frames import SendEnvelope
from protocol.http_values import BodyFormat, Fields, parse_body, render_body
from protocol.ids import to_text

ID = b"i" * 16
OTHER = b"o" * 16
KEY = b"k" * 32
SIGNATURE = b"s" * 64
CHALLENGE = b"c" * 32
ENVELOPE = {"to": ID, "message_id": OTHER, "protocol_version": 1, "body": b"sealed"}
FORMATS = list(BodyFormat)


def body(value: dict[str, Any], body_format: BodyFormat = BodyFormat.JSON) -> Fields:
    return parse_body(render_body(value, body_format), body_format)


def refused(call: Callable[..., object], *arguments: Any) -> str:
    with pytest.raises(MailboxError) as caught:
        call(*arguments)
    assert caught.value.code is ErrorCode.BAD_REQUEST
    return caught.value.message


REQUESTS: dict[str, tuple[Callable[[Fields], Any], dict[str, Any], dict[str, Any]]] = {
    "registration": (
        http_shapes.registration,
        {"identity_public_bundle": b"b", "device_public_key": KEY, "signature": SIGNATURE},
        {"invite": "code"},
    ),
    "challenge": (http_shapes.challenge_request, {"device_id": ID, "purpose": "device.add"}, {}),
    "token": (http_shapes.token_request, {"device_id": ID, "challenge": CHALLENGE, "signature": SIGNATURE}, {}),
    "device": (
        http_shapes.device_addition,
        {"device_public_key": KEY, "proof": SIGNATURE, "challenge": CHALLENGE, "signature": SIGNATURE},
        {"replaces": OTHER},
    ),
    "revocation": (http_shapes.device_revocation, {"challenge": CHALLENGE, "signature": SIGNATURE}, {}),
}


@pytest.mark.parametrize("body_format", FORMATS)
@pytest.mark.parametrize("name", list(REQUESTS))
def test_each_needed_field_is_needed_and_each_optional_one_optional(name: str, body_format: BodyFormat) -> None:
    parse, needed, optional = REQUESTS[name]
    given = parse(body({**needed, **optional, "later": [1]}, body_format))
    assert given._asdict() == {**needed, **optional}
    assert parse(body(needed, body_format))._asdict() == {**needed, **dict.fromkeys(optional)}
    for field in needed:
        assert field in refused(parse, body({k: v for k, v in needed.items() if k != field}, body_format))
    for field in optional:
        assert field in refused(parse, body({**needed, field: None}, body_format))


@pytest.mark.parametrize("size", [0, 8_193])
def test_a_bundle_has_1_to_8192_bytes(size: int) -> None:
    request = {**REQUESTS["registration"][1], "identity_public_bundle": bytes(size)}
    assert "identity_public_bundle" in refused(lambda: http_shapes.registration(body(request)))


def test_a_purpose_is_one_of_three() -> None:
    refused(lambda: http_shapes.challenge_request(body({"device_id": ID, "purpose": "register"})))


# Submit


@pytest.mark.parametrize("body_format", FORMATS)
def test_a_submit_with_a_cmid_asks_for_an_echo_unless_it_says_otherwise(body_format: BodyFormat) -> None:
    request = {"client_message_id": ID, "envelopes": [{**ENVELOPE, "ttl_s": 5, "later": 1}]}
    parsed = http_shapes.submit_body(body(request, body_format), None)
    assert parsed == http_shapes.SubmitBody(ID, None, (SendEnvelope(ID, OTHER, 1, b"sealed", 5),), True)  # type: ignore[arg-type]
    assert http_shapes.submit_body(body({**request, "echo": False}, body_format), None).echo is False


def test_a_submit_with_an_idempotency_key_has_no_cmid_and_no_echo() -> None:
    parsed = http_shapes.submit_body(body({"envelopes": [ENVELOPE]}), b"key")
    assert (parsed.cmid, parsed.key, parsed.echo) == (None, b"key", False)
    for echo in (True, False):
        request = body({"envelopes": [ENVELOPE], "echo": echo})
        assert "echo" in refused(http_shapes.submit_body, request, b"key")


def test_exactly_one_of_cmid_and_key_is_needed() -> None:
    refused(lambda: http_shapes.submit_body(body({"envelopes": [ENVELOPE]}), None))
    refused(lambda: http_shapes.submit_body(body({"client_message_id": ID, "envelopes": [ENVELOPE]}), b"key"))


@pytest.mark.parametrize(
    "envelopes",
    [
        [],
        [{**ENVELOPE, "message_id": bytes([n + 1]) * 16} for n in range(65)],
        [ENVELOPE, ENVELOPE],
        [{**ENVELOPE, "pad": 13}],
        [{**ENVELOPE, "pad": 0}],
        [{**ENVELOPE, "ttl_s": None}],
        [{**ENVELOPE, "protocol_version": True}],
        [1],
        {},
    ],
)
def test_malformed_envelopes_are_refused(envelopes: Any) -> None:
    refused(lambda: http_shapes.submit_body(body({"client_message_id": ID, "envelopes": envelopes}), None))


def test_a_padded_body_has_the_size_of_its_class() -> None:
    envelope = {**ENVELOPE, "pad": 1, "body": bytes(512)}
    parsed = http_shapes.submit_body(body({"client_message_id": ID, "envelopes": [envelope]}), None)
    assert parsed.envelopes[0].pad == 1


@pytest.mark.parametrize("key", ["", "k" * 256, "with space", "tab\t", "é", "\x7f"])
def test_an_idempotency_key_is_1_to_255_visible_ascii_characters(key: str) -> None:
    assert http_shapes.idempotency_key(None) is None
    assert http_shapes.idempotency_key("~" * 255) == b"~" * 255
    assert "Idempotency-Key" in refused(lambda: http_shapes.idempotency_key(key))


# Mailbox


def test_a_mailbox_query_has_defaults_and_ignores_unknown_parameters() -> None:
    assert http_shapes.mailbox_query({"x": "1"}) == http_shapes.MailboxQuery(None, 100, 0, None)
    assert http_shapes.mailbox_query({"cursor": "c", "limit": "256", "wait_s": "55", "until": "u"}) == (
        "c",
        256,
        55,
        "u",
    )


@pytest.mark.parametrize(
    "query",
    [
        {"cursor": ""},
        {"cursor": "c" * 513},
        {"until": ""},
        {"limit": "0"},
        {"limit": "257"},
        {"limit": "1.0"},
        {"limit": "+1"},
        {"limit": " 1"},
        {"limit": ""},
        {"limit": "١"},
        {"limit": "0001"},
        {"wait_s": "56"},
        {"wait_s": "-1"},
        {"limit": "9" * 5_000},
    ],
)
def test_a_malformed_query_is_refused(query: dict[str, str]) -> None:
    assert next(iter(query)) in refused(lambda: http_shapes.mailbox_query(query))


@pytest.mark.parametrize("count", [0, 101])
def test_an_ack_has_1_to_100_ids(count: int) -> None:
    assert http_shapes.ack_ids(body({"message_ids": [ID] * 100})) == (ID,) * 100
    refused(lambda: http_shapes.ack_ids(body({"message_ids": [ID] * count})))


def test_an_id_in_a_path_is_canonical() -> None:
    assert http_shapes.path_id(to_text(ID), "device_id") == ID
    for text in ("", to_text(bytes(16)), to_text(ID) + "=", "../" + "x" * 19):
        assert "device_id" in refused(http_shapes.path_id, text, "device_id")


# Prekeys


def test_prekeys_of_both_kinds_are_optional() -> None:
    assert http_shapes.prekey_upload(body({})) == http_shapes.PrekeyUpload((), None)
    upload = http_shapes.prekey_upload(
        body(
            {
                "one_time": [{"key_id": 0, "public_key": KEY}, {"key_id": 2**32 - 1, "public_key": bytes(2_048)}],
                "last_resort": {"key_id": 7, "public_key": KEY, "signature": SIGNATURE},
            }
        )
    )
    assert [prekey.key_id for prekey in upload.one_time] == [0, 2**32 - 1]
    assert upload.last_resort == (7, KEY, SIGNATURE)


def test_a_key_id_named_twice_with_one_key_is_one_and_with_two_keys_malformed() -> None:
    twice = [{"key_id": 1, "public_key": KEY}] * 2
    assert len(http_shapes.prekey_upload(body({"one_time": twice})).one_time) == 1
    refused(lambda: http_shapes.prekey_upload(body({"one_time": [twice[0], {"key_id": 1, "public_key": b"K" * 32}]})))


@pytest.mark.parametrize(
    "prekey", [{"key_id": -1}, {"key_id": 2**32}, {"public_key": bytes(31)}, {"public_key": bytes(2_049)}]
)
def test_prekeys_are_within_their_bounds(prekey: dict[str, Any]) -> None:
    one_time = [{"key_id": 1, "public_key": KEY, **prekey}]
    assert "one_time[0]." in refused(lambda: http_shapes.prekey_upload(body({"one_time": one_time})))


def test_at_most_200_prekeys_come_at_once() -> None:
    many = [{"key_id": n, "public_key": KEY} for n in range(201)]
    assert len(http_shapes.prekey_upload(body({"one_time": many[:200]})).one_time) == 200
    refused(lambda: http_shapes.prekey_upload(body({"one_time": many})))


# Push routes


@pytest.mark.parametrize(
    "route",
    [
        {"provider": "webpush", "endpoint": "https://push.example/a"},
        {"provider": "webpush", "endpoint": "https://push.example/a", "p256dh": b"\x04" * 65, "auth": bytes(16)},
        {"provider": "apns", "token": "t", "topic": "org.example.app", "mode": "background"},
        {"provider": "fcm", "token": "t"},
        {"provider": "gateway", "url": "http://10.0.0.1:8080/push"},
    ],
)
@pytest.mark.parametrize("body_format", FORMATS)
def test_each_provider_takes_its_own_fields(route: dict[str, Any], body_format: BodyFormat) -> None:
    parsed = http_shapes.push_route(body({**route, "later": 1}, body_format))
    settings = {name: to_text(value) if isinstance(value, bytes) else value for name, value in route.items()}
    assert parsed.provider == settings.pop("provider")
    assert parsed.settings == settings


@pytest.mark.parametrize(
    "route",
    [
        {"provider": "carrier-pigeon"},
        {"provider": "webpush"},
        {"provider": "webpush", "endpoint": "ftp://push.example/a"},
        {"provider": "webpush", "endpoint": "https://"},
        {"provider": "webpush", "endpoint": "https://push.example/ a"},
        {"provider": "webpush", "endpoint": "https://push.example/a", "p256dh": b"\x04" * 65},
        {"provider": "webpush", "endpoint": "https://push.example/a", "p256dh": b"\x04" * 64, "auth": bytes(16)},
        {"provider": "apns", "token": "t", "topic": "org.example.app", "mode": "loud"},
        {"provider": "apns", "token": "t", "topic": "org.example.app"},
        {"provider": "fcm", "token": ""},
        {"provider": "gateway", "url": 5},
    ],
)
def test_a_malformed_push_route_is_refused(route: dict[str, Any]) -> None:
    refused(lambda: http_shapes.push_route(body(route)))
