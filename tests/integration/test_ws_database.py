"""What sessions see while the database is away, and when it comes back as another history."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote, urlsplit

import aiohttp
import pytest

from protocol.errors import ErrorCode
from protocol.frames import (
    Ack,
    Error,
    GoAway,
    Hello,
    MailboxBatch,
    Ping,
    Pong,
    PullMailbox,
    Send,
    SendAck,
    SendEnvelope,
)
from tests.support.gateways import Device, GatewayLab, LocalGateway
from tests.support.mailboxes import a_cmid, a_mid
from tests.support.raw_client import RawClient
from tests.support.services import Services
from tests.support.waiting import eventually


@pytest.fixture
async def gateway(lab: GatewayLab) -> AsyncIterator[LocalGateway]:
    async with lab.gateway(sweep_s=0.5) as running:
        yield running


@pytest.fixture
async def alice(lab: GatewayLab) -> Device:
    return await lab.device()


async def readiness(gateway: LocalGateway) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{gateway.gateway.ports[1].port}/readyz") as answer,
    ):
        return answer.status, str((await answer.json())["status"])


async def serves(client: RawClient) -> None:
    client.send(Ping("here"))
    assert (await client.find(Pong)).t == "here"


@asynccontextmanager
async def database_away(services: Services, dsn: str) -> AsyncIterator[None]:
    """Nobody gets in, and whoever was in is thrown out."""
    name = urlsplit(dsn).path.removeprefix("/")
    services.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS false')
    services.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    try:
        yield
    finally:
        services.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS true')


async def test_sessions_outlive_a_database_that_goes_and_comes_back(
    lab: GatewayLab, gateway: LocalGateway, services: Services, alice: Device
) -> None:
    bob = await lab.device()
    sender, receiver = await gateway.session(alice), await gateway.session(bob)
    send = Send(a_cmid(), (SendEnvelope(bob.id, a_mid(), 1, b"x"),), echo=False)
    assert await readiness(gateway) == (200, "ready")
    async with database_away(services, lab.dsn):
        for frame in (send, Ack(1, (a_mid(),)), PullMailbox(2)):
            sender.send(frame)
            error = await sender.find(Error, within_seconds=40)
            assert error.code is ErrorCode.UNAVAILABLE
            assert error.retryable
            assert error.retry_after_ms is not None
        newcomer = await gateway.socket()
        newcomer.send(Hello(bob.token))
        closed = await newcomer.closed(within_seconds=40)
        assert closed.code == 4503
        assert "reconnect_after_ms" in closed.reason

        async def unready() -> bool:
            return await readiness(gateway) == (503, "database")

        await eventually(unready, what="it says that it is not ready")
        await serves(receiver)

    async def ready() -> bool:
        return (await readiness(gateway))[0] == 200

    await eventually(ready, within_seconds=20, what="ready again without hands")
    sender.send(send)  # the same cmid settles what became of it
    await sender.find(SendAck, within_seconds=20)
    assert [entry.mid for entry in (await receiver.find(MailboxBatch, within_seconds=20)).entries] == [
        send.envelopes[0].mid
    ]


async def test_a_session_that_became_read_only_is_not_ready_and_is_thrown_away(gateway: LocalGateway) -> None:
    """As when an operator closes a database, or a primary was demoted, under connections that are open."""
    async with gateway.gateway.services.postgres.connection() as connection:
        await connection.execute("SET default_transaction_read_only = on")  # the one that the pool gives out next
    assert await readiness(gateway) == (503, "database")

    async def ready() -> bool:
        return await readiness(gateway) == (200, "ready")

    await eventually(ready, what="ready again on a new connection")


async def test_another_history_of_the_database_ends_sessions_and_refuses_cursors(
    lab: GatewayLab, gateway: LocalGateway, services: Services, alice: Device
) -> None:
    """DESIGN, "epoch": a restore or failover; everybody starts at the oldest un-acked entry."""
    sender = await gateway.session(await lab.device())
    mids = [await sender.deliver(alice.id) for _ in range(3)]
    client = await gateway.session(alice)
    cursor = [frame for frame in client.seen if isinstance(frame, MailboxBatch)][-1].cursor
    await lab.postgres.execute("UPDATE instances SET restore_epoch = $1", os.urandom(16))
    name = urlsplit(lab.dsn).path.removeprefix("/")
    services.execute(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        " AND application_name LIKE 'mailboxd gateway%'"
    )
    away = await client.find(GoAway, within_seconds=20)
    assert away.reconnect_after_ms > 0
    assert (await client.closed()).code == 1012
    again = await gateway.socket()
    assert (await again.hello(alice.token, cursor=cursor)).pending
    assert [entry.mid for entry in (await again.find(MailboxBatch)).entries] == mids
    again.send(PullMailbox(1, cursor))
    assert (await again.find(Error)).code is ErrorCode.CURSOR_INVALID


async def test_a_restored_database_that_waits_for_its_repair_takes_no_writes_and_is_not_ready(
    lab: GatewayLab, alice: Device
) -> None:
    # The drill writes this into postgresql.conf; a connection's own option reads the same.
    dsn = f"{lab.dsn}{'&' if '?' in lab.dsn else '?'}options={quote('-c mailboxd.restored=drill-1')}"
    async with lab.gateway(postgres_dsn=dsn) as gateway:
        assert await readiness(gateway) == (503, "restored")
        client = await gateway.socket()
        client.send(Hello(alice.token))
        assert (await client.closed(within_seconds=20)).code == 4503
        await lab.postgres.execute("UPDATE instances SET restored_done = 'drill-1'")
        await lab.postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'mailboxd gateway%'"
        )

        async def ready() -> bool:
            return (await readiness(gateway))[0] == 200

        await eventually(ready, within_seconds=20, what="ready again")
        await gateway.session(alice)
