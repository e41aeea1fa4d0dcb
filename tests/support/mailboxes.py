"""Mailboxes without their identities, and the three stores of one gateway process on one database."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from protocol.admission import SEND, SEND_BY_KEY
from protocol.fingerprint import InstanceSecret
from protocol.frames import SendEnvelope
from protocol.ids import ClientMessageId, DeviceId, MessageId
from store.acks import AckStore
from store.mailbox import MailboxReader
from store.policy_rules import Policy
from store.postgres import Postgres
from store.records import Page, ReadRequest, SubmitRequest
from store.submit import SubmitStore


def a_mid() -> MessageId:
    return MessageId(os.urandom(16))


def a_cmid() -> ClientMessageId:
    return ClientMessageId(os.urandom(16))


def an_envelope(to: DeviceId, body: bytes = b"sealed", *, mid: MessageId | None = None) -> SendEnvelope:
    return SendEnvelope(to, mid or a_mid(), 1, body)


def a_send(
    actor: DeviceId,
    *envelopes: SendEnvelope,
    session: int = 1,
    cmid: ClientMessageId | None = None,
    key: bytes | None = None,
    echo: bool = False,
) -> SubmitRequest:
    """A SEND by cmid, or by Idempotency-Key when `key` is given."""
    if key is not None:
        return SubmitRequest(session, actor, SEND_BY_KEY, key, None, envelopes, False)
    cmid = cmid or a_cmid()
    return SubmitRequest(session, actor, SEND, cmid, cmid, envelopes, echo)


@dataclass
class Secrets:
    """As the key ring has them; a test rotates by setting both."""

    fingerprint: InstanceSecret = field(default_factory=lambda: InstanceSecret(1, b"1" * 32))
    fingerprint_old: InstanceSecret | None = None


@dataclass
class Stores:
    """What one gateway process holds."""

    postgres: Postgres
    policy: Policy = field(default_factory=Policy)
    secrets: Secrets = field(default_factory=Secrets)
    now: float = 0.0  # added to the monotonic clock

    def __post_init__(self) -> None:
        self.submit = SubmitStore(self.postgres, lambda: self.policy, lambda: self.secrets, self._clock)
        self.acks = AckStore(self.postgres, self._clock)
        self.reader = MailboxReader(self.postgres, self._clock)

    def _clock(self) -> float:
        return time.monotonic() + self.now

    async def devices(self, count: int) -> list[DeviceId]:
        """Active mailboxes, each of an identity of its own."""
        devices = [DeviceId(os.urandom(16)) for _ in range(count)]
        await self.postgres.execute(
            "INSERT INTO mailboxes (device_id, identity_id) SELECT d, gen_random_uuid() FROM unnest($1::uuid[]) AS d",
            devices,
        )
        await self.postgres.execute(
            "INSERT INTO mailbox_owners (device_id) SELECT d FROM unnest($1::uuid[]) AS d", devices
        )
        return devices

    async def page(self, device: DeviceId, *, after: int = 0, entries: int = 100, size: int = 1 << 20) -> Page:
        return await self.reader.read(ReadRequest(device, after, entries, size), session=1)

    async def whole_mailbox(self, device: DeviceId) -> list[MessageId]:
        """The un-acked message ids, in order."""
        mids: list[MessageId] = []
        after, more = 0, True
        while more:
            page = await self.page(device, after=after)
            mids += [entry.entry.mid for entry in page.entries]
            more = page.more
            after = page.entries[-1].position if page.entries else after
        return mids


@asynccontextmanager
async def stores(dsn: str, policy: Policy | None = None) -> AsyncIterator[Stores]:
    postgres = Postgres(dsn, pool_max=3)
    await postgres.open()
    made = Stores(postgres, policy or Policy())
    try:
        yield made
    finally:
        await made.submit.drain(5.0)
        await made.acks.drain(5.0)
        await made.reader.drain(5.0)
        await postgres.close()
