"""A device's identity: made once, kept in the local store, proven by signatures (WIRE, "Signatures are Ed25519")."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mailbox_client.errors import InstanceChanged, NotRegistered, ServerNotUnderstood
from mailbox_client.http_answers import Token
from mailbox_client.local_store import LocalStore, StoredAccount
from mailbox_client.local_store.sqlite import SqliteStore
from mailbox_client.transport_http import MailboxHttp
from protocol.errors import ErrorCode, MailboxError
from protocol.ids import DeviceId, IdentityId, InstanceId, id_from_text, to_text
from protocol.signed_messages import (
    CHALLENGE_CONTEXTS,
    device_add_message,
    device_proof_message,
    device_revoke_message,
    register_message,
    token_message,
)

SEED_BYTES: Final = 32
_NOT_YET: Final = b""  # the ids of an account whose registration was not answered yet


def open_store(store: LocalStore | str | Path) -> LocalStore:
    """The store itself, or the SQLite store in a file of that name."""
    return SqliteStore(store) if isinstance(store, (str, Path)) else store


def parse_address(public_address: str) -> IdentityId:
    """The identity behind a public address, as `claim_prekeys` takes it; ValueError if it is none."""
    return IdentityId(id_from_text(public_address))


class Account:
    """Who this device is at one instance, and its signing key. Every signature names the instance it was made for."""

    def __init__(self, stored: StoredAccount) -> None:
        self.stored = stored
        self._key = Ed25519PrivateKey.from_private_bytes(stored.device_seed)

    @property
    def device_id(self) -> DeviceId:
        return self.stored.device_id

    @property
    def identity_id(self) -> IdentityId:
        return self.stored.identity_id

    @property
    def instance_id(self) -> InstanceId:
        return self.stored.instance_id

    @property
    def public_address(self) -> str:
        """What a friend needs to find this identity's devices and keys."""
        return to_text(self.stored.identity_id)

    @property
    def device_public_key(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    @classmethod
    def load(cls, store: LocalStore) -> Account:
        """The account in the store. Raises NotRegistered if there is none, or its registration was never answered."""
        with store.transaction():
            stored = store.account()
        if stored is None or stored.device_id == _NOT_YET:
            raise NotRegistered("this store holds no account: call Account.register first")
        return cls(stored)

    @classmethod
    async def register(
        cls,
        url: str,
        store: LocalStore | str | Path,
        *,
        invite: str | None = None,
        identity_public_bundle: bytes | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Account:
        """Make a key, register it as a new identity with this one device, keep both in the store.

        Safe to repeat: the key is durable before it is sent, so a lost answer or a crash leads to the same account, and
        an account that is there already is returned as it is. `identity_public_bundle` is the app's own public key
        material, opaque to the server (default: the device's public key).
        Raises MailboxError (REGISTRATION_CLOSED, INVITE_INVALID, RATE_LIMITED, …), NoAnswer, StoreFault.
        """
        opened = open_store(store)
        try:
            async with MailboxHttp(url, tls=tls) as http:
                return await cls._register(http, opened, invite, identity_public_bundle)
        finally:
            if opened is not store:
                opened.close()

    @classmethod
    async def _register(
        cls, http: MailboxHttp, store: LocalStore, invite: str | None, identity_public_bundle: bytes | None
    ) -> Account:
        stored = await cls._prepared(http, store, IdentityId(_NOT_YET), identity_public_bundle)
        account = cls(stored)
        if stored.device_id == _NOT_YET:
            message = register_message(stored.instance_id, stored.identity_bundle, account.device_public_key)
            registered = await http.register_identity(
                stored.identity_bundle, account.device_public_key, account._key.sign(message), invite=invite
            )
            stored = stored._replace(identity_id=registered.identity_id, device_id=registered.device_id)
            with store.transaction():
                store.save_account(stored)
        return cls(stored)

    @classmethod
    async def join(
        cls,
        url: str,
        store: LocalStore | str | Path,
        identity: IdentityId,
        ask: Callable[[bytes, bytes], Awaitable[DeviceId]],
        *,
        tls: ssl.SSLContext | None = None,
    ) -> Account:
        """Make a key and join an identity that exists as another of its devices; keep both in the store.

        `ask` brings the public key and its proof to a device of the identity, by a way of the app's own, has
        `add_device` called there, and returns what that returned. Safe to repeat, as `register` is.
        """
        opened = open_store(store)
        try:
            async with MailboxHttp(url, tls=tls) as http:
                stored = await cls._prepared(http, opened, identity, None)
            account = cls(stored)
            if stored.device_id == _NOT_YET:
                device = await ask(account.device_public_key, account.device_proof(identity))
                stored = stored._replace(device_id=device)
                with opened.transaction():
                    opened.save_account(stored)
            return cls(stored)
        finally:
            if opened is not store:
                opened.close()

    @staticmethod
    async def _prepared(
        http: MailboxHttp, store: LocalStore, identity: IdentityId, bundle: bytes | None
    ) -> StoredAccount:
        """The account in the store, or one with a new key and no device id yet: durable before the key is sent."""
        with store.transaction():
            stored = store.account()
        if stored is None:
            instance = await http.instance()
            seed = secrets.token_bytes(SEED_BYTES)
            public_key = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
            stored = StoredAccount(
                http.url, instance.instance_id, identity, DeviceId(_NOT_YET), seed, bundle or public_key
            )
            with store.transaction():
                store.save_account(stored)
        return stored

    # -- proofs

    async def fetch_token(self, http: MailboxHttp) -> Token:
        """Sign a fresh challenge and exchange it for a token of 15 minutes; `http.token` is set to it.

        Raises InstanceChanged if the server refuses and is another instance than the one this device registered with:
        the signature names the instance, so it is worth nothing to any other.
        """
        challenge = await self._challenge(http, "token")
        signature = self._key.sign(token_message(self.instance_id, self.device_id, challenge))
        try:
            token = await http.exchange_token(self.device_id, challenge, signature)
        except MailboxError as error:
            if error.code is ErrorCode.UNAUTHENTICATED and (await http.instance()).instance_id != self.instance_id:
                raise InstanceChanged("another instance answers at this address") from error
            raise
        http.token = token.token
        return token

    def device_proof(self, identity: IdentityId) -> bytes:
        """Signed by this device before it is part of an identity: it holds its key and wants to join."""
        return self._key.sign(device_proof_message(self.instance_id, identity, self.device_public_key))

    async def add_device(
        self, http: MailboxHttp, device_public_key: bytes, proof: bytes, *, replaces: DeviceId | None = None
    ) -> DeviceId:
        """Let another device join this identity; it gives its public key and its `device_proof`.

        Safe to repeat within a day: the same key is added once.
        """
        challenge = await self._challenge(http, "device.add")
        signature = self._key.sign(device_add_message(self.instance_id, self.device_id, challenge, device_public_key))
        return await http.add_device(
            device_public_key,
            proof,
            challenge,
            signature,
            replaces=replaces,
            idempotency_key=f"add.{to_text(device_public_key)}",
        )

    async def revoke_device(self, http: MailboxHttp, device: DeviceId) -> None:
        """Revoke a device of this identity, this one included. It cannot be undone."""
        challenge = await self._challenge(http, "device.revoke")
        signature = self._key.sign(device_revoke_message(self.instance_id, self.device_id, challenge, device))
        await http.revoke_device(device, challenge, signature, idempotency_key=f"revoke.{to_text(device)}")

    async def _challenge(self, http: MailboxHttp, purpose: str) -> bytes:
        challenge = await http.challenge(self.device_id, purpose)
        if challenge.context != CHALLENGE_CONTEXTS[purpose]:
            # Signing under a context that the server chooses could sign anything: the purpose alone decides.
            raise ServerNotUnderstood("the challenge names another context than its purpose")
        return challenge.challenge
