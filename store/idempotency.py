"""Idempotency-Keys of the writes that are not a SEND (seed 001, 2.5): find the first answer, or record it.

The record lives in the transaction of the write itself: claimed first, completed before the commit, gone with a
rollback. So there is no "in progress" state that a dead process could leave behind, and a refusal leaves nothing.
Key, actor and request are stored as keyed hashes; the answer holds public material only, never ciphertext or a token.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.fingerprint import InstanceSecret, actor_scope_hash, idempotency_key_hash, request_fingerprint
from protocol.packing import pack, unpack
from store.sql_files import load_sql

_SQL: Final = load_sql("idempotency")


class Operation(IntEnum):
    """What a key is for: part of the record's key. A number never changes its meaning; 1 and 2 are the SENDs'."""

    REGISTER = 10
    DEVICE_ADD = 11
    DEVICE_REVOKE = 12
    PREKEYS_PUT = 13
    PREKEY_CLAIM = 14
    PUSH_ROUTE_PUT = 15
    PUSH_ROUTE_DELETE = 16

    @property
    def label(self) -> str:
        """The name under which keys and fingerprints are hashed."""
        return self.name.lower().replace("_", "-")


class KeyedRequest(NamedTuple):
    """A write that came with an Idempotency-Key."""

    operation: Operation
    actor: bytes  # the sending device's id, or for a registration the device public key
    key: bytes  # the header's ASCII
    content: Any  # what makes it the same request: nested sequences of bytes, str, int, bool and None


class RequestRecords:
    """Looks records up under the current and the old secret, and writes them under the current one."""

    def __init__(self, current: InstanceSecret, old: InstanceSecret | None = None) -> None:
        self._current = current
        self._old = old

    async def claim(self, connection: Any, request: KeyedRequest, *, lifetime_s: int) -> Any | None:
        """The first answer to this key, or None: then the key is this transaction's, which ends with `finish`.

        Must be the first statement of its transaction: the lock order begins with the keys. Waits for another
        transaction that has the key. Raises MailboxError IDEMPOTENCY_KEY_REUSED when it belongs to another request.
        """
        if self._old is not None and (row := await connection.fetchrow(_SQL["find_record"], *_key(self._old, request))):
            return _answer(row, self._old, request)
        key = _key(self._current, request)
        claimed = await connection.fetchval(
            _SQL["claim_record"],
            *key,
            201,
            self._current.key_id,
            lifetime_s,
            _fingerprint(self._current, request),
        )
        if claimed:
            return None
        row = await connection.fetchrow(_SQL["find_record"], *key)
        if row is None:  # it ran out or was cleaned up between the two statements: once in a key's life
            raise MailboxError(ErrorCode.UNAVAILABLE, retry_after_ms=100, outcome=Outcome.NOT_COMMITTED)
        return _answer(row, self._current, request)

    async def finish(self, connection: Any, request: KeyedRequest, answer: Any) -> None:
        """Complete the claim with the answer that repeats get: plain values, public material only."""
        await connection.execute(_SQL["finish_record"], *_key(self._current, request), pack(answer))


def _key(secret: InstanceSecret, request: KeyedRequest) -> tuple[bytes, bytes, int]:
    return (
        actor_scope_hash(secret.key, request.actor),
        idempotency_key_hash(secret.key, request.operation.label, request.key),
        request.operation.value,
    )


def _fingerprint(secret: InstanceSecret, request: KeyedRequest) -> bytes:
    return request_fingerprint(secret.key, request.operation.label, request.content)


def _answer(row: Any, secret: InstanceSecret, request: KeyedRequest) -> Any:
    if row["request_fingerprint"] != _fingerprint(secret, request):
        raise MailboxError(ErrorCode.IDEMPOTENCY_KEY_REUSED, outcome=Outcome.NOT_COMMITTED)
    return unpack(row["response_body_safe"])
