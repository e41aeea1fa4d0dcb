"""The same rule on the PostgreSQL that Debian installs: production may run any version from 15 on."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import pytest

from migrations import runner
from protocol.errors import ErrorCode, MailboxError
from store.records import AckRequest
from tests.property.test_submit_rule import a_run
from tests.support.blocking import BlockingRunner
from tests.support.database import connected
from tests.support.debian_postgres import require_debian_postgres
from tests.support.mailboxes import a_send, an_envelope, stores
from tests.support.seeds import random_seeds
from tests.support.services import set_clock_offset


async def make_instance(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            """INSERT INTO instances (instance_id, policy, restore_epoch)
               VALUES (gen_random_uuid(), '{}', gen_random_uuid())"""
        )
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def older_database(blocking: BlockingRunner) -> Iterator[str]:
    server = require_debian_postgres()
    blocking.run(server.start())
    blocking.run(runner.apply(server.dsn))
    blocking.run(make_instance(server.dsn))
    yield server.dsn
    blocking.run(server.stop())


@pytest.mark.parametrize("seed", random_seeds(1))
async def test_on_debians_postgresql_every_request_gets_the_verdict_of_the_rule(older_database: str, seed: int) -> None:
    assert await a_run(older_database, seed)


async def test_on_debians_postgresql_mail_is_accepted_read_acked_and_refused(older_database: str) -> None:
    async with connected(older_database) as connection:
        await set_clock_offset(connection, 0.0)  # the run above froze it
    async with stores(older_database) as gateway:
        sender, recipient = await gateway.devices(2)
        envelopes = [an_envelope(recipient) for _ in range(3)]
        for envelope in envelopes:
            await gateway.submit.submit(a_send(sender, envelope, echo=True))
        assert await gateway.whole_mailbox(recipient) == [envelope.mid for envelope in envelopes]
        await gateway.acks.ack(AckRequest(recipient, (envelopes[0].mid,)), session=1)
        assert (await gateway.reader.status(recipient)).pending_entries == 2
        with pytest.raises(MailboxError) as refused:
            await gateway.submit.submit(a_send(sender, envelopes[0]._replace(body=b"another")))
        assert refused.value.code is ErrorCode.MESSAGE_ID_CONFLICT
