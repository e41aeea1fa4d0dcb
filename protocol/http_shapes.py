"""The requests of the HTTP door as values (WIRE, "HTTP"). Pure: parsed body or query in, NamedTuple out.

Everything here raises MailboxError BAD_REQUEST, with the field's name, and nothing else. Rules that need state or
policy are not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from protocol.frames import SendEnvelope
from protocol.http_values import Fields, bad_request
from protocol.ids import ClientMessageId, DeviceId, MessageId, id_from_text, to_text
from protocol.limits import (
    ACK_MAX,
    CHALLENGE_BYTES,
    CURSOR_CHARS_MAX,
    IDEMPOTENCY_KEY_CHARS_MAX,
    IDENTITY_BUNDLE_BYTES_MAX,
    PAD_MAX,
    PREKEY_BYTES_MAX,
    PREKEY_BYTES_MIN,
    PREKEY_ID_MAX,
    PREKEYS_PER_UPLOAD_MAX,
    PUBLIC_KEY_BYTES,
    PULL_LIMIT_DEFAULT,
    PULL_LIMIT_MAX,
    PULL_WAIT_S_MAX,
    SEND_ENVELOPES_MAX,
    SIGNATURE_BYTES,
    padded_size,
)
from protocol.packing import UINT64_MAX
from protocol.signed_messages import CHALLENGE_CONTEXTS

INVITE_CHARS_MAX: Final = 256
PUSH_TEXT_CHARS_MAX: Final = 4_096


def idempotency_key(header: str | None) -> bytes | None:
    """The `Idempotency-Key` header as ASCII: 1 to 255 visible characters; None when it is absent."""
    if header is None:
        return None
    if not 1 <= len(header) <= IDEMPOTENCY_KEY_CHARS_MAX or not all("\x21" <= char <= "\x7e" for char in header):
        raise bad_request("Idempotency-Key is 1 to 255 visible ASCII characters")
    return header.encode("ascii")


def path_id(text: str, name: str) -> bytes:
    """An id that stands in a path."""
    try:
        return id_from_text(text)
    except ValueError as error:
        raise bad_request(f"{name} is an id of 22 characters of canonical base64url, not all zero") from error


class Registration(NamedTuple):
    identity_public_bundle: bytes
    device_public_key: bytes
    signature: bytes
    invite: str | None


def registration(fields: Fields) -> Registration:
    """POST /v1/identities."""
    return Registration(
        fields.binary("identity_public_bundle", 1, IDENTITY_BUNDLE_BYTES_MAX),
        fields.binary("device_public_key", PUBLIC_KEY_BYTES),
        fields.binary("signature", SIGNATURE_BYTES),
        fields.text("invite", 1, INVITE_CHARS_MAX) if "invite" in fields else None,
    )


class ChallengeRequest(NamedTuple):
    device_id: DeviceId
    purpose: str  # a key of CHALLENGE_CONTEXTS


def challenge_request(fields: Fields) -> ChallengeRequest:
    """POST /v1/auth/challenges."""
    return ChallengeRequest(DeviceId(fields.id("device_id")), fields.choice("purpose", tuple(CHALLENGE_CONTEXTS)))


class TokenRequest(NamedTuple):
    device_id: DeviceId
    challenge: bytes
    signature: bytes


def token_request(fields: Fields) -> TokenRequest:
    """POST /v1/auth/tokens."""
    return TokenRequest(
        DeviceId(fields.id("device_id")),
        fields.binary("challenge", CHALLENGE_BYTES),
        fields.binary("signature", SIGNATURE_BYTES),
    )


class DeviceAddition(NamedTuple):
    device_public_key: bytes
    proof: bytes
    challenge: bytes
    signature: bytes
    replaces: DeviceId | None


def device_addition(fields: Fields) -> DeviceAddition:
    """POST /v1/devices."""
    return DeviceAddition(
        fields.binary("device_public_key", PUBLIC_KEY_BYTES),
        fields.binary("proof", SIGNATURE_BYTES),
        fields.binary("challenge", CHALLENGE_BYTES),
        fields.binary("signature", SIGNATURE_BYTES),
        DeviceId(fields.id("replaces")) if "replaces" in fields else None,
    )


class DeviceRevocation(NamedTuple):
    challenge: bytes
    signature: bytes


def device_revocation(fields: Fields) -> DeviceRevocation:
    """POST /v1/devices/{device_id}/revocation."""
    return DeviceRevocation(fields.binary("challenge", CHALLENGE_BYTES), fields.binary("signature", SIGNATURE_BYTES))


class OneTimePrekey(NamedTuple):
    key_id: int
    public_key: bytes


class LastResortPrekey(NamedTuple):
    key_id: int
    public_key: bytes
    signature: bytes


class PrekeyUpload(NamedTuple):
    one_time: tuple[OneTimePrekey, ...]
    last_resort: LastResortPrekey | None


def prekey_upload(fields: Fields) -> PrekeyUpload:
    """PUT /v1/prekeys. A key_id named twice with two keys is malformed; twice with one key is one."""
    one_time: dict[int, OneTimePrekey] = {}
    for prekey in fields.maps("one_time", 0, PREKEYS_PER_UPLOAD_MAX) if "one_time" in fields else []:
        named = OneTimePrekey(_key_id(prekey), _public_key(prekey))
        if one_time.setdefault(named.key_id, named) != named:
            raise bad_request("one_time names a key_id twice with different keys")
    last_resort = None
    if "last_resort" in fields:
        prekey = fields.map("last_resort")
        signature = prekey.binary("signature", SIGNATURE_BYTES)
        last_resort = LastResortPrekey(_key_id(prekey), _public_key(prekey), signature)
    return PrekeyUpload(tuple(one_time.values()), last_resort)


def _key_id(prekey: Fields) -> int:
    return prekey.integer("key_id", 0, PREKEY_ID_MAX)


def _public_key(prekey: Fields) -> bytes:
    return prekey.binary("public_key", PREKEY_BYTES_MIN, PREKEY_BYTES_MAX)


class SubmitBody(NamedTuple):
    """Exactly one of `cmid` and `key` is there; `echo` after its default."""

    cmid: ClientMessageId | None
    key: bytes | None
    envelopes: tuple[SendEnvelope, ...]
    echo: bool


def submit_body(fields: Fields, key: bytes | None) -> SubmitBody:
    """POST /v1/envelopes; `key` is what `idempotency_key` gave."""
    cmid = ClientMessageId(fields.id("client_message_id")) if "client_message_id" in fields else None
    if (cmid is None) == (key is None):
        raise bad_request("exactly one of client_message_id and Idempotency-Key is needed")
    if "echo" in fields and cmid is None:
        raise bad_request("echo needs a client_message_id")
    echo = fields.boolean("echo") if "echo" in fields else cmid is not None
    envelopes = tuple(_envelope(envelope) for envelope in fields.maps("envelopes", 1, SEND_ENVELOPES_MAX))
    if len({envelope[:2] for envelope in envelopes}) != len(envelopes):
        raise bad_request("envelopes names one recipient and message_id twice")
    return SubmitBody(cmid, key, envelopes, echo)


def _envelope(fields: Fields) -> SendEnvelope:
    to, mid = DeviceId(fields.id("to")), MessageId(fields.id("message_id"))
    pv = fields.integer("protocol_version")
    body = fields.binary("body", 0, UINT64_MAX)
    ttl_s = fields.integer("ttl_s") if "ttl_s" in fields else None
    pad = fields.integer("pad", 0, PAD_MAX) if "pad" in fields else None
    if pad is not None and len(body) != padded_size(pad):
        raise bad_request("pad does not give the size of body: 256 times 2 to the power of pad")
    return SendEnvelope(to, mid, pv, body, ttl_s, pad)


def ack_ids(fields: Fields) -> tuple[MessageId, ...]:
    """POST /v1/mailbox/acks."""
    return tuple(MessageId(mid) for mid in fields.ids("message_ids", 1, ACK_MAX))


class MailboxQuery(NamedTuple):
    cursor: str | None
    limit: int
    wait_s: int
    until: str | None


def mailbox_query(query: Mapping[str, str]) -> MailboxQuery:
    """GET /v1/mailbox: its query parameters. Unknown ones are ignored."""
    return MailboxQuery(
        _query_cursor(query, "cursor"),
        _query_integer(query, "limit", 1, PULL_LIMIT_MAX, PULL_LIMIT_DEFAULT),
        _query_integer(query, "wait_s", 0, PULL_WAIT_S_MAX, 0),
        _query_cursor(query, "until"),
    )


def _query_cursor(query: Mapping[str, str], name: str) -> str | None:
    text = query.get(name)
    if text is not None and not 1 <= len(text) <= CURSOR_CHARS_MAX:
        raise bad_request(f"{name} has 1 to {CURSOR_CHARS_MAX} characters")
    return text


def _query_integer(query: Mapping[str, str], name: str, low: int, high: int, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and low <= int(text) <= high):
        raise bad_request(f"{name} is an integer from {low} to {high}")
    return int(text)


class PushRoute(NamedTuple):
    """`settings`: the provider's own fields as texts, binary ones in their base64url form. All of it is secret."""

    provider: str
    settings: dict[str, str]


def push_route(fields: Fields) -> PushRoute:
    """PUT /v1/push-route: syntax only; addresses are judged when pushing."""
    provider = fields.choice("provider", ("webpush", "apns", "fcm", "gateway"))
    settings: dict[str, str] = {}
    match provider:
        case "webpush":
            settings["endpoint"] = _url(fields, "endpoint")
            if ("p256dh" in fields) != ("auth" in fields):
                raise bad_request("p256dh and auth come together")
            if "p256dh" in fields:
                settings["p256dh"] = _encoded(fields, "p256dh", 65)  # uncompressed P-256 point, RFC 8291
                settings["auth"] = _encoded(fields, "auth", 16)
        case "apns":
            settings["token"] = _visible(fields, "token", PUSH_TEXT_CHARS_MAX)
            settings["topic"] = _visible(fields, "topic", 255)
            settings["mode"] = fields.choice("mode", ("background", "alert"))
        case "fcm":
            settings["token"] = _visible(fields, "token", PUSH_TEXT_CHARS_MAX)
        case _:
            settings["url"] = _url(fields, "url")
    return PushRoute(provider, settings)


def _visible(fields: Fields, name: str, chars_max: int) -> str:
    """What providers hand out. Some of it goes into a header of a connection that other devices' pushes share."""
    value = fields.text(name, 1, chars_max)
    if not _is_visible(value):
        raise bad_request(f"{name} is a text of visible ASCII characters")
    return value


def _is_visible(text: str) -> bool:
    return all("\x21" <= char <= "\x7e" for char in text)


def _url(fields: Fields, name: str) -> str:
    url = fields.text(name, 1, PUSH_TEXT_CHARS_MAX)
    if not _is_visible(url) or not _names_a_server(url):
        raise bad_request(f"{name} is an absolute http or https URL, without a user name")
    return url


def _names_a_server(url: str) -> bool:
    """Whether a push can be tried at all: who pushes reads the host and the port in the same way."""
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port  # reading the port judges it
    except ValueError:
        return False
    return parts.scheme in ("https", "http") and bool(host) and "@" not in parts.netloc


def _encoded(fields: Fields, name: str, size: int) -> str:
    """Binary in WIRE's two forms, kept in its text form."""
    return to_text(fields.binary(name, size))
