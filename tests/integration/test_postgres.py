"""Connections: bounded waits, epochs, and databases that must not be written to."""

from __future__ import annotations

import asyncio

import pytest

from protocol.errors import ErrorCode, MailboxError, Outcome
from store.postgres import Postgres
from tests.support.mailboxes import a_send, an_envelope, stores


async def test_a_database_without_an_instance_says_what_to_do(uninitialised_database: str) -> None:
    postgres = Postgres(uninitialised_database)
    with pytest.raises(MailboxError, match="mailboxd init"):
        await postgres.open()


async def test_a_database_that_cannot_be_reached_is_unavailable_and_nothing_was_written() -> None:
    postgres = Postgres("postgresql://nobody:a-secret@127.0.0.1:1/none")
    with pytest.raises(MailboxError, match=r"PostgreSQL cannot be reached: .*127\.0\.0\.1.* 1") as refused:
        await postgres.open()
    assert (refused.value.code, refused.value.outcome) == (ErrorCode.UNAVAILABLE, Outcome.NOT_COMMITTED)
    assert "a-secret" not in refused.value.message


async def test_a_database_without_the_schema_says_what_to_do(empty_database: str) -> None:
    with pytest.raises(MailboxError, match="mailboxd migrate apply"):
        await Postgres(empty_database).open()


async def test_an_exhausted_pool_answers_within_two_seconds(database: str) -> None:
    postgres = Postgres(database, pool_max=1)
    await postgres.open()
    loop = asyncio.get_running_loop()
    async with postgres.connection():
        started = loop.time()
        with pytest.raises(MailboxError) as refused:
            await postgres.fetchval("SELECT 1")
        assert loop.time() - started < 8.0
    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert await postgres.fetchval("SELECT 1") == 1
    await postgres.close()


async def test_a_cancelled_call_drops_its_connection_and_the_pool_goes_on(database: str) -> None:
    postgres = Postgres(database, pool_max=1)
    await postgres.open()
    call = asyncio.ensure_future(postgres.fetchval("SELECT pg_sleep(30)"))
    await asyncio.sleep(0)
    async with asyncio.timeout(10.0):
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await postgres.fetchval("SELECT 7") == 7
    await postgres.close()


async def test_the_epoch_differs_after_restore_and_is_read_by_every_new_connection(database: str) -> None:
    before, after = Postgres(database), Postgres(database)
    await before.open()
    assert before.epoch != bytes(8)
    await before.execute("UPDATE instances SET restore_epoch = gen_random_uuid()")
    await after.open()
    assert after.epoch != before.epoch
    await before.close()
    await after.close()


async def test_a_restored_database_takes_no_writes_until_it_is_declared_done(database: str) -> None:
    restored = f"{database}&options=-c%20mailboxd.restored%3Ddrill"  # as the drill's postgresql.conf says it
    async with stores(restored) as gateway:
        sender, recipient = await gateway.devices(2)
        with pytest.raises(MailboxError) as refused:
            await gateway.submit.submit(a_send(sender, an_envelope(recipient)))
        assert (refused.value.code, refused.value.outcome) == (ErrorCode.UNAVAILABLE, Outcome.NOT_COMMITTED)
        await gateway.postgres.execute("UPDATE instances SET restored_done = 'drill'")
        await gateway.submit.submit(a_send(sender, an_envelope(recipient)))


async def test_a_foreign_system_identifier_refuses_writes(database: str) -> None:
    async with stores(database) as gateway:
        sender, recipient = await gateway.devices(2)
        await gateway.postgres.execute("UPDATE instances SET system_identifier = 4711")
        with pytest.raises(MailboxError) as refused:
            await gateway.submit.submit(a_send(sender, an_envelope(recipient)))
        assert refused.value.outcome is Outcome.NOT_COMMITTED


async def test_a_read_only_server_is_left_for_another_one(database: str) -> None:
    """25006 throws the connection away, so that a multi-host DSN finds the new primary at the next call."""
    async with stores(database) as gateway:
        sender, recipient = await gateway.devices(2)
        await gateway.submit.submit(a_send(sender, an_envelope(recipient)))
        name = await gateway.postgres.fetchval("SELECT current_database()")
        await gateway.postgres.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        await gateway.postgres.fetch(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE application_name LIKE '%submit%' AND datname = $1""",
            name,
        )
        for _ in range(2):
            with pytest.raises(MailboxError) as refused:
                await gateway.submit.submit(a_send(sender, an_envelope(recipient)))
            assert refused.value.code is ErrorCode.UNAVAILABLE
        async with gateway.postgres.connection() as connection:
            await connection.execute("SET default_transaction_read_only = off")
            await connection.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        await gateway.submit.submit(a_send(sender, an_envelope(recipient)))
        assert len(await gateway.whole_mailbox(recipient)) == 2
