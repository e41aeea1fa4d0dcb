"""The answers of the HTTP door as values, read from their MessagePack maps. Anything else is ServerNotUnderstood."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, NoReturn

from mailbox_client.engine_io import Page
from mailbox_client.errors import ServerNotUnderstood
from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.frames import Entry, SendResult
from protocol.ids import ClientMessageId, DeviceId, IdentityId, InstanceId, MessageId, WakeRouteId, is_id
from protocol.limits import WireLimits
from protocol.packing import unpack

ANSWER_OBJECTS_MAX: Final = 16_384  # a page of 256 entries with every field has 4,900

Answer = dict[str, Any]


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


def understood(status: int, raw: bytes, retry_after: str) -> Answer:
    """The map of a good answer. Raises MailboxError for the server's refusals, ServerNotUnderstood for the rest."""
    try:
        answer = unpack(raw, objects_max=ANSWER_OBJECTS_MAX) if raw else {}
    except MailboxError as error:
        raise _foreign(status, retry_after) from error
    if type(answer) is not dict:
        raise _foreign(status, retry_after)
    if 200 <= status < 300:
        return answer
    code = ErrorCode.__members__.get(str(answer.get("code")))
    if code is None:
        raise _foreign(status, retry_after)
    at = answer.get("at")
    outcome = answer.get("outcome")
    raise MailboxError(
        code,
        str(answer.get("detail") or answer.get("title") or "") or None,
        at=[index for index in at if type(index) is int] if type(at) is tuple else None,
        retry_after_ms=_retry_after_ms(answer.get("retry_after_ms"), retry_after),
        outcome=Outcome(outcome) if outcome in tuple(Outcome) else None,
    )


def _foreign(status: int, retry_after: str) -> Exception:
    """What an answer means that is not of the contract: a proxy's overload page still asks for patience."""
    if status in (429, 502, 503, 504):
        return MailboxError(
            ErrorCode.UNAVAILABLE, retry_after_ms=_retry_after_ms(None, retry_after), outcome=Outcome.UNKNOWN
        )
    return ServerNotUnderstood(f"HTTP status {status} with a body that is not of the contract")


def _retry_after_ms(exact: object, header: str) -> int | None:
    if type(exact) is int:
        return exact
    return int(header) * 1000 if header.isascii() and header.isdigit() else None


def read_instance(answer: Answer) -> Instance:
    limits = read_map(answer, "limits")
    try:
        wire_limits = WireLimits(**{name: read_int(limits, name) for name in WireLimits._fields if name in limits})
    except TypeError:
        _wrong("limits")
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


def _read_entry(entry: dict[str, Any]) -> Entry:
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


def _read_claimed(device: dict[str, Any]) -> ClaimedDevice:
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


def read_route(answer: dict[str, Any]) -> PushRoute:
    return PushRoute(
        read_str(answer, "provider"),
        read_str(answer, "status"),
        WakeRouteId(read_id(answer, "wake_route_id")),
        read_int(answer, "created_at"),
    )


# -- fields


def _wrong(name: str) -> NoReturn:
    raise ServerNotUnderstood(f"{name} is not as the contract says")


def read_int(answer: Answer, name: str) -> int:
    value = answer.get(name)
    return value if type(value) is int else _wrong(name)


def read_str(answer: Answer, name: str) -> str:
    value = answer.get(name)
    return value if type(value) is str else _wrong(name)


def read_bytes(answer: Answer, name: str) -> bytes:
    value = answer.get(name)
    return value if type(value) is bytes else _wrong(name)


def read_bool(answer: Answer, name: str) -> bool:
    value = answer.get(name)
    return value if type(value) is bool else _wrong(name)


def read_id(answer: Answer, name: str) -> bytes:
    value = answer.get(name)
    return value if type(value) is bytes and is_id(value) else _wrong(name)


def read_map(answer: Answer, name: str) -> Answer:
    value = answer.get(name)
    return value if type(value) is dict else _wrong(name)


def read_list(answer: Answer, name: str, kind: type[Any]) -> list[Any]:
    values = answer.get(name)
    if type(values) is not tuple or not all(type(value) is kind for value in values):
        _wrong(name)
    return list(values)


def read_maps(answer: Answer, name: str) -> list[Answer]:
    return read_list(answer, name, dict)
