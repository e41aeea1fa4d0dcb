"""What a server left behind or said, laid out by place for a search: Redis and the tables."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import redis

from mailboxd.unprivileged import ServerUser
from mailboxd.wheel_binaries import Programs


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


def pg_dump(dsn: str) -> dict[str, bytes]:
    """What the program writes: each table's rows as text, all that is no row (schema, comments), and an archive.

    The archive is not compressed: a value in it would lie there as it is.
    """

    us = ServerUser(os.getuid(), os.getgid(), "us", switches=False)
    program = Programs(Path(), us).postgres_bin() / "pg_dump"

    def written(*options: str) -> bytes:
        command = [str(program), *options, "--dbname", dsn]
        return subprocess.run(command, capture_output=True, check=True, timeout=60, env={"PATH": os.defpath}).stdout

    places, table, rest = {}, b"", []
    for line in written("--format=plain").splitlines():
        if line.startswith(b"COPY "):
            table = line.split()[1].removeprefix(b"public.")
            places[f"pg_dump {table.decode()}"] = b""
        elif line == b"\\.":
            table = b""
        elif table:
            places[f"pg_dump {table.decode()}"] += line + b"\n"
        else:
            rest.append(line)
    places["pg_dump: no rows"] = b"\n".join(rest)
    places["pg_dump: archive"] = written("--format=custom", "--compress=none")
    assert places["pg_dump envelopes"].count(b"\n") > 0
    assert places["pg_dump: archive"].startswith(b"PGDMP")
    return places


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
