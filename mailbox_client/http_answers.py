"""The answers of the HTTP door as values, read from their MessagePack maps. Anything else is ServerNotUnderstood."""

from __future__ import annotations

from typing import NamedTuple

from mailbox_client.answer_fields import (
    Answer,
    read_bool,
    read_bytes,
    read_id,
    read_int,
    read_list,
    read_map,
    read_maps,
    read_str,
    wrong,
)
from mailbox_client.engine_io import Page
from protocol.frames import Entry, SendResult
from protocol.ids import ClientMessageId, DeviceId, IdentityId, InstanceId, MessageId, WakeRouteId
from protocol.limits import WireLimits


class Instance(NamedTuple):
    """GET /v1/instance."""

    instance_id: InstanceId
    signing_keys: tuple[tuple[str, bytes], ...]
    policy_version: int
    registration: str
    protocol_versions: tuple[int, ...]
    limits: WireLimits


class Registered(NamedTuple):
    identity_id: IdentityId
    device_id: DeviceId
    public_address: str


class Challenge(NamedTuple):
    challenge: bytes
    context: str
    expires_at: int


class Token(NamedTuple):
    token: str
    expires_at: int
    expires_in_s: int
    reauth_before: int

    @property
    def server_now_ms(self) -> int:
        """The server's time when it made the token."""
        return self.expires_at - self.expires_in_s * 1000


class Device(NamedTuple):
    device_id: DeviceId
    device_public_key: bytes
    status: str
    created_at: int


class OneTimeKey(NamedTuple):
    key_id: int
    public_key: bytes


class LastResortKey(NamedTuple):
    key_id: int
    public_key: bytes
    signature: bytes


class ClaimedDevice(NamedTuple):
    """One device of a claimed identity. Without `one_time` only the last-resort key is left to use."""

    device_id: DeviceId
    device_public_key: bytes
    last_resort: LastResortKey | None
    one_time: OneTimeKey | None


class PrekeyClaim(NamedTuple):
    identity_public_bundle: bytes
    devices: tuple[ClaimedDevice, ...]


class SendAnswer(NamedTuple):
    duplicate: bool
    results: tuple[SendResult, ...]


class MailboxStatus(NamedTuple):
    """Un-acked and unexpired entries; echoes are not counted."""

    pending_entries: int
    pending_bytes: int
    oldest_accepted_at: int | None


class PushRoute(NamedTuple):
    provider: str
    status: str
    wake_route_id: WakeRouteId
    created_at: int


def read_instance(answer: Answer) -> Instance:
    limits = read_map(answer, "limits")
    try:
        wire_limits = WireLimits(**{name: read_int(limits, name) for name in WireLimits._fields if name in limits})
    except TypeError:
        wrong("limits")
    return Instance(
        InstanceId(read_id(answer, "instance_id")),
        tuple((read_str(key, "kid"), read_bytes(key, "public_key")) for key in read_maps(answer, "signing_keys")),
        read_int(answer, "policy_version"),
        read_str(answer, "registration"),
        tuple(read_list(answer, "protocol_versions", int)),
        wire_limits,
    )


def read_registered(answer: Answer) -> Registered:
    return Registered(
        IdentityId(read_id(answer, "identity_id")),
        DeviceId(read_id(answer, "device_id")),
        read_str(answer, "public_address"),
    )


def read_challenge(answer: Answer) -> Challenge:
    return Challenge(read_bytes(answer, "challenge"), read_str(answer, "context"), read_int(answer, "expires_at"))


def read_token(answer: Answer) -> Token:
    return Token(
        read_str(answer, "token"),
        read_int(answer, "expires_at"),
        read_int(answer, "expires_in_s"),
        read_int(answer, "reauth_before"),
    )


def read_device(device: Answer) -> Device:
    return Device(
        DeviceId(read_id(device, "device_id")),
        read_bytes(device, "device_public_key"),
        read_str(device, "status"),
        read_int(device, "created_at"),
    )


def read_claim(answer: Answer) -> PrekeyClaim:
    devices = tuple(_read_claimed(device) for device in read_maps(answer, "devices"))
    return PrekeyClaim(read_bytes(answer, "identity_public_bundle"), devices)


def read_send_answer(answer: Answer) -> SendAnswer:
    results = tuple(
        SendResult(
            MessageId(read_id(result, "message_id")),
            read_int(result, "accepted_at"),
            read_int(result, "expires_at"),
        )
        for result in read_maps(answer, "results")
    )
    return SendAnswer(read_bool(answer, "duplicate"), results)


def read_page(answer: Answer) -> Page:
    return Page(
        tuple(_read_entry(entry) for entry in read_maps(answer, "entries")),
        read_str(answer, "cursor"),
        read_bool(answer, "more"),
        read_str(answer, "watermark"),
        read_bool(answer, "caught_up"),
    )


def read_status(answer: Answer) -> MailboxStatus:
    oldest = read_int(answer, "oldest_accepted_at") if answer.get("oldest_accepted_at") is not None else None
    return MailboxStatus(read_int(answer, "pending_entries"), read_int(answer, "pending_bytes"), oldest)


def _read_entry(entry: Answer) -> Entry:
    cmid = entry.get("client_message_id")
    echo = entry.get("echo") is True
    return Entry(
        MessageId(read_id(entry, "message_id")),
        read_int(entry, "protocol_version"),
        None if echo else read_bytes(entry, "body"),
        read_int(entry, "accepted_at"),
        read_int(entry, "expires_at"),
        read_int(entry, "pad") if entry.get("pad") is not None else None,
        ClientMessageId(read_id(entry, "client_message_id")) if cmid is not None else None,
        echo,
    )


def _read_claimed(device: Answer) -> ClaimedDevice:
    last_resort, one_time = device.get("last_resort"), device.get("one_time")
    return ClaimedDevice(
        DeviceId(read_id(device, "device_id")),
        read_bytes(device, "device_public_key"),
        LastResortKey(
            read_int(last_resort, "key_id"), read_bytes(last_resort, "public_key"), read_bytes(last_resort, "signature")
        )
        if type(last_resort) is dict
        else None,
        OneTimeKey(read_int(one_time, "key_id"), read_bytes(one_time, "public_key"))
        if type(one_time) is dict
        else None,
    )


def read_route(answer: Answer) -> PushRoute:
    return PushRoute(
        read_str(answer, "provider"),
        read_str(answer, "status"),
        WakeRouteId(read_id(answer, "wake_route_id")),
        read_int(answer, "created_at"),
    )
