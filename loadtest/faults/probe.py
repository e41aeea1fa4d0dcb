"""A device of the kit's own beside the traffic, over HTTP: what a client sees of cursors, keys and its mailbox."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from loadtest.faults.fault import Scene
from mailbox_client import Account
from mailbox_client.local_store.memory import MemoryStore
from mailbox_client.transport_http import MailboxHttp
from protocol.errors import ErrorCode, MailboxError
from protocol.frames import SendEnvelope
from protocol.ids import DeviceId, MessageId


async def counted(scene: Scene, metric: str, label: str) -> int:
    """The sum over all gateways of `mailboxd_METRIC` where one of its labels has this value."""
    total = 0.0
    for gateway in scene.world.gateways:
        _, text = await gateway.get("/metrics")
        for line in text.splitlines():
            if line.startswith(f"mailboxd_{metric}{{") and f'="{label}"' in line:
                total += float(line.rpartition(" ")[2])
    return int(total)


class Probe:
    """`async with Probe(scene) as probe`: a new device at the first gateway. The server's errors are raised."""

    def __init__(self, scene: Scene) -> None:
        self.url = scene.world.urls[0]
        self.http = MailboxHttp(self.url)
        self.account: Account

    @property
    def device(self) -> DeviceId:
        return self.account.device_id

    async def register(self) -> None:
        self.account = await Account.register(self.url, MemoryStore())
        self.http.token_source = lambda: self.account.fetch_token(self.http)

    async def __aenter__(self) -> Self:
        await self.register()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.http.close()

    async def send_to(self, other: Probe) -> MessageId:
        """One message; returns when it is confirmed."""
        mid = MessageId(secrets.token_bytes(16))
        key = secrets.token_urlsafe(16)
        await self.http.send([SendEnvelope(other.device, mid, 1, secrets.token_bytes(64))], idempotency_key=key)
        return mid

    async def pull(self, cursor: str | None = None) -> list[MessageId]:
        """What waits behind the cursor, from the oldest un-acked entry on without one."""
        return [entry.mid for entry in (await self.http.pull_mailbox(cursor)).entries]

    async def cursor(self) -> str:
        """As it stands behind everything that waits now."""
        return (await self.http.pull_mailbox()).cursor

    async def ack(self, mids: Sequence[MessageId]) -> None:
        await self.http.ack(mids)

    async def refusal(self) -> ErrorCode | None:
        """With which code this device is refused when it signs in anew; None when it is let in."""
        self.http.token = None
        try:
            await self.http.pull_mailbox()
        except MailboxError as error:
            return error.code
        return None

    async def refusal_of(self, cursor: str) -> ErrorCode | None:
        """With which code a pull with this cursor is refused; None when it is served."""
        try:
            await self.http.pull_mailbox(cursor)
        except MailboxError as error:
            return error.code
        return None
