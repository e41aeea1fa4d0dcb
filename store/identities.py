"""Identities and their devices: registration, adding, revoking (seed 001, 2.2). Public material only.

Every change of an identity's devices is one transaction that holds the identity's row, so limits hold under any
concurrency. Lock order (DESIGN): the request's key, challenge, identities, devices, mailboxes, prekeys, push routes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.ids import ID_BYTES, ZERO_ID, DeviceId, IdentityId, InstanceId
from protocol.signed_messages import device_add_message, device_proof_message, device_revoke_message, register_message
from store.audit import AuditOutcome, AuditStore, AuditType
from store.auth import ChallengeStore, DeviceKey, device_key
from store.idempotency import KeyedRequest, Operation, RequestRecords
from store.invites import invite_hash
from store.policy_rules import Policy
from store.postgres import Postgres
from store.proofs import require_signature
from store.sql_files import load_sql

_SQL: Final = load_sql("identities")
_REGISTER_ATTEMPTS: Final = 3


class Registration(NamedTuple):
    identity_public_bundle: bytes
    device_public_key: bytes
    signature: bytes
    invite: str | None = None


class Registered(NamedTuple):
    identity_id: IdentityId
    device_id: DeviceId


class DeviceAddition(NamedTuple):
    """`acting` adds the device that holds `device_public_key`; `replaces` is revoked in the same transaction."""

    acting: DeviceId
    device_public_key: bytes
    proof: bytes
    challenge: bytes
    signature: bytes
    replaces: DeviceId | None = None


class DeviceRevocation(NamedTuple):
    acting: DeviceId
    target: DeviceId
    challenge: bytes
    signature: bytes


class Device(NamedTuple):
    device_id: DeviceId
    device_public_key: bytes
    status: str
    created_at_ms: int


class _KeyTakenMeanwhile(Exception):
    """Another registration of the same device key committed first; look again."""


class IdentityStore:
    """All methods that change something commit all of it or nothing, and are safe to repeat."""

    def __init__(
        self,
        postgres: Postgres,
        instance_id: InstanceId,
        records: RequestRecords,
        challenges: ChallengeStore,
        audit: AuditStore,
        policy: Callable[[], Policy],
    ) -> None:
        self._postgres = postgres
        self._instance_id = instance_id
        self._records = records
        self._challenges = challenges
        self._audit = audit
        self._policy = policy

    async def register(self, registration: Registration, *, key: bytes | None = None) -> Registered:
        """A new identity with its first device and mailbox. The same device key again gives the same ids.

        Raises UNAUTHENTICATED (signature), REGISTRATION_CLOSED, INVITE_INVALID, BAD_REQUEST (the key with another
        bundle), DEVICE_REVOKED or FORBIDDEN (the key's device or identity is no longer active).
        """
        bundle, public_key, signature, _ = registration
        require_signature(public_key, register_message(self._instance_id, bundle, public_key), signature)
        # Not the invite: a repeat after the invite was used up is still the same request.
        keyed = key and KeyedRequest(Operation.REGISTER, public_key, key, (bundle, public_key))
        for _ in range(_REGISTER_ATTEMPTS):
            try:
                async with self._postgres.transaction() as connection:
                    if keyed and (answer := await self._claim(connection, keyed)) is not None:
                        return Registered(*answer)
                    registered = await self._find_or_create(connection, registration)
                    if keyed:
                        await self._records.finish(connection, keyed, registered)
                    return registered
            except _KeyTakenMeanwhile:
                continue
        raise MailboxError(ErrorCode.UNAVAILABLE, retry_after_ms=100, outcome=Outcome.NOT_COMMITTED)

    async def _find_or_create(self, connection: Any, registration: Registration) -> Registered:
        row = await connection.fetchrow(_SQL["find_registered"], registration.device_public_key)
        if row is not None:
            if row["identity_public_bundle"] != registration.identity_public_bundle:
                raise _refusal(ErrorCode.BAD_REQUEST, "This device key is registered with another identity bundle.")
            _require_standing(row["status"] == "active", row["identity_status"] == "active")
            return Registered(row["identity_id"], row["device_id"])
        await self._admit(connection, registration.invite)
        registered = Registered(IdentityId(_fresh_id()), DeviceId(_fresh_id()))
        await connection.execute(_SQL["insert_identity"], registered.identity_id, registration.identity_public_bundle)
        await self._insert_device(
            connection, registered.identity_id, registered.device_id, registration.device_public_key
        )
        return registered

    async def _admit(self, connection: Any, invite: str | None) -> None:
        mode = self._policy().registration
        if mode == "closed":
            raise _refusal(ErrorCode.REGISTRATION_CLOSED)
        if mode == "invite" and (
            invite is None or not await connection.fetchval(_SQL["take_invite"], invite_hash(invite))
        ):
            raise _refusal(ErrorCode.INVITE_INVALID)

    async def add_device(
        self, addition: DeviceAddition, *, key: bytes | None, request_id: str
    ) -> tuple[DeviceId, tuple[DeviceId, ...]]:
        """The new device's id, and the devices that this call revoked (none when it is a repeat).

        Raises UNAUTHENTICATED (proof, signature or challenge), DEVICE_REVOKED (the acting device is), NOT_FOUND
        (`replaces` is not a device of this identity), BAD_REQUEST (the key belongs elsewhere), DEVICE_LIMIT.
        """
        # Not the challenge and signatures: they authorise the request and may be made anew for its repeat.
        content = (addition.device_public_key, addition.replaces)
        keyed = key and KeyedRequest(Operation.DEVICE_ADD, addition.acting, key, content)
        async with self._postgres.transaction() as connection:
            if keyed and (answer := await self._claim(connection, keyed)) is not None:
                return DeviceId(answer[0]), ()
            acting = await self._acting_device(connection, addition.acting)
            require_signature(
                acting.public_key,
                device_add_message(self._instance_id, addition.acting, addition.challenge, addition.device_public_key),
                addition.signature,
            )
            require_signature(
                addition.device_public_key,
                device_proof_message(self._instance_id, acting.identity_id, addition.device_public_key),
                addition.proof,
            )
            await self._challenges.consume(connection, addition.challenge, addition.acting, "device.add")
            device_id, revoked = await self._add(connection, acting.identity_id, addition)
            for event in (AuditType.DEVICE_ADDED, *[AuditType.DEVICE_REVOKED] * len(revoked)):
                await self._record(connection, event, addition.acting, request_id)
            if keyed:
                await self._records.finish(connection, keyed, (device_id,))
        return device_id, revoked

    async def _add(
        self, connection: Any, identity_id: IdentityId, addition: DeviceAddition
    ) -> tuple[DeviceId, tuple[DeviceId, ...]]:
        devices = await self._lock_devices(connection, identity_id)
        _require_standing(devices.get(addition.acting) == "active", identity_active=True)
        replaces = addition.replaces
        if replaces is not None and replaces not in devices:
            raise _refusal(ErrorCode.NOT_FOUND)
        row = await connection.fetchrow(_SQL["find_registered"], addition.device_public_key)
        if row is not None and row["identity_id"] != identity_id:
            raise _refusal(ErrorCode.BAD_REQUEST, "This device key is registered with another identity.")
        if row is not None:
            _require_standing(row["status"] == "active", identity_active=True)
            if row["device_id"] == replaces:
                raise _refusal(ErrorCode.BAD_REQUEST, "A device cannot replace itself.")
        staying = sum(status == "active" for device, status in devices.items() if device != replaces)
        if row is None and staying >= self._policy().max_active_devices_per_identity:
            raise _refusal(ErrorCode.DEVICE_LIMIT)
        revoked: tuple[DeviceId, ...] = ()
        if replaces is not None and devices[replaces] == "active":
            await self._revoke(connection, replaces)
            revoked = (replaces,)
        if row is not None:
            return DeviceId(row["device_id"]), revoked
        device_id = DeviceId(_fresh_id())
        try:
            await self._insert_device(connection, identity_id, device_id, addition.device_public_key)
        except _KeyTakenMeanwhile as error:
            raise _refusal(ErrorCode.BAD_REQUEST, "This device key is registered with another identity.") from error
        return device_id, revoked

    async def revoke_device(
        self, revocation: DeviceRevocation, *, key: bytes | None, request_id: str
    ) -> tuple[DeviceId, ...]:
        """The devices that this call revoked: the target, or none when it was revoked before.

        Raises UNAUTHENTICATED (signature or challenge), DEVICE_REVOKED (the acting device is), NOT_FOUND (the target
        is not a device of this identity).
        """
        acting_id, target, challenge, signature = revocation
        keyed = key and KeyedRequest(Operation.DEVICE_REVOKE, acting_id, key, (target,))
        async with self._postgres.transaction() as connection:
            if keyed and await self._claim(connection, keyed) is not None:
                return ()
            acting = await self._acting_device(connection, acting_id)
            message = device_revoke_message(self._instance_id, acting_id, challenge, target)
            require_signature(acting.public_key, message, signature)
            await self._challenges.consume(connection, challenge, acting_id, "device.revoke")
            devices = await self._lock_devices(connection, acting.identity_id)
            _require_standing(devices.get(acting_id) == "active", identity_active=True)
            if target not in devices:
                raise _refusal(ErrorCode.NOT_FOUND)
            revoked: tuple[DeviceId, ...] = ()
            if devices[target] == "active":
                await self._revoke(connection, target)
                await self._record(connection, AuditType.DEVICE_REVOKED, acting_id, request_id)
                revoked = (target,)
            if keyed:
                await self._records.finish(connection, keyed, ())
        return revoked

    async def revoke_by_operator(self, target: DeviceId, *, request_id: str) -> bool:
        """Revoke without the owner. True when the device was active; NOT_FOUND when there is no such device."""
        async with self._postgres.transaction() as connection:
            device = await device_key(connection, target)
            if device is None:
                raise _refusal(ErrorCode.NOT_FOUND)
            devices = await self._lock_devices(connection, device.identity_id)
            if devices[target] != "active":
                return False
            await self._revoke(connection, target)
            await self._record(connection, AuditType.DEVICE_REVOKED, None, request_id)
        return True

    async def devices(self, device: DeviceId) -> tuple[Device, ...]:
        """All devices of the identity that `device` belongs to, oldest first."""
        return tuple(Device(*row) for row in await self._postgres.fetch(_SQL["list_devices"], device))

    async def _claim(self, connection: Any, keyed: KeyedRequest) -> Sequence[Any] | None:
        answer: Sequence[Any] | None = await self._records.claim(
            connection, keyed, lifetime_s=self._policy().idempotency_ttl_s
        )
        return answer

    async def _acting_device(self, connection: Any, device: DeviceId) -> DeviceKey:
        acting = await device_key(connection, device)
        if acting is None:
            raise _refusal(ErrorCode.UNAUTHENTICATED)
        return acting

    async def _lock_devices(self, connection: Any, identity_id: IdentityId) -> dict[DeviceId, str]:
        """The identity's devices and their status, nobody else changing them until the commit."""
        if await connection.fetchval(_SQL["lock_identity"], identity_id) != "active":
            raise _refusal(ErrorCode.FORBIDDEN)
        rows = await connection.fetch(_SQL["lock_devices"], identity_id)
        return {DeviceId(row["device_id"]): row["status"] for row in rows}

    async def _insert_device(self, connection: Any, identity: IdentityId, device: DeviceId, public_key: bytes) -> None:
        if not await connection.fetchval(_SQL["insert_device"], device, identity, public_key):
            raise _KeyTakenMeanwhile
        await connection.execute(_SQL["insert_mailbox"], device, identity)
        await connection.execute(_SQL["insert_mailbox_owner"], device)

    async def _revoke(self, connection: Any, device: DeviceId) -> None:
        """Makes the device an unknown recipient with no keys and no route. The caller holds identity and devices."""
        await connection.execute(_SQL["revoke_device"], device)
        await connection.execute(_SQL["lock_mailbox"], device)
        await connection.execute(_SQL["close_mailbox"], device)
        await connection.execute(_SQL["drop_prekeys"], device)
        await connection.execute(_SQL["drop_last_resort_prekey"], device)
        await connection.execute(_SQL["drop_push_route"], device)

    async def _record(self, connection: Any, event: AuditType, actor: DeviceId | None, request_id: str) -> None:
        await self._audit.record(
            connection,
            event,
            AuditOutcome.DONE,
            request_id=request_id,
            policy_version=self._policy().version,
            actor=actor,
        )


def _require_standing(device_active: bool, identity_active: bool) -> None:
    if not device_active:
        raise _refusal(ErrorCode.DEVICE_REVOKED)
    if not identity_active:
        raise _refusal(ErrorCode.FORBIDDEN)


def _refusal(code: ErrorCode, message: str | None = None) -> MailboxError:
    return MailboxError(code, message, outcome=Outcome.NOT_COMMITTED)


def _fresh_id() -> bytes:
    while (value := secrets.token_bytes(ID_BYTES)) == ZERO_ID:
        pass
    return value
