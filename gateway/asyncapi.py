"""The AsyncAPI 3.0 document of the WebSocket, kept in docs/asyncapi.json.

It is made from the same frame types, limits and error table as the codec itself; tests hold it against the codec.
"""

from __future__ import annotations

from typing import Final

from gateway.asyncapi_schemas import bodies, parts
from gateway.http.openapi_schemas import Schema, record
from gateway.upgrade import SUBPROTOCOL
from protocol import limits
from protocol.errors import CloseCode
from protocol.frames import FrameType

F = FrameType

SUMMARIES: Final[dict[FrameType, str]] = {
    F.HELLO: "The first frame: who connects, and from where to go on",
    F.SEND: "Send: all envelopes or none",
    F.ACK: "The device holds these durably; the server deletes them",
    F.PULL_MAILBOX: "A page of un-acked entries, outside the window",
    F.DEFER: "Got these, cannot finish them now: frees the window, deletes nothing",
    F.REAUTH: "A fresh token of the same device",
    F.PING: "A sign of life that is answered",
    F.WELCOME: "The session has begun",
    F.SEND_ACK: "The SEND is on disk",
    F.MAILBOX_BATCH: "Entries, pushed or pulled",
    F.ACK_RESULT: "Acked, for every well-formed id",
    F.PUSH_EVENTS: "News of the device or the session",
    F.PONG: "The answer to PING",
    F.GOAWAY: "Finish what is in flight, then come back",
    F.ERROR: "A request that was refused, or a malformed frame before the close",
}

# A client's frame and the frame that answers it when all goes well. DEFER has none.
ANSWERS: Final[dict[FrameType, FrameType]] = {
    F.HELLO: F.WELCOME,
    F.SEND: F.SEND_ACK,
    F.ACK: F.ACK_RESULT,
    F.PULL_MAILBOX: F.MAILBOX_BATCH,
    F.REAUTH: F.PUSH_EVENTS,
    F.PING: F.PONG,
}

LOST: Final = 1006  # never sent: what a client's library says when the connection broke
CLOSE_CODES: Final[dict[int, tuple[str, str]]] = {
    CloseCode.NORMAL: ("normal", "reconnect, after GOAWAY's reconnect_after_ms"),
    CloseCode.GOING_AWAY: ("going away", "reconnect, after GOAWAY's reconnect_after_ms"),
    LOST: ("lost", "reconnect with full jitter"),
    CloseCode.TOO_BIG: ("too big", "a bug in the client: do not loop"),
    CloseCode.SERVER_FAULT: ("server fault", "reconnect with full jitter"),
    CloseCode.RESTART: ("restart", "reconnect, after GOAWAY's reconnect_after_ms"),
    CloseCode.MALFORMED: ("malformed", "a bug in the client: do not loop"),
    CloseCode.UNAUTHENTICATED: ("not authenticated, or the token ended", "get a new token, reconnect"),
    CloseCode.REVOKED: ("the device was revoked", "log out; never reconnect"),
    CloseCode.TIMEOUT: ("no HELLO in time, heartbeat missed, late attempt", "reconnect with backoff"),
    CloseCode.REPLACED: ("replaced by another process of the same device", "stop until the user acts"),
    CloseCode.TOO_SLOW: (f"took no bytes for {limits.SLOW_CONSUMER_S:.0f} s", "reconnect with backoff"),
    CloseCode.RATE_LIMITED: ("rate limited", "reconnect after reconnect_after_ms in the close reason"),
    CloseCode.UNAVAILABLE: ("unavailable or draining", "reconnect after reconnect_after_ms in the close reason"),
}
_COME_BACK_CODES: Final = (CloseCode.RATE_LIMITED, CloseCode.UNAVAILABLE)

_CHANNEL: Final = "session"
_MSGPACK: Final = "application/msgpack"


def from_client(frame_type: FrameType) -> bool:
    """Whether clients send this type; the server sends the others."""
    return frame_type < F.WELCOME


def document() -> Schema:
    """The whole document."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "mailboxd",
            "version": "1",
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
            "description": (
                "Durable mailboxes for end-to-end-encrypted apps: the WebSocket. One binary message is one frame, a "
                "MessagePack array of a type number and a map with string keys. A `bin` stands here as a string of one "
                "character a byte, marked `x-msgpack: bin`, so its lengths count bytes; an integer is an int, never a "
                "float. An optional field is left out, never nil. Unknown keys are ignored. The HTTP door is described "
                "by OpenAPI."
            ),
        },
        "defaultContentType": _MSGPACK,
        "servers": {
            "instance": {
                "host": "{host}",
                "protocol": "wss",
                "description": "the same host and port as HTTP",
                "variables": {"host": {"description": "where the instance is reached", "default": "localhost"}},
            }
        },
        "channels": {_CHANNEL: _channel()},
        "operations": {_operation_id(frame_type): _operation(frame_type) for frame_type in F},
        "components": {
            "messages": {frame_type.name: _message(frame_type, body) for frame_type, body in bodies().items()},
            "schemas": parts(),
        },
    }


def _channel() -> Schema:
    return {
        "address": "/v1/ws",
        "title": "One session of one device",
        "servers": [{"$ref": "#/servers/instance"}],
        "messages": {frame_type.name: {"$ref": f"#/components/messages/{frame_type.name}"} for frame_type in F},
        "bindings": {
            "ws": {
                "method": "GET",
                "headers": record({"Sec-WebSocket-Protocol": {"type": "string", "const": SUBPROTOCOL}}),
            }
        },
        "x-subprotocol": SUBPROTOCOL,
        "x-frame-bytes-max": limits.MAX_FRAME_BYTES,
        "x-frame-bytes-max-before-hello": limits.MAX_FRAME_BYTES_BEFORE_HELLO,
        "x-frame-objects-max": limits.MAX_OBJECTS,
        "x-frame-depth-max": limits.MAX_DEPTH,
        "x-hello-timeout-s": limits.HELLO_TIMEOUT_S,
        "x-close-codes": {str(code): _close(code, *said) for code, said in sorted(CLOSE_CODES.items())},
    }


def _close(code: int, meaning: str, client: str) -> Schema:
    described: Schema = {"meaning": meaning, "client": client}
    if code in _COME_BACK_CODES:
        described["reason"] = record({"reconnect_after_ms": {"type": "integer", "minimum": 0}})
    return described


def _operation_id(frame_type: FrameType) -> str:
    return f"{'receive' if from_client(frame_type) else 'send'}_{frame_type.name.lower()}"


def _on_channel(frame_type: FrameType) -> Schema:
    return {"$ref": f"#/channels/{_CHANNEL}/messages/{frame_type.name}"}


def _operation(frame_type: FrameType) -> Schema:
    channel = {"$ref": f"#/channels/{_CHANNEL}"}
    described: Schema = {
        "action": "receive" if from_client(frame_type) else "send",
        "channel": channel,
        "summary": SUMMARIES[frame_type],
        "messages": [_on_channel(frame_type)],
    }
    if from_client(frame_type):
        answers = [ANSWERS[frame_type]] if frame_type in ANSWERS else []
        described["reply"] = {"channel": channel, "messages": [_on_channel(answer) for answer in [*answers, F.ERROR]]}
    return described


def _message(frame_type: FrameType, body: Schema) -> Schema:
    described: Schema = {
        "name": frame_type.name,
        "summary": SUMMARIES[frame_type],
        "contentType": _MSGPACK,
        "x-type": int(frame_type),
        "payload": {
            "type": "array",
            "items": [{"type": "integer", "const": int(frame_type)}, body],
            "minItems": 2,
            "maxItems": 2,
        },
    }
    for key in ("cmid", "ref"):
        if key in body["required"]:
            described["correlationId"] = {"location": f"$message.payload#/1/{key}"}
    return described
