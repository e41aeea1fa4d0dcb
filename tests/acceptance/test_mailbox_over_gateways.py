"""One mailbox, several gateway processes: the quota is exact and nothing is missed (seed 000, 3.2, 4 and 8)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.frames import Error, MailboxBatch, PullMailbox, Send, SendAck, SendEnvelope
from protocol.ids import MessageId
from tests.support.database import connected
from tests.support.gateways import Device, GatewayLab, GatewayProcess
from tests.support.mailboxes import a_cmid, a_mid
from tests.support.raw_client import RawClient
from tests.support.seeds import random_seeds

WRITERS = 9
SENDS_EACH = 40


@pytest.fixture
async def lab(database: str, redis_url: str, tmp_path: Path) -> AsyncIterator[GatewayLab]:
    async with GatewayLab(database, redis_url, tmp_path) as running:
        yield running


async def three_gateways(lab: GatewayLab, stack: AsyncExitStack) -> list[GatewayProcess]:
    return [await stack.enter_async_context(lab.process()) for _ in range(3)]


async def test_adr009_8_a_hundred_concurrent_sends_over_three_gateways_never_pass_the_quota(lab: GatewayLab) -> None:
    await lab.set_policy('{"pending_entries_max": 30}')
    async with AsyncExitStack() as stack:
        gateways = await three_gateways(lab, stack)
        full, other, *senders = await lab.devices(102)
        sessions = await asyncio.gather(*(gateways[n % 3].session(device) for n, device in enumerate(senders)))
        for session in sessions:  # all at once: to the mailbox at its edge, and to one that has room
            session.send(Send(a_cmid(), (SendEnvelope(full.id, a_mid(), 1, b"x"),), echo=False))
            session.send(Send(a_cmid(), (SendEnvelope(other.id, a_mid(), 1, b"x"),), echo=False))
        await asyncio.gather(*(answered(session, 2) for session in sessions))
        frames = [frame for session in sessions for frame in session.seen]
        errors = [frame for frame in frames if isinstance(frame, Error)]
        assert {frame.code for frame in errors} <= {ErrorCode.MAILBOX_FULL}
        assert await count(lab, full) == 30
        assert await count(lab, other) == 30
        assert sum(isinstance(frame, SendAck) for frame in frames) == 60


async def answered(session: RawClient, count: int) -> None:
    while sum(isinstance(frame, SendAck | Error) for frame in session.seen) < count:
        await session.frame()


async def count(lab: GatewayLab, device: Device) -> int:
    return int(await lab.postgres.fetchval("SELECT count(*) FROM envelopes WHERE recipient_device_id = $1", device.id))


@pytest.mark.parametrize("seed", random_seeds(1))
async def test_adr009_3_2_readers_that_page_all_the_time_miss_nothing_whoever_writes(
    lab: GatewayLab, database: str, seed: int
) -> None:
    rng = random.Random(seed)
    async with AsyncExitStack() as stack:
        gateways = await three_gateways(lab, stack)
        recipient, *others = await lab.devices(5)
        sent: list[MessageId] = []
        order: dict[int, list[MessageId]] = {n: [] for n in range(WRITERS)}
        writing = True

        async def write(n: int) -> None:
            """One session: several in flight, each to the watched mailbox and to one that is now and then held."""
            (device,) = await lab.devices(1)
            session = await gateways[n % 3].session(device)
            for _ in range(SENDS_EACH):
                mid = a_mid()
                envelopes = [SendEnvelope(recipient.id, mid, 1, b"x")]
                if rng.random() < 0.5:
                    envelopes.append(SendEnvelope(rng.choice(others).id, a_mid(), 1, b"y"))
                session.send(Send(a_cmid(), tuple(envelopes), echo=False))
                order[n].append(mid)
                sent.append(mid)
            await answered(session, SENDS_EACH)
            assert not [frame for frame in session.seen if isinstance(frame, Error)]

        async def hold() -> None:
            """Transactions that keep a mailbox's row for a while, as a slow batch would."""
            async with connected(database) as blocker:
                while writing:
                    async with blocker.transaction():
                        await blocker.execute(
                            "SELECT FROM mailboxes WHERE device_id = $1 FOR NO KEY UPDATE",
                            rng.choice([recipient, *others]).id,
                        )
                        await blocker.execute("SELECT pg_sleep(0.02)")

        async def walk(n: int) -> list[MessageId]:
            """Pages over the WebSocket from the beginning to the end, while mail comes in."""
            session = await gateways[n].session(recipient, window_entries=1)
            seen: list[MessageId] = []
            cursor, ended = None, False
            ref = 0
            while True:
                ref += 1
                session.send(PullMailbox(ref, cursor, rng.randrange(1, 12)))
                page = await pulled(session, ref)
                seen += [entry.mid for entry in page.entries]
                cursor = page.cursor
                if ended and not page.more and not page.entries:
                    return seen
                ended = not writing

        walker, holder = asyncio.ensure_future(walk(0)), asyncio.ensure_future(hold())
        await asyncio.gather(*(write(n) for n in range(WRITERS)))
        writing = False
        seen, _ = await asyncio.gather(walker, holder)
        assert len(seen) == len(set(seen)) == WRITERS * SENDS_EACH
        assert set(seen) == set(sent)
        for mids in order.values():  # SENDs of one session keep their order
            mine = set(mids)
            assert [mid for mid in seen if mid in mine] == mids


async def pulled(session: RawClient, ref: int) -> MailboxBatch:
    while True:
        frame = await session.frame()
        if isinstance(frame, MailboxBatch) and frame.ref == ref:
            return frame
