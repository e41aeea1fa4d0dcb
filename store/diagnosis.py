"""What PostgreSQL and Redis say of themselves, for `mailboxd doctor`. Reads only, works without a schema."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import asyncpg

from store.faults import DRIVER_ERRORS
from store.redis_client import REDIS_TROUBLE, connect, whole
from store.sql_files import load_sql

ANSWER_TIMEOUT_S: Final = 10.0

_SQL: Final = load_sql("diagnosis")


class NotReached(Exception):
    """The service did not answer; the text says why and holds no password."""


class PostgresFacts(NamedTuple):
    """`now_ms` is the database's clock at the middle of the question that `asked_ms` of the caller frames."""

    version: int  # as server_version_num: 180006 is 18.6
    version_text: str
    now_ms: int
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    in_recovery: bool
    superuser: bool
    max_connections: int


class RedisFacts(NamedTuple):
    version: tuple[int, ...]  # the Redis version that it is compatible with
    version_text: str
    maxmemory_policy: str


async def read_postgres(dsn: str) -> PostgresFacts:
    """Raises NotReached."""
    try:
        connection = await asyncpg.connect(dsn, timeout=ANSWER_TIMEOUT_S)
        try:
            return PostgresFacts(*await connection.fetchrow(_SQL["read_server"], timeout=ANSWER_TIMEOUT_S))
        finally:
            connection.terminate()
    except (*DRIVER_ERRORS, ValueError) as error:
        raise NotReached(str(error) or f"no answer within {ANSWER_TIMEOUT_S:.0f} s") from error


async def read_redis(url: str) -> RedisFacts:
    """Raises NotReached."""
    try:
        redis = connect(url)
    except ValueError as error:
        raise NotReached(str(error)) from error
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            info = await whole(redis.info())
    except REDIS_TROUBLE as error:
        raise NotReached(str(error) or f"no answer within {ANSWER_TIMEOUT_S:.0f} s") from error
    finally:
        await redis.aclose()
    version = str(info.get("redis_version", "0"))
    name = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {version}"
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    return RedisFacts(numbers, name, str(info.get("maxmemory_policy", "unknown")))
