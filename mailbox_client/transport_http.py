"""The HTTP door of one server, call by call (WIRE, "HTTP"). No retries and no state but the token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mailbox_client.answer_fields import read_id, read_int, read_list, read_maps
from mailbox_client.engine_io import Page
from mailbox_client.errors import ServerNotUnderstood
from mailbox_client.http_answers import (
    Challenge,
    Device,
    Instance,
    LastResortKey,
    MailboxStatus,
    OneTimeKey,
    PrekeyClaim,
    PushRoute,
    Registered,
    SendAnswer,
    Token,
    read_challenge,
    read_claim,
    read_device,
    read_instance,
    read_page,
    read_registered,
    read_route,
    read_send_answer,
    read_status,
    read_token,
)
from mailbox_client.http_door import REQUEST_TIMEOUT_S, HttpDoor
from protocol.errors import ErrorCode, MailboxError
from protocol.frames import SendEnvelope
from protocol.ids import ClientMessageId, DeviceId, IdentityId, MessageId, to_text
from protocol.limits import PULL_LIMIT_DEFAULT


class MailboxHttp(HttpDoor):
    """Every call of the HTTP door as a method; usable alone, without engine and store.

    Set `token` before the calls that need one, or a `token_source` that sets it: it is asked when there is none, and
    once more when the server refuses the one there is.

    Raises MailboxError with the server's code, NoAnswer when none came (of a write it is then unknown whether it
    happened: repeat it with the same ids), ServerNotUnderstood for anything that is not of the contract.
    """

    # -- instance, registration, tokens

    async def instance(self) -> Instance:
        return read_instance(await self._request("GET", "/v1/instance"))

    async def register_identity(
        self,
        identity_public_bundle: bytes,
        device_public_key: bytes,
        signature: bytes,
        *,
        invite: str | None = None,
        idempotency_key: str | None = None,
    ) -> Registered:
        """A repeat with the same device key gives the same ids."""
        body: dict[str, Any] = {
            "identity_public_bundle": identity_public_bundle,
            "device_public_key": device_public_key,
            "signature": signature,
        }
        if invite is not None:
            body["invite"] = invite
        answer = await self._request("POST", "/v1/identities", body, idempotency_key=idempotency_key)
        return read_registered(answer)

    async def challenge(self, device: DeviceId, purpose: str) -> Challenge:
        """`purpose`: token, device.add or device.revoke. Good for 60 s and one use."""
        return read_challenge(
            await self._request("POST", "/v1/auth/challenges", {"device_id": device, "purpose": purpose})
        )

    async def exchange_token(self, device: DeviceId, challenge: bytes, signature: bytes) -> Token:
        body = {"device_id": device, "challenge": challenge, "signature": signature}
        return read_token(await self._request("POST", "/v1/auth/tokens", body))

    # -- devices

    async def devices(self) -> tuple[Device, ...]:
        answer = await self._call("GET", "/v1/devices")
        return tuple(read_device(device) for device in read_maps(answer, "devices"))

    async def add_device(
        self,
        device_public_key: bytes,
        proof: bytes,
        challenge: bytes,
        signature: bytes,
        *,
        replaces: DeviceId | None = None,
        idempotency_key: str | None = None,
    ) -> DeviceId:
        body: dict[str, Any] = {
            "device_public_key": device_public_key,
            "proof": proof,
            "challenge": challenge,
            "signature": signature,
        }
        if replaces is not None:
            body["replaces"] = replaces
        answer = await self._call("POST", "/v1/devices", body, idempotency_key=idempotency_key)
        return DeviceId(read_id(answer, "device_id"))

    async def revoke_device(
        self, device: DeviceId, challenge: bytes, signature: bytes, *, idempotency_key: str | None = None
    ) -> None:
        body = {"challenge": challenge, "signature": signature}
        await self._call("POST", f"/v1/devices/{to_text(device)}/revocation", body, idempotency_key=idempotency_key)

    # -- prekeys

    async def upload_prekeys(
        self,
        one_time: Iterable[OneTimeKey] = (),
        last_resort: LastResortKey | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> int:
        """At most 200 one-time keys a call, idempotent by key_id. Returns how many one-time keys are left."""
        body: dict[str, Any] = {"one_time": [key._asdict() for key in one_time]}
        if last_resort is not None:
            body["last_resort"] = last_resort._asdict()
        return read_int(await self._call("PUT", "/v1/prekeys", body, idempotency_key=idempotency_key), "one_time_left")

    async def prekeys_left(self) -> int:
        return read_int(await self._call("GET", "/v1/prekeys"), "one_time_left")

    async def claim_prekeys(self, identity: IdentityId, *, idempotency_key: str | None = None) -> PrekeyClaim:
        path = f"/v1/identities/{to_text(identity)}/prekey-claims"
        return read_claim(await self._call("POST", path, {}, idempotency_key=idempotency_key))

    # -- envelopes and mailbox

    async def send(
        self,
        envelopes: Sequence[SendEnvelope],
        *,
        client_message_id: ClientMessageId | None = None,
        idempotency_key: str | None = None,
        echo: bool | None = None,
    ) -> SendAnswer:
        """All envelopes or none; exactly one of `client_message_id` and `idempotency_key`."""
        body: dict[str, Any] = {"envelopes": [envelope_map(envelope) for envelope in envelopes]}
        if client_message_id is not None:
            body["client_message_id"] = client_message_id
        if echo is not None:
            body["echo"] = echo
        return read_send_answer(await self._call("POST", "/v1/envelopes", body, idempotency_key=idempotency_key))

    async def pull_mailbox(
        self,
        cursor: str | None = None,
        *,
        limit: int = PULL_LIMIT_DEFAULT,
        wait_s: int = 0,
        until: str | None = None,
    ) -> Page:
        """A page after `cursor` (None: from the oldest un-acked on). Deletes nothing. Waits only when there is none."""
        query = {"limit": str(limit), "wait_s": str(wait_s)}
        if cursor is not None:
            query["cursor"] = cursor
        if until is not None:
            query["until"] = until
        return read_page(await self._call("GET", "/v1/mailbox", query=query, timeout_s=REQUEST_TIMEOUT_S + wait_s))

    async def mailbox_status(self) -> MailboxStatus:
        return read_status(await self._call("GET", "/v1/mailbox/status"))

    async def ack(self, mids: Sequence[MessageId]) -> tuple[str, ...]:
        """At most 100 ids; the answer is `acked` for each, in order."""
        answer = await self._call("POST", "/v1/mailbox/acks", {"message_ids": list(mids)})
        results = read_list(answer, "results", str)
        if len(results) != len(mids):
            raise ServerNotUnderstood("not one result for each id")
        return tuple(results)

    # -- push route

    async def set_push_route(self, provider: str, *, idempotency_key: str | None = None, **settings: Any) -> PushRoute:
        """`settings` as WIRE's table says for the provider: endpoint, p256dh, auth, token, topic, mode, url."""
        body = {"provider": provider, **settings}
        return read_route(await self._call("PUT", "/v1/push-route", body, idempotency_key=idempotency_key))

    async def push_route(self) -> PushRoute | None:
        try:
            return read_route(await self._call("GET", "/v1/push-route"))
        except MailboxError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return None
            raise

    async def remove_push_route(self, *, idempotency_key: str | None = None) -> None:
        await self._call("DELETE", "/v1/push-route", idempotency_key=idempotency_key)


def envelope_map(envelope: SendEnvelope) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "to": envelope.to,
        "message_id": envelope.mid,
        "protocol_version": envelope.pv,
        "body": envelope.body,
    }
    if envelope.ttl_s is not None:
        fields["ttl_s"] = envelope.ttl_s
    if envelope.pad is not None:
        fields["pad"] = envelope.pad
    return fields
