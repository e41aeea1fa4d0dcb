"""Seals push routes anew after a rotation of their key, so that the old one can be retired."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from protocol.ids import DeviceId
from store.postgres import Postgres
from store.push_seal import PushSeal, SealBroken, Sealed
from store.sql_files import load_sql

_SQL: Final = load_sql("push_routes")


class Resealed(NamedTuple):
    """One page. `last` is None at the end of all routes; `broken` ones do not open and stay as they are."""

    last: DeviceId | None
    resealed: int
    broken: int


class PushReseal:
    """Only what a superseded key sealed: a key that is staged may be the current one of a newer process already."""

    def __init__(self, postgres: Postgres, seal: PushSeal, superseded: Collection[int]) -> None:
        self._postgres = postgres
        self._seal = seal
        self._superseded = sorted(superseded)

    @property
    def needed(self) -> bool:
        return bool(self._superseded)

    async def page(self, after: DeviceId, routes_max: int) -> Resealed:
        """Seal up to `routes_max` routes of devices above `after`. A route that is put meanwhile is left alone.

        Raises MailboxError UNAVAILABLE; what was written stays written.
        """
        rows = await self._postgres.fetch(_SQL["routes_to_reseal"], after, self._superseded, routes_max)
        devices: list[DeviceId] = []
        before: list[bytes] = []
        sealed: list[bytes] = []
        for row in rows:
            device, provider = DeviceId(row["device_id"]), row["provider"]
            try:
                address = self._seal.open(device, provider, Sealed(row["seal_key_id"], row["sealed_address"]))
            except SealBroken:
                continue
            devices.append(device)
            before.append(row["sealed_address"])
            sealed.append(self._seal.seal(device, provider, address).sealed)
        written = 0
        if devices:
            columns = devices, before, sealed
            written = int(await self._postgres.fetchval(_SQL["reseal_routes"], *columns, self._seal.current_key_id))
        last = DeviceId(rows[-1]["device_id"]) if len(rows) == routes_max else None
        return Resealed(last, written, len(rows) - len(devices))
