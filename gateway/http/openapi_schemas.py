"""The shapes of the HTTP contract as JSON Schema, made from the limits that the code itself uses. Pure."""

from __future__ import annotations

from typing import Any, Final

from protocol import limits
from protocol.errors import ErrorCode, Outcome
from protocol.http_shapes import INVITE_CHARS_MAX, PUSH_TEXT_CHARS_MAX
from protocol.signed_messages import CHALLENGE_CONTEXTS
from store.policy_rules import BOUNDS

Schema = dict[str, Any]

_CHAR: Final = "[A-Za-z0-9_-]"
_LAST_OF_TWO: Final = "[AQgw]"  # one byte more than a multiple of three: no stray bits
_LAST_OF_THREE: Final = "[AEIMQUYcgkosw048]"


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def binary(low: int, high: int | None = None) -> Schema:
    """Bytes as unpadded canonical base64url; exactly `low` of them without `high`."""
    high = low if high is None else high
    if low == high:
        whole, rest = divmod(low, 3)
        tail = ("", f"{_CHAR}{_LAST_OF_TWO}", f"{_CHAR}{{2}}{_LAST_OF_THREE}")[rest]
        pattern = f"^{_CHAR}{{{whole * 4}}}{tail}$"
    else:
        pattern = f"^({_CHAR}{{4}})*({_CHAR}{_LAST_OF_TWO}|{_CHAR}{{2}}{_LAST_OF_THREE})?$"
    schema: Schema = {"type": "string", "contentEncoding": "base64url", "pattern": pattern}
    return schema | {"minLength": _chars(low), "maxLength": _chars(high)}


def _chars(size: int) -> int:
    return -(-size * 4 // 3)


def integer(low: int, high: int, **more: Any) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high, **more}


def text(low: int, high: int, **more: Any) -> Schema:
    return {"type": "string", "minLength": low, "maxLength": high, "pattern": r"^[^\x00]*$", **more}


def _visible(chars_max: int) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": chars_max, "pattern": r"^[!-~]+$"}


def array(items: Schema, low: int, high: int) -> Schema:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


def record(required: Schema, optional: Schema | None = None, **more: Any) -> Schema:
    """A map. Unknown keys are ignored by both sides, so that minor versions can add."""
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required), **more}


_INSTANT: Final = {"type": "integer", "minimum": 0, "description": "milliseconds since 1970-01-01 UTC, database time"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_INT64: Final = integer(-(2**63), 2**63 - 1)
_CURSOR: Final = text(1, limits.CURSOR_CHARS_MAX, description="opaque; sealed anew in every answer")
_PAD: Final = integer(0, limits.PAD_MAX, description="the body is exactly 256 * 2^pad bytes")
_BODY_BYTES_MAX: Final = BOUNDS["envelope_bytes_max"].high
_URL: Final = {
    "type": "string",
    "pattern": r"^https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,4})?(/[!-~]*)?$",
    "maxLength": PUSH_TEXT_CHARS_MAX,
    "description": "absolute, without a user name; addresses are judged when pushing",
}
_ID: Final = {
    **binary(limits.PUBLIC_KEY_BYTES // 2),
    "not": {"const": "A" * 22},
    "description": "16 bytes, not all zero",
}
_PREKEY: Final = {
    "key_id": integer(0, limits.PREKEY_ID_MAX),
    "public_key": binary(limits.PREKEY_BYTES_MIN, limits.PREKEY_BYTES_MAX),
}


def schemas() -> Schema:
    """All named schemas."""
    public_key = binary(limits.PUBLIC_KEY_BYTES)
    challenge = binary(limits.CHALLENGE_BYTES)
    signature = binary(limits.SIGNATURE_BYTES)
    bundle = binary(1, limits.IDENTITY_BUNDLE_BYTES_MAX)
    one_time = record(_PREKEY)
    last_resort = record({**_PREKEY, "signature": signature})
    return {
        "Id": _ID,
        "Problem": record(
            {
                "title": {"type": "string"},
                "status": integer(400, 599),
                "detail": {"type": "string"},
                "code": {"type": "string", "enum": [str(code) for code in ErrorCode]},
                "retryable": {"type": "boolean"},
                "request_id": {"type": "string"},
            },
            {
                "outcome": {"type": "string", "enum": [str(outcome) for outcome in Outcome]},
                "at": {"type": "array", "items": _COUNT, "description": "indices into envelopes"},
                "retry_after_ms": _COUNT,
            },
            description="RFC 9457",
        ),
        "Instance": record(
            {
                "instance_id": ref("Id"),
                "signing_keys": {
                    "type": "array",
                    "items": record({"kid": {"type": "string"}, "public_key": public_key}),
                },
                "policy_version": _COUNT,
                "registration": {"type": "string", "enum": ["open", "invite", "closed"]},
                "protocol_versions": {"type": "array", "items": integer(1, 65_535)},
                "limits": record(dict.fromkeys(limits.WireLimits._fields, _COUNT)),
                "vapid_public_key": {
                    **binary(65),
                    "description": "what a web push subscription is bound to (RFC 8292)",
                },
            }
        ),
        "Registration": record(
            {"identity_public_bundle": bundle, "device_public_key": public_key, "signature": signature},
            {"invite": text(1, INVITE_CHARS_MAX)},
        ),
        "Registered": record(
            {"identity_id": ref("Id"), "public_address": {"type": "string"}, "device_id": ref("Id")},
        ),
        "ChallengeRequest": record(
            {"device_id": ref("Id"), "purpose": {"type": "string", "enum": list(CHALLENGE_CONTEXTS)}}
        ),
        "Challenge": record(
            {
                "challenge": challenge,
                "context": {"type": "string", "enum": list(CHALLENGE_CONTEXTS.values())},
                "expires_at": _INSTANT,
            }
        ),
        "TokenRequest": record({"device_id": ref("Id"), "challenge": challenge, "signature": signature}),
        "Token": record(
            {
                "token": {"type": "string"},
                "expires_at": _INSTANT,
                "expires_in_s": _COUNT,
                "reauth_before": _INSTANT,
            }
        ),
        "Devices": record(
            {
                "devices": {
                    "type": "array",
                    "items": record(
                        {
                            "device_id": ref("Id"),
                            "device_public_key": public_key,
                            "status": {"type": "string", "enum": ["active", "revoked"]},
                            "created_at": _INSTANT,
                        }
                    ),
                }
            }
        ),
        "DeviceAddition": record(
            {"device_public_key": public_key, "proof": signature, "challenge": challenge, "signature": signature},
            {"replaces": ref("Id")},
        ),
        "DeviceAdded": record({"device_id": ref("Id")}),
        "DeviceRevocation": record({"challenge": challenge, "signature": signature}),
        "PrekeyUpload": record(
            {}, {"one_time": array(one_time, 0, limits.PREKEYS_PER_UPLOAD_MAX), "last_resort": last_resort}
        ),
        "Prekeys": record({"one_time_left": integer(0, limits.PREKEYS_STORED_MAX)}),
        "PrekeyClaim": record(
            {
                "identity_public_bundle": bundle,
                "devices": {
                    "type": "array",
                    "items": record(
                        {
                            "device_id": ref("Id"),
                            "device_public_key": public_key,
                            "last_resort": {"anyOf": [last_resort, {"type": "null"}]},
                            "one_time": {"anyOf": [one_time, {"type": "null"}]},
                        }
                    ),
                },
            }
        ),
        "Envelope": record(
            {"to": ref("Id"), "message_id": ref("Id"), "protocol_version": _INT64, "body": binary(0, _BODY_BYTES_MAX)},
            {"ttl_s": _INT64, "pad": _PAD},
        ),
        "Submission": record(
            {
                "client_message_id": ref("Id"),
                "envelopes": array(ref("Envelope"), 1, limits.SEND_ENVELOPES_MAX) | {"uniqueItems": True},
            },
            {"echo": {"type": "boolean", "default": True}},
            description="Each pair of `to` and `message_id` once.",
        ),
        "Submitted": record(
            {
                "duplicate": {"type": "boolean", "description": "true when nothing new was stored"},
                "results": array(
                    record({"message_id": ref("Id"), "accepted_at": _INSTANT, "expires_at": _INSTANT}),
                    1,
                    limits.SEND_ENVELOPES_MAX,
                ),
            }
        ),
        "Mailbox": record(
            {
                "entries": array(
                    record(
                        {
                            "message_id": ref("Id"),
                            "protocol_version": _COUNT,
                            "accepted_at": _INSTANT,
                            "expires_at": _INSTANT,
                        },
                        {
                            "body": binary(0, _BODY_BYTES_MAX),
                            "pad": _PAD,
                            "client_message_id": ref("Id"),
                            "echo": {"const": True, "description": "an echo has no body and protocol_version 0"},
                        },
                    ),
                    0,
                    limits.PULL_LIMIT_MAX,
                ),
                "cursor": _CURSOR,
                "more": {"type": "boolean"},
                "watermark": _CURSOR,
                "caught_up": {"type": "boolean"},
            }
        ),
        "MailboxStatus": record(
            {
                "pending_entries": _COUNT,
                "pending_bytes": _COUNT,
                "oldest_accepted_at": {"anyOf": [_INSTANT, {"type": "null"}]},
            }
        ),
        "Acks": record({"message_ids": array(ref("Id"), 1, limits.ACK_MAX)}),
        "AckResults": record({"results": array({"const": "acked"}, 1, limits.ACK_MAX)}),
        "PushRoutePut": {
            "oneOf": [
                record(
                    {"provider": {"const": "webpush"}, "endpoint": _URL},
                    {"p256dh": binary(65), "auth": binary(16)},
                    dependentRequired={"p256dh": ["auth"], "auth": ["p256dh"]},
                ),
                record(
                    {
                        "provider": {"const": "apns"},
                        "token": _visible(PUSH_TEXT_CHARS_MAX),
                        "topic": _visible(255),
                        "mode": {"type": "string", "enum": ["background", "alert"]},
                    }
                ),
                record({"provider": {"const": "fcm"}, "token": _visible(PUSH_TEXT_CHARS_MAX)}),
                record({"provider": {"const": "gateway"}, "url": _URL}),
            ]
        },
        "PushRoute": record(
            {
                "provider": {"type": "string", "enum": ["webpush", "apns", "fcm", "gateway"]},
                "status": {"type": "string", "enum": ["active", "gone", "misconfigured"]},
                "wake_route_id": ref("Id"),
                "created_at": _INSTANT,
            }
        ),
        "Health": record({"status": {"type": "string"}}),
        "Nothing": record({}),
    }
