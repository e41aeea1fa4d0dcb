"""The bodies of the frames as JSON Schema (draft 07, as AsyncAPI has it), made from the limits the codec uses. Pure.

A MessagePack `bin` stands as a string of one character a byte, marked `x-msgpack: bin`: minLength and maxLength count
bytes. An integer is a MessagePack int, never a float.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.http.openapi_schemas import Schema, array, integer, record, ref
from protocol import limits
from protocol.errors import ERRORS, ErrorCode, Outcome
from protocol.frames import FrameType
from protocol.ids import ID_BYTES
from protocol.packing import INT64_MAX, INT64_MIN, UINT64_MAX
from protocol.server_frames import ACKED

# What PUSH_EVENTS may tell, each kind with its own fields.
EVENTS: Final[dict[str, Schema]] = {
    "prekeys_low": {"left": {"type": "integer", "minimum": 0}},
    "push_route_gone": {},
    "mailbox_filling": {},
    "reauth_soon": {"before": ref("Instant")},
    "reauthenticated": {"reauth_before": ref("Instant")},
}

_TEXT: Final = {"type": "string"}
_BOOL: Final = {"type": "boolean"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_INT: Final = integer(INT64_MIN, UINT64_MAX)
_PAD: Final = integer(0, limits.PAD_MAX, description="the body is exactly 256 * 2^pad bytes")
_PAD_FITS_BODY: Final = [
    {"not": {"required": ["pad"]}},
    *(
        {"properties": {"pad": {"const": pad}, "body": {"minLength": size, "maxLength": size}}}
        for pad, size in ((pad, limits.padded_size(pad)) for pad in range(limits.PAD_MAX + 1))
    ),
]


def _bin(low: int = 0, high: int | None = None) -> Schema:
    schema: Schema = {"type": "string", "contentEncoding": "binary", "x-msgpack": "bin", "minLength": low}
    return schema if high is None else schema | {"maxLength": high}


def _window(default: int, cap: int) -> Schema:
    return integer(1, UINT64_MAX, default=default, description=f"capped at {cap}")


def _any_value(description: str) -> Schema:
    return {"description": description, "x-packed-bytes-max": limits.PING_PACKED_BYTES_MAX}


def bodies() -> dict[FrameType, Schema]:
    """The body map of every frame type."""
    mids = array(ref("Id"), 1, limits.ACK_MAX)
    return {
        FrameType.HELLO: record(
            {"token": _TEXT},
            {
                "cursor": ref("Cursor"),
                "window_entries": _window(limits.WINDOW_ENTRIES_DEFAULT, limits.WINDOW_ENTRIES_MAX),
                "window_bytes": _window(limits.WINDOW_BYTES_DEFAULT, limits.WINDOW_BYTES_MAX),
                "instance": _bin(ID_BYTES, ID_BYTES) | {"description": "random, new in each client process"},
                "attempt": integer(INT64_MIN, INT64_MAX, description="rises with each connection of the process"),
                "client": _TEXT | {"maxLength": limits.CLIENT_NAME_CHARS_MAX},
            },
        ),
        FrameType.SEND: record(
            {
                "cmid": ref("Id"),
                "envelopes": array(ref("Envelope"), 1, limits.SEND_ENVELOPES_MAX)
                | {"uniqueItems": True, "description": "each pair of `to` and `mid` once"},
            },
            {"echo": _BOOL | {"default": True}},
        ),
        FrameType.ACK: record({"ref": _INT, "mids": mids}),
        FrameType.PULL_MAILBOX: record(
            {"ref": _INT},
            {
                "cursor": ref("Cursor"),
                "limit": integer(1, limits.PULL_LIMIT_MAX, default=limits.PULL_LIMIT_DEFAULT),
            },
        ),
        FrameType.DEFER: record({"mids": mids}),
        FrameType.REAUTH: record({"token": _TEXT}),
        FrameType.PING: record({"t": _any_value("any value; PONG brings it back")}),
        FrameType.WELCOME: record(
            {
                "session": _TEXT,
                "now": ref("Instant"),
                "heartbeat_s": integer(1, INT64_MAX, description="send a frame, ping or pong at least this often"),
                "reauth_before": ref("Instant"),
                "limits": ref("Limits"),
                "watermark": ref("Cursor"),
                "pending": _BOOL | {"description": "something un-acked lies after the starting point"},
            }
        ),
        FrameType.SEND_ACK: record(
            {
                "cmid": ref("Id"),
                "duplicate": _BOOL | {"description": "true when nothing new was stored"},
                "results": array(ref("SendResult"), 1, limits.SEND_ENVELOPES_MAX)
                | {"description": "in the order sent"},
            }
        ),
        FrameType.MAILBOX_BATCH: record(
            {
                "ref": {"anyOf": [_INT, {"type": "null"}], "description": "PULL_MAILBOX's; nil when pushed"},
                "entries": array({"oneOf": [ref("Entry"), ref("EchoEntry")]}, 0, limits.BATCH_ENTRIES_MAX),
                "cursor": ref("Cursor"),
                "more": _BOOL,
                "caught_up": _BOOL,
            }
        ),
        FrameType.ACK_RESULT: record(
            {
                "ref": _INT,
                "results": array({"const": ACKED}, 1, limits.ACK_MAX) | {"description": "in the order asked"},
            }
        ),
        FrameType.PUSH_EVENTS: record({"events": {"type": "array", "items": ref("Event"), "minItems": 1}}),
        FrameType.PONG: record({"t": _any_value("what PING brought")}),
        FrameType.GOAWAY: record({"reconnect_after_ms": _COUNT, "reason": _TEXT}),
        FrameType.ERROR: record(
            {"code": ref("ErrorCode"), "message": _TEXT, "retryable": _BOOL, "request_id": _TEXT},
            {
                "ref": _INT,
                "cmid": ref("Id"),
                "retry_after_ms": _COUNT,
                "at": array(integer(0, limits.SEND_ENVELOPES_MAX - 1), 0, limits.SEND_ENVELOPES_MAX)
                | {"description": "indices into envelopes"},
                "outcome": _TEXT | {"enum": [str(outcome) for outcome in Outcome], "description": "on writes"},
            },
        ),
    }


def parts() -> Schema:
    """The schemas that several frames share."""
    stored: dict[str, Any] = {"accepted_at": ref("Instant"), "expires_at": ref("Instant")}
    return {
        "Id": _bin(ID_BYTES, ID_BYTES) | {"not": {"const": "\0" * ID_BYTES}, "description": "not all zero"},
        "Cursor": _TEXT | {"minLength": 1, "maxLength": limits.CURSOR_CHARS_MAX, "description": "opaque"},
        "Instant": _COUNT | {"description": "milliseconds since 1970-01-01 UTC, database time"},
        "Envelope": record(
            {"to": ref("Id"), "mid": ref("Id"), "pv": _INT, "body": _bin()}, {"ttl_s": _INT, "pad": _PAD}
        )
        | {"anyOf": _PAD_FITS_BODY},
        "SendResult": record({"mid": ref("Id"), **stored}),
        "Entry": record(
            {"mid": ref("Id"), "pv": _INT, "body": _bin(), **stored},
            {"pad": _PAD, "cmid": ref("Id")},
            description="`cmid` only in mailboxes of the sender's own identity",
        )
        | {"anyOf": _PAD_FITS_BODY},
        "EchoEntry": record(
            {
                "mid": ref("Id"),
                "pv": {"const": limits.ECHO_PROTOCOL_VERSION},
                "echo": {"const": True},
                "cmid": ref("Id"),
                **stored,
            },
            description="what this device sent, without its body",
        ),
        "Limits": record(dict.fromkeys(limits.WireLimits._fields, _COUNT)),
        "Event": {
            "anyOf": [
                *(record({"kind": {"const": kind}, **fields}) for kind, fields in EVENTS.items()),
                record(
                    {"kind": _TEXT | {"not": {"enum": list(EVENTS)}}}, description="of a later version: pass over it"
                ),
            ]
        },
        "ErrorCode": _TEXT
        | {
            "enum": [str(code) for code in ErrorCode],
            "x-retryable": [str(code) for code, kind in ERRORS.items() if kind.retryable],
        },
    }
