"""Where a device is woken: one route each, its address sealed (seed 001, 2.7). Content never goes that way."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.ids import ID_BYTES, DeviceId, WakeRouteId
from store.auth import require_active
from store.idempotency import KeyedRequest, Operation, RequestRecords
from store.policy_rules import Policy
from store.postgres import Postgres
from store.push_seal import PushSeal, SealBroken, Sealed
from store.sql_files import load_sql

ACTIVE: Final = 1  # mailboxes.state

_SQL: Final = load_sql("push_routes")


class PushAddress(NamedTuple):
    """Where one provider pushes to; all of `settings` is secret.

    Its texts by provider: webpush (endpoint, with or without p256dh and auth) · apns (token, topic) · fcm (token) ·
    gateway (url).
    """

    provider: str
    settings: Mapping[str, str]
    mode: str = "background"  # apns also: alert


class PushRouteState(NamedTuple):
    """What the owner is told of the route: never the address."""

    provider: str
    status: str  # active, gone, misconfigured
    wake_route_id: WakeRouteId
    created_at_ms: int


class PushRoute(NamedTuple):
    """A route as the worker uses it. `version` is what a provider's verdict on it applies to."""

    wake_route_id: WakeRouteId
    version: int
    status: str
    address: PushAddress


class PushRouteStore:
    """One route a device: put, told about, deleted by its owner, opened by the worker."""

    def __init__(
        self, postgres: Postgres, seal: PushSeal, records: RequestRecords, policy: Callable[[], Policy]
    ) -> None:
        self._postgres = postgres
        self._seal = seal
        self._records = records
        self._policy = policy

    async def put(self, device: DeviceId, address: PushAddress, *, key: bytes | None) -> PushRouteState:
        """Make this the device's route. The same address again leaves an active route as it is.

        An open wake intent becomes due, so that waiting mail is announced over the new route. Raises DEVICE_REVOKED.
        """
        content = (address.provider, sorted(address.settings.items()), address.mode)
        keyed = key and KeyedRequest(Operation.PUSH_ROUTE_PUT, device, key, content)
        async with self._postgres.transaction() as connection:
            if keyed and (answer := await self._claim(connection, keyed)) is not None:
                return PushRouteState(*answer)
            await require_active(connection, device)
            state = await self._write(connection, device, address)
            if keyed:
                await self._records.finish(connection, keyed, state)
        return state

    async def _write(self, connection: Any, device: DeviceId, address: PushAddress) -> PushRouteState:
        # Before the route (lock order): a worker that judges "no route" completes the intent under this lock.
        # And a revocation that came first has closed the mailbox: its device must not get a route again.
        if await connection.fetchval(_SQL["lock_mailbox"], device) != ACTIVE:
            raise MailboxError(ErrorCode.DEVICE_REVOKED, outcome=Outcome.NOT_COMMITTED)
        row = await connection.fetchrow(_SQL["lock_route"], device)
        if row is not None and self._stands(device, row, address):
            return _state(row)
        sealed = self._seal.seal(device, address.provider, address.settings)
        row = await connection.fetchrow(
            _SQL["write_route"],
            device,
            secrets.token_bytes(ID_BYTES),
            address.provider,
            address.mode,
            sealed.sealed,
            sealed.key_id,
        )
        await connection.execute(_SQL["announce_route"], device)
        return _state(row)

    async def state(self, device: DeviceId) -> PushRouteState | None:
        row = await self._postgres.fetchrow(_SQL["read_route"], device)
        return None if row is None else _state(row)

    async def route(self, device: DeviceId) -> PushRoute | None:
        """The route with its address, for pushing. Raises SealBroken when it does not open."""
        row = await self._postgres.fetchrow(_SQL["read_route"], device)
        if row is None:
            return None
        address = PushAddress(row["provider"], self._open(device, row), row["mode"])
        return PushRoute(row["wake_route_id"], row["version"], row["status"], address)

    async def delete(self, device: DeviceId, *, key: bytes | None) -> None:
        """From here on the device is not woken. Nothing to delete is fine. Raises DEVICE_REVOKED."""
        keyed = key and KeyedRequest(Operation.PUSH_ROUTE_DELETE, device, key, ())
        async with self._postgres.transaction() as connection:
            if keyed and await self._claim(connection, keyed) is not None:
                return
            await require_active(connection, device)
            await connection.execute(_SQL["delete_route"], device)
            if keyed:
                await self._records.finish(connection, keyed, ())

    def _stands(self, device: DeviceId, row: Any, address: PushAddress) -> bool:
        """Whether the row needs no writing: active, the same address, sealed with the key that seals now."""
        if row["status"] != "active" or row["seal_key_id"] != self._seal.current_key_id:
            return False
        try:
            return PushAddress(row["provider"], self._open(device, row), row["mode"]) == address
        except SealBroken:
            return False

    def _open(self, device: DeviceId, row: Any) -> dict[str, str]:
        return self._seal.open(device, row["provider"], Sealed(row["seal_key_id"], row["sealed_address"]))

    async def _claim(self, connection: Any, keyed: KeyedRequest) -> Any | None:
        return await self._records.claim(connection, keyed, lifetime_s=self._policy().idempotency_ttl_s)


def _state(row: Any) -> PushRouteState:
    return PushRouteState(row["provider"], row["status"], row["wake_route_id"], row["created_ms"])
