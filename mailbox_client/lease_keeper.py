"""Keeps an issuer of client message ids in leases: the first, a spare ahead of need, and one at the server's time."""

from __future__ import annotations

import secrets

from mailbox_client.client_message_ids import ClientMessageIds
from mailbox_client.local_store import LocalStore, StoreFault
from mailbox_client.settings import ClientSettings
from mailbox_client.store_calls import StoreCalls
from protocol.client_message_id import (
    SERVER_TIME_SHIFT,
    SKIP_BITS,
    CorruptHighWater,
    OrdinalLease,
    OrdinalsExhausted,
)
from protocol.ids import DeviceId


class LeaseKeeper:
    """Reserves leases in the store, each skipping at random, so that no backup brings an id back (ADR 0100)."""

    def __init__(self, store: LocalStore, calls: StoreCalls, device: DeviceId, settings: ClientSettings) -> None:
        self._store = store
        self._calls = calls
        self._device = device
        self._settings = settings

    async def first(self) -> ClientMessageIds:
        """An issuer with a first lease. Raises StoreFault, CorruptHighWater, OrdinalsExhausted."""
        lease = await self._calls.run(lambda: self._reserve(None))
        return ClientMessageIds(self._device, lease, outstanding_max=self._settings.outstanding_max)

    async def renew(self, ids: ClientMessageIds, *, learned_ms: int | None, server_now_ms: int | None) -> None:
        """Add a lease if one is due. `learned_ms`: the server's time, where it has only just become known.

        A failure changes nothing: what is leased goes on, and when it ends, issuing says so.
        """
        try:
            if learned_ms is not None and ids.current_first < learned_ms << SERVER_TIME_SHIFT:
                ids.start_again_at(await self._calls.run(lambda: self._reserve(learned_ms)))
            elif ids.wants_lease:
                ids.add_lease(await self._calls.run(lambda: self._reserve(server_now_ms)))
        except (StoreFault, OrdinalsExhausted, CorruptHighWater):
            pass

    def _reserve(self, server_now_ms: int | None) -> OrdinalLease:
        return self._store.reserve_ordinals(
            self._device,
            server_now_ms=server_now_ms,
            ordinals=self._settings.lease_ordinals,
            skip=secrets.randbits(SKIP_BITS),
        )
