"""Arrays as this project packs them, against the server's own reading and writing of them."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from store import array_codecs
from store.postgres import Postgres
from tests.support.mailboxes import stores

SAMPLES: dict[str, list[Any]] = {
    "bool": [True, False, None],
    "bytea": [b"", b"\x00\xff", b"x" * 70_000, None],
    "smallint": [-(2**15), 0, 2**15 - 1, None],
    "integer": [-(2**31), -1, 0, 2**31 - 1, None],
    "bigint": [-(2**63), 0, 2**63 - 1, None],
}


async def test_the_servers_reading_and_writing_of_an_array_is_ours(database: str) -> None:
    async with stores(database) as gateway:
        for name, values in SAMPLES.items():
            for array in (values, values[:-1], []):
                row = await gateway.postgres.fetchrow(
                    f"SELECT $1::{name}[] AS same, ARRAY(SELECT x FROM unnest($1::{name}[]) AS x) AS rebuilt", array
                )
                assert row is not None
                assert (row["same"], row["rebuilt"]) == (array, array)
        ids = [bytes(range(16)), bytes(16), None]
        text = await gateway.postgres.fetchval("SELECT ($1::uuid[])::text", ids)
        assert text == "{00010203-0405-0607-0809-0a0b0c0d0e0f,00000000-0000-0000-0000-000000000000,NULL}"
        assert await gateway.postgres.fetchval("SELECT $1::text::uuid[]", text) == ids


async def test_every_connection_packs_whole_arrays(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncpg has no public way to this: a release that took the private one away would be noticed here."""
    packed: list[str] = []

    def watched(name: str, encode: Any) -> Any:
        def encoder(values: Any) -> Any:
            packed.append(name)
            return encode(values)

        return encoder

    codecs = {key: (watched(key[1], encode), decode) for key, (encode, decode) in array_codecs.CODECS.items()}
    monkeypatch.setattr(array_codecs, "CODECS", codecs)
    postgres = Postgres(database)
    await postgres.open()
    try:
        await postgres.fetchval("SELECT cardinality($1::integer[])", [1, 2])
        lane = postgres.lane("test")
        await lane.call("SELECT cardinality($1::uuid[])", [bytes(16)])
        await lane.close()
    finally:
        await postgres.close()
    assert packed == ["_int4", "_uuid"]


async def test_a_value_that_does_not_fit_never_reaches_the_server(database: str) -> None:
    async with stores(database) as gateway, gateway.postgres.connection() as connection:
        with pytest.raises(asyncpg.DataError):
            await connection.fetchval("SELECT $1::uuid[]", [b"short"])
        assert await connection.fetchval("SELECT 1") == 1
