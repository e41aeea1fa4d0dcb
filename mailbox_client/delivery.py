"""One received message as the app sees it."""

from __future__ import annotations

from typing import Protocol

from mailbox_client.local_store import StoredMessage
from protocol.ids import ClientMessageId, MessageId


class _Settles(Protocol):
    async def confirm(self, *deliveries: Delivery) -> None: ...

    async def defer(self, *deliveries: Delivery) -> None: ...


class Delivery:
    """`confirm` it when its effects are durable in the app; `defer` it if it cannot be worked on now.

    Until one of the two it counts as in the app's hands: after a crash it is delivered again.
    """

    __slots__ = ("_client", "_message")

    def __init__(self, client: _Settles, message: StoredMessage) -> None:
        self._client = client
        self._message = message

    @property
    def message_id(self) -> MessageId:
        return self._message.entry.mid

    @property
    def body(self) -> bytes:
        return self._message.entry.body or b""

    @property
    def protocol_version(self) -> int:
        return self._message.entry.pv

    @property
    def accepted_at(self) -> int:
        """When the server stored it, in milliseconds of its clock."""
        return self._message.entry.accepted_at

    @property
    def expires_at(self) -> int:
        """When the server stops keeping it, in milliseconds of its clock."""
        return self._message.entry.expires_at

    @property
    def pad(self) -> int | None:
        return self._message.entry.pad

    @property
    def client_message_id(self) -> ClientMessageId | None:
        """Set only if this device or another one of its identity sent it."""
        return self._message.entry.cmid

    @property
    def crashes(self) -> int:
        """How often a process ended while it had this message in hand; at three it is deferred."""
        return self._message.crashes

    async def confirm(self) -> None:
        """Return once it is durable that the app is done with this message; its ACK follows by itself."""
        await self._client.confirm(self)

    async def defer(self) -> None:
        """Put the message aside: it comes back within a day or with `retry_deferred`, and is not deleted."""
        await self._client.defer(self)
