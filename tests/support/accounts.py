"""Devices with real keys, and the stores that know identities, challenges, prekeys, routes, audit and policy."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from nacl.signing import SigningKey

from protocol.fingerprint import InstanceSecret
from protocol.ids import DeviceId, IdentityId, InstanceId
from protocol.signed_messages import (
    device_add_message,
    device_proof_message,
    device_revoke_message,
    register_message,
    token_message,
)
from runtime.logs import DeviceTags
from store.audit import AuditStore
from store.auth import ChallengeStore
from store.idempotency import RequestRecords
from store.identities import DeviceAddition, DeviceRevocation, IdentityStore, Registered, Registration
from store.invites import InviteStore
from store.policy import PolicyStore
from store.policy_rules import Policy
from store.postgres import Postgres
from store.prekeys import PrekeyStore
from store.push_routes import PushRouteStore
from store.push_seal import PushSeal
from tests.support.clock import FakeClock


@dataclass
class Keys:
    """What a device keeps to itself, and the signatures it makes."""

    bundle: bytes = field(default_factory=lambda: os.urandom(64))
    signing: SigningKey = field(default_factory=SigningKey.generate)

    @property
    def public(self) -> bytes:
        return bytes(self.signing.verify_key)

    def sign(self, message: bytes) -> bytes:
        return self.signing.sign(message).signature

    def registration(self, instance: InstanceId, invite: str | None = None) -> Registration:
        return Registration(
            self.bundle, self.public, self.sign(register_message(instance, self.bundle, self.public)), invite
        )

    def token_signature(self, instance: InstanceId, device: DeviceId, challenge: bytes) -> bytes:
        return self.sign(token_message(instance, device, challenge))

    def addition(
        self,
        instance: InstanceId,
        identity: IdentityId,
        acting: DeviceId,
        challenge: bytes,
        new: Keys,
        replaces: DeviceId | None = None,
    ) -> DeviceAddition:
        return DeviceAddition(
            acting,
            new.public,
            new.sign(device_proof_message(instance, identity, new.public)),
            challenge,
            self.sign(device_add_message(instance, acting, challenge, new.public)),
            replaces,
        )

    def revocation(
        self, instance: InstanceId, acting: DeviceId, challenge: bytes, target: DeviceId
    ) -> DeviceRevocation:
        return DeviceRevocation(
            acting, target, challenge, self.sign(device_revoke_message(instance, acting, challenge, target))
        )


@dataclass
class Accounts:
    """The account side of one process, on one database."""

    postgres: Postgres
    instance: InstanceId
    policy: Policy = field(default_factory=lambda: Policy(registration="open"))
    clock: FakeClock = field(default_factory=FakeClock)
    push_keys: dict[int, bytes] = field(default_factory=lambda: {1: b"p" * 32})

    def __post_init__(self) -> None:
        self.records = RequestRecords(InstanceSecret(1, b"1" * 32))
        self.audit = AuditStore(self.postgres, DeviceTags(b"l" * 32, self.clock), self.clock)
        self.challenges = ChallengeStore(self.postgres)
        self.identities = IdentityStore(
            self.postgres, self.instance, self.records, self.challenges, self.audit, lambda: self.policy
        )
        self.invites = InviteStore(self.postgres, self.audit, lambda: self.policy)
        self.prekeys = PrekeyStore(self.postgres, self.records, lambda: self.policy)
        self.push_routes = PushRouteStore(
            self.postgres, PushSeal(max(self.push_keys), self.push_keys), self.records, lambda: self.policy
        )
        self.policies = PolicyStore(self.postgres, self.audit)

    async def register(self, keys: Keys | None = None) -> tuple[Keys, Registered]:
        keys = keys or Keys()
        return keys, await self.identities.register(keys.registration(self.instance))

    async def challenge(self, device: DeviceId, purpose: str) -> bytes:
        return (await self.challenges.issue(device, purpose, lifetime_s=60)).value


@asynccontextmanager
async def accounts(dsn: str, policy: Policy | None = None, *, pool_max: int = 4) -> AsyncIterator[Accounts]:
    postgres = Postgres(dsn, pool_max=pool_max)
    await postgres.open()
    try:
        instance = InstanceId(await postgres.fetchval("SELECT instance_id FROM instances"))
        yield Accounts(postgres, instance, policy or Policy(registration="open"))
    finally:
        await postgres.close()
