"""The one instance row and the public halves of its signing keys (seed 001, 2.1), made by `mailboxd init`.

Works on a plain connection: `store.postgres` refuses a database that holds no instance yet.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import asyncpg

from protocol.errors import ErrorCode, MailboxError
from store.faults import DRIVER_ERRORS, classify, not_connected, to_mailbox_error
from store.policy_rules import Policy
from store.postgres import Postgres
from store.sql_files import load_sql

CONNECT_TIMEOUT_S: Final = 5.0
ID_BYTES: Final = 16

_SQL: Final = load_sql("instance")


class Instance(NamedTuple):
    """What `init` found or made."""

    instance_id: bytes
    policy_version: int
    created: bool


class ForeignKeyring(Exception):
    """The keyring at hand is not the one that this instance was made with."""


async def has_instance(dsn: str) -> bool:
    """Whether this database belongs to an instance already. Raises MailboxError UNAVAILABLE as all here do."""
    async with _connected(dsn) as connection:
        return await connection.fetchrow(_SQL["read_instance"]) is not None


async def read_signing_keys(dsn: str) -> dict[str, bytes] | None:
    """The public signing keys that count, by `kid`; None when the database holds no instance."""
    async with _connected(dsn) as connection:
        if await connection.fetchrow(_SQL["read_instance"]) is None:
            return None
        return {row["kid"]: row["public_key"] for row in await connection.fetch(_SQL["live_signing_keys"])}


async def ensure_instance(dsn: str, *, policy: Policy, signing_keys: Mapping[str, bytes]) -> Instance:
    """Create the instance row when there is none, and take over the public signing keys by `kid`. Repeatable.

    `policy` counts only for a new instance. Raises ForeignKeyring when there is an instance and none of its keys is
    among `signing_keys`: with another keyring every cursor, token and idempotency record would be lost. Raises
    MailboxError UNAVAILABLE when the database cannot be reached.
    """
    async with _connected(dsn) as connection, connection.transaction():
        status = await connection.execute(
            _SQL["create_instance"], secrets.token_bytes(ID_BYTES), policy.to_mapping(), secrets.token_bytes(ID_BYTES)
        )
        created = str(status).endswith(" 1")
        if not created:
            known = await connection.fetch(_SQL["live_signing_keys"])
            if known and not any(signing_keys.get(row["kid"]) == row["public_key"] for row in known):
                raise ForeignKeyring
        await _take_over(connection, signing_keys)
        row = await connection.fetchrow(_SQL["read_instance"])
        return Instance(row["instance_id"], row["policy_version"], created)


async def take_over_signing_keys(dsn: str, signing_keys: Mapping[str, bytes]) -> None:
    """Publish the keys that the keyring holds now and mark all others retired."""
    async with _connected(dsn) as connection, connection.transaction():
        await _take_over(connection, signing_keys)


async def read_instance_id(postgres: Postgres) -> bytes:
    row = await postgres.fetchrow(_SQL["read_instance"])
    if row is None:
        raise MailboxError(ErrorCode.UNAVAILABLE, "There is no instance in this database yet: run mailboxd init.")
    return bytes(row["instance_id"])


async def fingerprint_key_in_use(postgres: Postgres, key_id: int) -> bool:
    """Whether an idempotency record that still counts was written under this key. Reads all of them when none was."""
    return bool(await postgres.fetchval(_SQL["fingerprint_key_in_use"], key_id))


async def push_token_key_in_use(postgres: Postgres, key_id: int) -> bool:
    """Whether a push route is still sealed with this key."""
    return bool(await postgres.fetchval(_SQL["push_token_key_in_use"], key_id))


async def _take_over(connection: asyncpg.Connection, signing_keys: Mapping[str, bytes]) -> None:
    await connection.execute(_SQL["add_signing_keys"], list(signing_keys), list(signing_keys.values()))
    await connection.execute(_SQL["retire_signing_keys"], list(signing_keys))


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    try:
        connection = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S, target_session_attrs="read-write")
    except (*DRIVER_ERRORS, ValueError) as error:
        raise not_connected(error, within_seconds=CONNECT_TIMEOUT_S) from error
    try:
        await connection.set_type_codec("uuid", schema="pg_catalog", encoder=bytes, decoder=bytes, format="binary")
        await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
        yield connection
    except asyncpg.UndefinedTableError as error:
        raise not_connected(error, within_seconds=CONNECT_TIMEOUT_S) from error
    except DRIVER_ERRORS as error:
        raise to_mailbox_error(classify(error)) from error
    finally:
        connection.terminate()
