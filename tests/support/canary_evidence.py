"""What a server left behind or said, laid out by place for a search: Redis and the tables."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import asyncpg
import redis


class Monitor:
    """Every command that Redis is given, names and values, publications included."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._seen: list[bytes] = []
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        assert self._listening.wait(10)

    def _listen(self) -> None:
        with self._client.monitor() as monitor:
            self._listening.set()
            try:
                for command in monitor.listen():
                    self._seen.append(str(command["command"]).encode())
            except (redis.ConnectionError, ValueError, OSError):
                return  # the server stopped

    def close(self) -> bytes:
        """Everything that was seen. Call it once the server has stopped."""
        self._thread.join(10)
        self._client.close()
        return b"\n".join(self._seen)


def stored_in_redis(url: str) -> bytes:
    with redis.Redis.from_url(url) as client:
        return repr(list(_keys_and_values(client))).encode()


def _keys_and_values(client: redis.Redis) -> Iterator[Any]:
    for key in client.keys("*"):
        yield key
        match client.type(key):
            case b"hash":
                yield client.hgetall(key)
            case b"stream":
                yield client.xrange(key)
            case b"zset":
                yield client.zrange(key, 0, -1, withscores=True)
            case b"list":
                yield client.lrange(key, 0, -1)
            case b"set":
                yield client.smembers(key)
            case _:
                yield client.get(key)


async def dumped_tables(dsn: str) -> dict[str, bytes]:
    """Every column of every table, as PostgreSQL writes it."""
    connection = await asyncpg.connect(dsn)
    try:
        columns = await connection.fetch(
            "SELECT c.table_name, c.column_name FROM information_schema.columns c JOIN information_schema.tables t"
            " USING (table_schema, table_name) WHERE t.table_type = 'BASE TABLE' AND c.table_schema = 'public'"
        )
        dump: dict[str, bytes] = {}
        for table, column in columns:
            texts = await connection.fetch(f'SELECT "{column}"::text FROM "{table}"')
            dump[f"{table}.{column}"] = "\n".join(row[0] or "" for row in texts).encode()
        assert "envelopes.envelope_bytes" in dump
        return dump
    finally:
        await connection.close()
