"""The OpenAPI 3.1 document of the HTTP door, served at /openapi.json and kept in docs/openapi.json.

It is made from the same limits, error table and route table as the door itself; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Final, NamedTuple

from gateway.http.openapi_schemas import Schema, integer, ref, schemas, text
from protocol import limits
from protocol.errors import ERRORS, ErrorCode
from protocol.http_answers import PROBLEM_MEDIA_TYPE
from protocol.http_values import BodyFormat

E = ErrorCode
_ALWAYS: Final = (E.BAD_REQUEST, E.FORBIDDEN, E.RATE_LIMITED, E.UNAVAILABLE, E.INTERNAL)
_WITH_BODY: Final = (E.UNSUPPORTED_MEDIA_TYPE, E.REQUEST_TOO_LARGE)
_WITH_TOKEN: Final = (E.UNAUTHENTICATED, E.TOKEN_EXPIRED, E.DEVICE_REVOKED)
_KEYED: Final = (E.IDEMPOTENCY_KEY_REUSED,)


class Operation(NamedTuple):
    """What the document says of one route beyond its path."""

    summary: str
    answer: str  # a schema's name
    statuses: tuple[int, ...] = (200,)
    body: str | None = None
    body_required: bool = True
    token: bool = True
    description: str | None = None
    errors: tuple[ErrorCode, ...] = ()
    keyed: bool = False  # takes an Idempotency-Key that is recorded
    query: tuple[Schema, ...] = ()
    problem: bool = True  # errors are problem documents; health answers with its own map


_MAILBOX_QUERY: Final = (
    {"name": "cursor", "in": "query", "schema": text(1, limits.CURSOR_CHARS_MAX), "description": "walk on from here"},
    {
        "name": "limit",
        "in": "query",
        "schema": integer(1, limits.PULL_LIMIT_MAX, default=limits.PULL_LIMIT_DEFAULT),
    },
    {
        "name": "wait_s",
        "in": "query",
        "schema": integer(0, limits.PULL_WAIT_S_MAX, default=0),
        "description": "wait so long, but only when there is nothing",
    },
    {
        "name": "until",
        "in": "query",
        "schema": text(1, limits.CURSOR_CHARS_MAX),
        "description": "a watermark: `caught_up` is true once `cursor` stands at or past it",
    },
)

OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/v1/instance"): Operation("The instance, its keys and its limits", "Instance", token=False),
    ("POST", "/v1/identities"): Operation(
        "Register an identity with its first device",
        "Registered",
        (201,),
        "Registration",
        token=False,
        keyed=True,
        errors=(E.UNAUTHENTICATED, E.REGISTRATION_CLOSED, E.INVITE_INVALID, E.DEVICE_REVOKED),
    ),
    ("POST", "/v1/auth/challenges"): Operation(
        "A challenge to sign; unknown devices get one that looks the same",
        "Challenge",
        (201,),
        "ChallengeRequest",
        token=False,
    ),
    ("POST", "/v1/auth/tokens"): Operation(
        "A token for a signed challenge",
        "Token",
        (201,),
        "TokenRequest",
        token=False,
        errors=(E.UNAUTHENTICATED, E.DEVICE_REVOKED),
    ),
    ("GET", "/v1/devices"): Operation("The devices of one's own identity", "Devices"),
    ("POST", "/v1/devices"): Operation(
        "Add a device, perhaps in place of another",
        "DeviceAdded",
        (201,),
        "DeviceAddition",
        keyed=True,
        errors=(E.NOT_FOUND, E.DEVICE_LIMIT),
    ),
    ("POST", "/v1/devices/{device_id}/revocation"): Operation(
        "Revoke a device of one's own identity",
        "Nothing",
        (200,),
        "DeviceRevocation",
        keyed=True,
        errors=(E.NOT_FOUND,),
    ),
    ("PUT", "/v1/prekeys"): Operation(
        "Upload prekeys", "Prekeys", (200,), "PrekeyUpload", keyed=True, errors=(E.PREKEY_LIMIT,)
    ),
    ("GET", "/v1/prekeys"): Operation("How many one-time prekeys are left", "Prekeys"),
    ("POST", "/v1/identities/{identity_id}/prekey-claims"): Operation(
        "Claim a prekey of each device of an identity",
        "PrekeyClaim",
        (201,),
        "Nothing",
        body_required=False,
        keyed=True,
        errors=(E.NOT_FOUND,),
    ),
    ("POST", "/v1/envelopes"): Operation(
        "Send: all envelopes or none",
        "Submitted",
        (201, 200),
        "Submission",
        description=(
            "In place of `client_message_id` a request may carry the header `Idempotency-Key`, 1 to 255 visible ASCII "
            "characters: then without `echo`. With both or neither it is BAD_REQUEST."
        ),
        errors=(
            E.IDEMPOTENCY_KEY_REUSED,
            E.UNKNOWN_RECIPIENT,
            E.UNSUPPORTED_PROTOCOL_VERSION,
            E.TTL_OUT_OF_RANGE,
            E.ENVELOPE_TOO_LARGE,
            E.MESSAGE_ID_CONFLICT,
            E.MAILBOX_FULL,
            E.ECHO_BACKLOG_FULL,
        ),
    ),
    ("GET", "/v1/mailbox"): Operation(
        "A page of un-acked entries; deletes nothing",
        "Mailbox",
        query=_MAILBOX_QUERY,
        errors=(E.CURSOR_INVALID, E.CURSOR_EXPIRED),
    ),
    ("GET", "/v1/mailbox/status"): Operation("What waits, echoes not counted", "MailboxStatus"),
    ("POST", "/v1/mailbox/acks"): Operation("ACK: acked, for every well-formed id", "AckResults", (200,), "Acks"),
    ("PUT", "/v1/push-route"): Operation("Where this device is woken", "PushRoute", (200,), "PushRoutePut", keyed=True),
    ("GET", "/v1/push-route"): Operation("The route, never its address", "PushRoute", errors=(E.NOT_FOUND,)),
    ("DELETE", "/v1/push-route"): Operation("Wake this device no more", "Nothing", keyed=True),
    ("GET", "/healthz"): Operation("Alive", "Health", (200, 503), token=False, problem=False),
    ("GET", "/readyz"): Operation("Able to accept durable writes", "Health", (200, 503), token=False, problem=False),
    ("GET", "/openapi.json"): Operation("This document", "Nothing", token=False),
}


@cache
def document() -> Schema:
    """The whole document. Built once a process; callers must not change it."""
    paths: dict[str, Schema] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mailboxd",
            "version": "1",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": (
                "Durable mailboxes for end-to-end-encrypted apps. Every body is a map; as application/msgpack the same "
                "maps carry bytes as bin instead of base64url text. The WebSocket at /v1/ws is described by AsyncAPI."
            ),
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
            "headers": {
                "RequestId": {
                    "description": "finds this answer in the log",
                    "schema": {"type": "string"},
                    "required": True,
                }
            },
        },
    }


def _operation(method: str, path: str, operation: Operation) -> Schema:
    described: Schema = {
        "operationId": _operation_id(method, path),
        "summary": operation.summary,
        "security": [{"token": []}] if operation.token else [],
        "responses": {
            **{str(status): _response("OK", _content(operation.answer)) for status in operation.statuses},
            **(_problems(_errors(operation)) if operation.problem else {}),
        },
    }
    if operation.description is not None:
        described["description"] = operation.description
    if parameters := _parameters(path, operation):
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {"required": operation.body_required, "content": _content(operation.body)}
    return described


def _operation_id(method: str, path: str) -> str:
    words = [part.strip("{}").replace("-", "_").replace(".", "_") for part in path.split("/") if part not in ("", "v1")]
    return "_".join([method.lower(), *words])


def _parameters(path: str, operation: Operation) -> list[Schema]:
    parameters = [
        {"name": part.strip("{}"), "in": "path", "required": True, "schema": ref("Id")}
        for part in path.split("/")
        if part.startswith("{")
    ]
    if operation.keyed:
        visible = {
            "type": "string",
            "pattern": "^[!-~]+$",
            "minLength": 1,
            "maxLength": limits.IDEMPOTENCY_KEY_CHARS_MAX,
        }
        parameters.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "schema": visible,
                "description": "a repeat with the same key and request gets the first answer",
            }
        )
    return [*parameters, *operation.query]


def _content(name: str) -> Schema:
    return {body_format.value: {"schema": ref(name)} for body_format in BodyFormat}


def _response(description: str, content: Schema) -> Schema:
    return {
        "description": description,
        "headers": {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}},
        "content": content,
    }


def _errors(operation: Operation) -> Iterable[ErrorCode]:
    yield from _ALWAYS
    if operation.token:
        yield from _WITH_TOKEN
    if operation.body is not None:
        yield from _WITH_BODY
    if operation.keyed:
        yield from _KEYED
    yield from operation.errors


def _problems(errors: Iterable[ErrorCode]) -> dict[str, Any]:
    """One response a status, naming the codes that come with it."""
    by_status: dict[int, list[ErrorCode]] = {}
    for code in dict.fromkeys(errors):
        by_status.setdefault(ERRORS[code].http_status, []).append(code)
    content = {PROBLEM_MEDIA_TYPE: {"schema": ref("Problem")}, BodyFormat.MSGPACK.value: {"schema": ref("Problem")}}
    return {
        str(status): _response(", ".join(str(code) for code in codes), content)
        for status, codes in sorted(by_status.items())
    }
