"""Calls of the local store beside an event loop: one at a time, in a thread of their own where they wait for a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from mailbox_client.errors import ClientStopped, StopReason
from mailbox_client.local_store import LocalStore

LEAVE_TIMEOUT_S: Final = 10.0
Result = TypeVar("Result")


class StoreCalls:
    """Every call runs after the one before it has ended, also where that one's caller was cancelled."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, "mailbox-store") if store.blocks else None
        self._left: asyncio.Future[None] | None = None  # the last call, once it was asked for

    async def run(self, call: Callable[[], Result]) -> Result:
        """Make one call, which brings its own transaction. Raises ClientStopped after `leave`."""
        if self._left is not None:
            raise ClientStopped(StopReason.CLOSED)
        if self._thread is None:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def transacted(self, call: Callable[[], Result]) -> Result:
        """Make one call inside a transaction."""

        def inside() -> Result:
            with self._store.transaction():
                return call()

        return await self.run(inside)

    async def leave(self, last: Callable[[], None]) -> None:
        """Make this the last call, behind all others. On return it was made, unless the disk hangs.

        SQLite brings the process down if its connection is closed under a call, and a cancelled caller leaves its call
        running: so the closing queues up behind it. Safe to cancel and to call again.
        """
        if self._left is None:
            if self._thread is None:
                last()
                return
            self._left = asyncio.wrap_future(self._thread.submit(last))
            self._thread.shutdown(wait=False)
        await asyncio.wait((self._left,), timeout=LEAVE_TIMEOUT_S)
        if self._left.done():
            self._left.result()
