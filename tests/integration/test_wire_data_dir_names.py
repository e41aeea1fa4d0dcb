"""Data directories with names that mean something to PostgreSQL or in a URL."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
import redis.asyncio

from mailboxd.embedded import EmbeddedServices
from tests.support.directories import servers_directory


@pytest.fixture
def place() -> Iterator[Path]:
    """Not below pytest's directory, which is closed to the servers' user."""
    directory = servers_directory()
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.parametrize("name", ["one,two", "50%41?a=b#c & 'q' \"r\"", "über\nzwei"])
async def test_both_servers_run_in_a_directory_of_any_name(place: Path, name: str) -> None:
    async with EmbeddedServices(place / name) as services:
        connection = await asyncpg.connect(services.postgres_dsn)
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()
        client = redis.asyncio.from_url(services.redis_url)
        assert await client.ping()
        await client.aclose()
