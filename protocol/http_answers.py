"""The answers of the HTTP door as maps (WIRE, "HTTP"), for `http_values.render_body` to write in either form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from protocol.errors import MailboxError
from protocol.frames import Entry, SendResult
from protocol.ids import DeviceId, IdentityId, InstanceId, WakeRouteId, to_text
from protocol.limits import WireLimits

PROBLEM_MEDIA_TYPE: Final = "application/problem+json"

Map = dict[str, Any]


def problem(error: MailboxError, request_id: str) -> Map:
    """An RFC 9457 problem document; `type` is left at its default, about:blank, since `code` is the stable name."""
    document: Map = {
        "title": HTTPStatus(error.http_status).phrase,
        "status": error.http_status,
        "detail": error.message,
        "code": str(error.code),
        "retryable": error.retryable,
        "request_id": request_id,
    }
    if error.outcome is not None:
        document["outcome"] = str(error.outcome)
    if error.at is not None:
        document["at"] = error.at
    if error.retry_after_ms is not None:
        document["retry_after_ms"] = error.retry_after_ms
    return document


def retry_after_header(error: MailboxError) -> str | None:
    """`Retry-After` in whole seconds, rounded up; None where the error names no time."""
    if error.retry_after_ms is None:
        return None
    return str(max(1, -(-error.retry_after_ms // 1000)))


class SigningKey(NamedTuple):
    kid: str
    public_key: bytes


def instance(
    instance_id: InstanceId,
    signing_keys: Sequence[SigningKey],
    policy_version: int,
    registration: str,
    protocol_versions: Sequence[int],
    limits: WireLimits,
    vapid_public_key: bytes,
) -> Map:
    """GET /v1/instance. `vapid_public_key`: 65 bytes, what an app binds its web push subscription to (RFC 8292)."""
    return {
        "instance_id": instance_id,
        "signing_keys": [key._asdict() for key in signing_keys],
        "policy_version": policy_version,
        "registration": registration,
        "protocol_versions": list(protocol_versions),
        "limits": limits._asdict(),
        "vapid_public_key": vapid_public_key,
    }


def registered(identity_id: IdentityId, device_id: DeviceId) -> Map:
    """POST /v1/identities. `public_address` is the text form of the identity id, in MessagePack too."""
    return {"identity_id": identity_id, "public_address": to_text(identity_id), "device_id": device_id}


def challenge(challenge_bytes: bytes, context: str, expires_at: int) -> Map:
    """POST /v1/auth/challenges."""
    return {"challenge": challenge_bytes, "context": context, "expires_at": expires_at}


def token(token_text: str, expires_at: int, expires_in_s: int, reauth_before: int) -> Map:
    """POST /v1/auth/tokens."""
    return {
        "token": token_text,
        "expires_at": expires_at,
        "expires_in_s": expires_in_s,
        "reauth_before": reauth_before,
    }


class DeviceView(NamedTuple):
    device_id: DeviceId
    device_public_key: bytes
    status: str
    created_at: int


def devices(views: Sequence[DeviceView]) -> Map:
    """GET /v1/devices."""
    return {"devices": [view._asdict() for view in views]}


def device_added(device_id: DeviceId) -> Map:
    """POST /v1/devices."""
    return {"device_id": device_id}


def prekeys(one_time_left: int) -> Map:
    """PUT and GET /v1/prekeys."""
    return {"one_time_left": one_time_left}


class ClaimedDevice(NamedTuple):
    device_id: DeviceId
    device_public_key: bytes
    last_resort: Mapping[str, Any] | None  # {key_id, public_key, signature}
    one_time: Mapping[str, Any] | None  # {key_id, public_key}


def prekey_claim(identity_public_bundle: bytes, claimed: Sequence[ClaimedDevice]) -> Map:
    """POST /v1/identities/{identity_id}/prekey-claims."""
    return {
        "identity_public_bundle": identity_public_bundle,
        "devices": [device._asdict() for device in claimed],
    }


def submitted(duplicate: bool, results: Sequence[SendResult]) -> Map:
    """POST /v1/envelopes."""
    return {
        "duplicate": duplicate,
        "results": [
            {"message_id": mid, "accepted_at": accepted_at, "expires_at": expires_at}
            for mid, accepted_at, expires_at in results
        ],
    }


def mailbox(entries: Sequence[Entry], cursor: str, more: bool, watermark: str, caught_up: bool) -> Map:
    """GET /v1/mailbox."""
    return {
        "entries": [_entry(entry) for entry in entries],
        "cursor": cursor,
        "more": more,
        "watermark": watermark,
        "caught_up": caught_up,
    }


def _entry(entry: Entry) -> Map:
    given: Map = {
        "message_id": entry.mid,
        "protocol_version": entry.pv,
        "accepted_at": entry.accepted_at,
        "expires_at": entry.expires_at,
    }
    if entry.echo:
        given["echo"] = True
    else:
        given["body"] = entry.body
    if entry.pad is not None:
        given["pad"] = entry.pad
    if entry.cmid is not None:
        given["client_message_id"] = entry.cmid
    return given


def mailbox_status(pending_entries: int, pending_bytes: int, oldest_accepted_at: int | None) -> Map:
    """GET /v1/mailbox/status."""
    return {
        "pending_entries": pending_entries,
        "pending_bytes": pending_bytes,
        "oldest_accepted_at": oldest_accepted_at,
    }


def acked(count: int) -> Map:
    """POST /v1/mailbox/acks: the same for every well-formed id."""
    return {"results": ["acked"] * count}


def push_route(provider: str, status: str, wake_route_id: WakeRouteId, created_at: int) -> Map:
    """PUT and GET /v1/push-route: never the token, the endpoint or the address."""
    return {"provider": provider, "status": status, "wake_route_id": wake_route_id, "created_at": created_at}
