"""Prekeys: uploaded by their owner, claimed by others, each one-time key handed out once (seed 001, 2.2).

A claim takes its keys available → reserved → consumed in one transaction, and they are never handed back: a claim whose
answer was lost costs a key, a key given twice would cost secrecy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.ids import DeviceId, IdentityId
from protocol.limits import PREKEYS_LOW, PREKEYS_STORED_MAX
from store.auth import require_active
from store.idempotency import KeyedRequest, Operation, RequestRecords
from store.policy_rules import Policy
from store.postgres import Postgres
from store.sql_files import load_sql

_SQL: Final = load_sql("prekeys")


class Prekey(NamedTuple):
    key_id: int
    public_key: bytes


class LastResortPrekey(NamedTuple):
    """Given when no one-time key is, again and again; its signature is for the claimer to judge."""

    key_id: int
    public_key: bytes
    signature: bytes


class ClaimedDevice(NamedTuple):
    device_id: DeviceId
    device_public_key: bytes
    last_resort: LastResortPrekey | None
    one_time: Prekey | None


class Claimed(NamedTuple):
    """`running_low` says which owners to tell, and how many keys each has left."""

    identity_public_bundle: bytes
    devices: tuple[ClaimedDevice, ...]
    running_low: tuple[tuple[DeviceId, int], ...] = ()


class PrekeyStore:
    """Uploads, counts and claims."""

    def __init__(self, postgres: Postgres, records: RequestRecords, policy: Callable[[], Policy]) -> None:
        self._postgres = postgres
        self._records = records
        self._policy = policy

    async def upload(
        self, device: DeviceId, one_time: Sequence[Prekey], last_resort: LastResortPrekey | None, *, key: bytes | None
    ) -> int:
        """Keep all of these keys or none, and return how many one-time keys are available then.

        Keys that are there already change nothing. Raises BAD_REQUEST (a key_id again with another key),
        PREKEY_LIMIT (more than 1,000 available), DEVICE_REVOKED.
        """
        keyed = key and KeyedRequest(Operation.PREKEYS_PUT, device, key, (tuple(one_time), last_resort))
        async with self._postgres.transaction() as connection:
            if keyed and (answer := await self._claim_record(connection, keyed)) is not None:
                return int(answer[0])
            standing = await connection.fetchrow(_SQL["lock_uploader"], device)
            if standing is None or standing["status"] != "active":
                raise _refusal(ErrorCode.DEVICE_REVOKED)
            if standing["identity_status"] != "active":
                raise _refusal(ErrorCode.FORBIDDEN)
            await self._refuse_other_keys(connection, device, one_time, last_resort)
            if one_time:
                ids, public_keys = zip(*dict(one_time).items(), strict=True)
                await connection.execute(_SQL["insert_prekeys"], device, ids, public_keys)
            if last_resort is not None:
                await connection.execute(_SQL["write_last_resort_prekey"], device, *last_resort)
            left = int(await connection.fetchval(_SQL["count_available"], device))
            if one_time and left > PREKEYS_STORED_MAX:
                raise _refusal(ErrorCode.PREKEY_LIMIT)
            if keyed:
                await self._records.finish(connection, keyed, (left,))
        return left

    async def _refuse_other_keys(
        self, connection: Any, device: DeviceId, one_time: Sequence[Prekey], last_resort: LastResortPrekey | None
    ) -> None:
        asked = [*one_time, *([Prekey(*last_resort[:2])] if last_resort is not None else ())]
        known: dict[int, bytes] = {}
        for row in await connection.fetch(_SQL["known_prekeys"], device, [prekey.key_id for prekey in asked]):
            known[row["key_id"]] = row["public_key"]
        for key_id, public_key in asked:
            if known.setdefault(key_id, public_key) != public_key:
                raise _refusal(ErrorCode.BAD_REQUEST, "A key_id stands for one key for ever; this one has another.")

    async def count(self, device: DeviceId) -> int:
        """How many one-time keys can still be claimed."""
        return int(await self._postgres.fetchval(_SQL["count_available"], device))

    async def low(self, device: DeviceId) -> int | None:
        """How many are left when that is fewer than 20, else None: what WELCOME repeats."""
        left = await self.count(device)
        return left if left < PREKEYS_LOW else None

    async def claim(
        self,
        claimer: DeviceId,
        identity: IdentityId,
        *,
        key: bytes | None,
        rate_refused_ms: int | None,
        one_time_allowed: bool,
    ) -> Claimed:
        """One one-time key of each active device, None where there is none left or `one_time_allowed` is false.

        Raises NOT_FOUND (no such identity), RATE_LIMITED (`rate_refused_ms`, but a repeat still gets its answer),
        DEVICE_REVOKED (the claimer is).
        """
        keyed = key and KeyedRequest(Operation.PREKEY_CLAIM, claimer, key, (identity,))
        async with self._postgres.transaction() as connection:
            if keyed and (answer := await self._claim_record(connection, keyed)) is not None:
                return await self._first_answer(connection, identity, answer)
            await require_active(connection, claimer)
            if rate_refused_ms is not None:
                raise MailboxError(
                    ErrorCode.RATE_LIMITED, retry_after_ms=rate_refused_ms, outcome=Outcome.NOT_COMMITTED
                )
            claimed = await self._take(connection, identity, one_time_allowed)
            if keyed:
                answer = [(device.device_id, device.last_resort, device.one_time) for device in claimed.devices]
                await self._records.finish(connection, keyed, answer)
        return claimed

    async def _take(self, connection: Any, identity: IdentityId, one_time_allowed: bool) -> Claimed:
        bundle = await connection.fetchval(_SQL["claimed_identity"], identity)
        if bundle is None:
            raise _refusal(ErrorCode.NOT_FOUND)
        rows = await connection.fetch(_SQL["claimed_devices"], identity)
        device_ids = [row["device_id"] for row in rows]
        taken: dict[bytes, Prekey] = {}
        if one_time_allowed:
            for row in await connection.fetch(_SQL["reserve_prekeys"], device_ids):
                taken[row["device_id"]] = Prekey(row["key_id"], row["public_key"])
            key_ids = [prekey.key_id for prekey in taken.values()]
            await connection.execute(_SQL["consume_prekeys"], list(taken), key_ids)
        devices = tuple(
            ClaimedDevice(
                row["device_id"],
                row["device_public_key"],
                None if row["key_id"] is None else LastResortPrekey(row["key_id"], row["public_key"], row["signature"]),
                taken.get(row["device_id"]),
            )
            for row in rows
        )
        low = await connection.fetch(_SQL["running_low"], list(taken), PREKEYS_LOW)
        return Claimed(bundle, devices, tuple((row["device_id"], row["left_over"]) for row in low))

    async def _first_answer(self, connection: Any, identity: IdentityId, answer: Sequence[Any]) -> Claimed:
        """The keys as first given; what never changes (bundle, device keys) is read again rather than recorded."""
        bundle = await connection.fetchval(_SQL["claimed_identity"], identity)
        if bundle is None:
            raise _refusal(ErrorCode.NOT_FOUND)
        rows = await connection.fetch(_SQL["device_public_keys"], [device for device, _, _ in answer])
        public_keys = dict(map(tuple, rows))
        return Claimed(
            bundle,
            tuple(
                ClaimedDevice(
                    DeviceId(device),
                    public_keys[device],
                    None if last_resort is None else LastResortPrekey(*last_resort),
                    None if one_time is None else Prekey(*one_time),
                )
                for device, last_resort, one_time in answer
            ),
        )

    async def _claim_record(self, connection: Any, keyed: KeyedRequest) -> Sequence[Any] | None:
        answer: Sequence[Any] | None = await self._records.claim(
            connection, keyed, lifetime_s=self._policy().idempotency_ttl_s
        )
        return answer


def _refusal(code: ErrorCode, message: str | None = None) -> MailboxError:
    return MailboxError(code, message, outcome=Outcome.NOT_COMMITTED)
