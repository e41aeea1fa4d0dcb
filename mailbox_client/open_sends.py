"""The sends without an outcome, as the public client sees them: how many there may be, and who waits for which."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from mailbox_client.errors import StopReason
from mailbox_client.pulse import Pulse
from mailbox_client.receipts import Receipt
from mailbox_client.sends import wire_bytes
from mailbox_client.settings import ClientSettings
from protocol.frames import SendEnvelope
from protocol.ids import ClientMessageId


class OpenSends:
    """Bounded in number and bytes: whoever comes when it is full waits."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._sizes: dict[ClientMessageId, int] = {}
        self._bytes = 0
        self._waiting: dict[ClientMessageId, asyncio.Future[Receipt]] = {}
        self._changed = Pulse()

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, cmid: ClientMessageId) -> bool:
        return cmid in self._sizes

    def add(self, cmid: ClientMessageId, envelopes: Sequence[SendEnvelope]) -> None:
        self._sizes[cmid] = size = wire_bytes(envelopes)
        self._bytes += size

    def remove(self, cmid: ClientMessageId) -> None:
        """It was not kept after all."""
        self._bytes -= self._sizes.pop(cmid, 0)
        self._changed.ring()

    def settle(self, cmid: ClientMessageId, outcome: Receipt | Exception) -> None:
        """It has its outcome: whoever waits for it gets it."""
        self.remove(cmid)
        future = self._waiting.pop(cmid, None)
        if future is not None:
            _give(future, outcome)

    def stop(self, error: Exception) -> None:
        """Nothing is settled from now on: everybody who waits gets this error."""
        for future in self._waiting.values():
            _give(future, error)
        self._waiting.clear()
        self._changed.ring()

    async def outcome(self, cmid: ClientMessageId) -> Receipt:
        """Wait until it is settled. Cancelling one waiter leaves the others."""
        future = self._waiting.get(cmid)
        if future is None:
            future = self._waiting[cmid] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(future)

    async def room_for(self, envelopes: Sequence[SendEnvelope], stopped: Callable[[], StopReason | None]) -> None:
        """Return when one more such send may be added, or as soon as `stopped` says that nothing will move any more.

        With nothing open, one send always may.
        """
        settings = self._settings
        size = wire_bytes(envelopes)
        while self._sizes and (
            len(self._sizes) >= settings.pending_max or self._bytes + size > settings.pending_bytes_max
        ):
            if stopped() is not None:
                return
            await self._changed.wait()


def _give(future: asyncio.Future[Receipt], outcome: Receipt | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Receipt):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
        future.exception()  # whoever still waits gets it; nobody has to
