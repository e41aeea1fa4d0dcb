"""One PostgreSQL and one Valkey for a test run; a fresh database and an empty Valkey database for each test."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import redis

from mailboxd.embedded import EmbeddedServices
from migrations import runner
from tests.support.blocking import BlockingRunner
from tests.support.directories import servers_directory

POSTGRES_NAME: Final = "MAILBOXD_TEST_POSTGRES_DSN"  # of a role that may create databases; names no one's data
REDIS_NAME: Final = "MAILBOXD_TEST_REDIS_URL"  # its databases are emptied
REDIS_DATABASES: Final = 16

# What the disk promises is tested on clusters of their own (test_embedded.py); this one is thrown away.
FAST_AND_FORGETFUL: Final = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum_naptime": "60s",
    "min_wal_size": "80MB",  # it may lie in memory
    "max_wal_size": "512MB",
}

_END_OWN_SESSIONS: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND usename = current_user
"""

_numbers = itertools.count(1)


class Services:
    """Where tests find the two servers, and the maker of databases."""

    def __init__(self, blocking: BlockingRunner, environ: Mapping[str, str]) -> None:
        self.blocking = blocking
        self._own_dir: Path | None = None
        self._embedded: EmbeddedServices | None = None
        self._admin: asyncpg.Connection | None = None
        self._templates: dict[str, str] = {}
        self._dsn = environ.get(POSTGRES_NAME, "")
        self._redis_url = environ.get(REDIS_NAME, "")
        if not (self._dsn and self._redis_url):
            self._start_embedded()

    def close(self) -> None:
        if self._admin is not None:
            for template in self._templates.values():
                self.drop(self.dsn_of(template))
            self.blocking.run(self._admin.close())
        if self._embedded is not None:
            self.blocking.run(self._embedded.stop())
        if self._own_dir is not None:
            shutil.rmtree(self._own_dir, ignore_errors=True)

    @property
    def postgres_pid(self) -> int:
        """0 where the server is not ours."""
        return self._embedded.pids["postgres"] if self._embedded else 0

    def dsn_of(self, database: str) -> str:
        return urlunsplit(urlsplit(self._dsn)._replace(path=f"/{database}"))

    def create(self, template: str = "template0") -> str:
        """A new database of this run's role; returns its DSN."""
        name = f"mailboxd_test_{os.getpid()}_{next(_numbers)}"
        # Copying files asks for a checkpoint, which costs next to nothing here, and is several times as quick as WAL.
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY')
        return self.dsn_of(name)

    def drop(self, dsn: str) -> None:
        """Drop it whoever is connected as our role.

        Not WITH (FORCE): that asks for the right to end every session, and an autovacuum worker's is the superuser's.
        A plain DROP sends those away by itself and waits 5 s for whom we ended.
        """
        name = urlsplit(dsn).path.removeprefix("/")
        self.execute(_END_OWN_SESSIONS.format(name=name))
        self.execute(f'DROP DATABASE IF EXISTS "{name}"')

    def migrated_template(self) -> str:
        """The name of a database with the newest schema and no rows, made once a run."""
        if "migrated" not in self._templates:
            dsn = self.create()
            self.blocking.run(runner.apply(dsn))
            self._templates["migrated"] = urlsplit(dsn).path.removeprefix("/")
        return self._templates["migrated"]

    def template(self, name: str, base: str, prepare: str) -> str:
        """The name of a copy of `base` in which the script `prepare` ran, made once a run."""
        if name not in self._templates:
            dsn = self.create(base)
            self.blocking.run(_execute(dsn, prepare))
            self._templates[name] = urlsplit(dsn).path.removeprefix("/")
        return self._templates[name]

    def empty_redis(self) -> str:
        """The URL of an emptied database; taken again only many tests later."""
        parts = urlsplit(self._redis_url)
        number = next(_numbers) % REDIS_DATABASES
        if parts.scheme == "unix":
            url = f"unix://{parts.path}?db={number}"
        else:
            url = urlunsplit(parts._replace(path=f"/{number}"))
        with redis.Redis.from_url(url) as client:
            client.flushdb()
        return url

    def execute(self, sql: str) -> None:
        """One statement as the run's role, outside of any test's database."""
        self.blocking.run(self._execute(sql))

    async def _execute(self, sql: str) -> None:
        if self._admin is None or self._admin.is_closed():
            self._admin = await asyncpg.connect(self._dsn)
        await self._admin.execute(sql)

    def _start_embedded(self) -> None:
        self._own_dir = servers_directory()
        self._embedded = EmbeddedServices(self._own_dir, postgres_settings=FAST_AND_FORGETFUL)
        self.blocking.run(self._embedded.start())
        postgres = self._embedded.postgres
        if not self._dsn:
            self.blocking.run(_execute(postgres.dsn(role="postgres"), "ALTER ROLE mailboxd CREATEDB"))
            self._dsn = postgres.dsn()
        self._redis_url = self._redis_url or self._embedded.redis_url


async def _execute(dsn: str, script: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(script)
    finally:
        await connection.close()


async def set_clock_offset(connection: asyncpg.Connection, seconds: float) -> None:
    """Move the clock of this test's database: every rule of retention, expiry and windows runs on `mailboxd_now()`.

    It holds for all connections from their next statement on, and until it is set again (0 puts it back).
    """
    await connection.execute(
        "CREATE OR REPLACE FUNCTION mailboxd_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE "
        f"AS $$ SELECT clock_timestamp() + make_interval(secs => {float(seconds)!r}) $$"
    )
