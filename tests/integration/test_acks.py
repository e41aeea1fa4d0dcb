"""ACK on real PostgreSQL (seed 000, 3.3): stable, own mailbox only, released exactly once."""

from __future__ import annotations

import asyncio
import random

import pytest

from protocol.ids import DeviceId, MessageId
from store.records import AckRequest
from tests.support.database import connected
from tests.support.mailboxes import Stores, a_mid, a_send, an_envelope, stores
from tests.support.seeds import random_seeds
from tests.support.services import set_clock_offset


async def drift(gateway: Stores) -> list[object]:
    """Mailboxes whose counters say something else than their rows."""
    return list(
        await gateway.postgres.fetch(
            """SELECT b.device_id FROM mailboxes b JOIN mailbox_owners o USING (device_id)
                CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE kind = 0) AS entries,
                       coalesce(sum(envelope_size), 0) AS bytes, count(*) FILTER (WHERE kind = 1) AS echoes
                  FROM envelopes WHERE recipient_device_id = b.device_id AND acked_at IS NULL) AS e
                WHERE (b.stored_entries - o.released_entries, b.stored_bytes - o.released_bytes,
                       b.stored_echoes - o.released_echoes) <> (e.entries, e.bytes, e.echoes)"""
        )
    )


async def filled(gateway: Stores, sender: DeviceId, recipient: DeviceId, count: int) -> list[MessageId]:
    envelopes = [an_envelope(recipient) for _ in range(count)]
    await gateway.submit.submit(a_send(sender, *envelopes))
    return [envelope.mid for envelope in envelopes]


async def test_adr009_3_3_repeated_ack_is_stable_and_counts_once(database: str) -> None:
    async with stores(database) as gateway:
        sender, recipient = await gateway.devices(2)
        mids = await filled(gateway, sender, recipient, 3)
        for _ in range(3):
            await gateway.acks.ack(AckRequest(recipient, tuple(mids[:2])), session=1)
        assert await gateway.whole_mailbox(recipient) == mids[2:]
        assert (await gateway.reader.status(recipient)).pending_entries == 1
        assert await drift(gateway) == []


async def test_adr009_3_3_foreign_unknown_and_expired_ids_change_nothing_and_the_valid_ones_are_done(
    database: str,
) -> None:
    async with stores(database) as gateway, connected(database) as clock:
        sender, recipient, other = await gateway.devices(3)
        short = an_envelope(recipient)._replace(ttl_s=60)
        await gateway.submit.submit(a_send(sender, short))
        foreign = await filled(gateway, sender, other, 1)
        mids = await filled(gateway, sender, recipient, 2)
        await set_clock_offset(clock, 61)
        await gateway.acks.ack(AckRequest(recipient, (a_mid(), *foreign, short.mid, mids[0])), session=1)
        assert await gateway.whole_mailbox(recipient) == mids[1:]
        assert await gateway.whole_mailbox(other) == foreign
        assert await drift(gateway) == []


async def test_001_2_6_a_repeated_ack_never_extends_retention(database: str) -> None:
    async with stores(database) as gateway, connected(database) as clock:
        sender, recipient = await gateway.devices(2)
        mids = await filled(gateway, sender, recipient, 1)
        request = AckRequest(recipient, tuple(mids))
        await gateway.acks.ack(request, session=1)
        first = await gateway.postgres.fetch("SELECT acked_at FROM envelopes")
        batches = await gateway.postgres.fetchval("SELECT count(*) FROM ack_batches")
        await set_clock_offset(clock, 500)
        await gateway.acks.ack(request, session=1)
        assert await gateway.postgres.fetch("SELECT acked_at FROM envelopes") == first
        assert await gateway.postgres.fetchval("SELECT count(*) FROM ack_batches") == batches == 1


async def test_an_ack_batch_remembers_exactly_what_it_released(database: str) -> None:
    """Cleanup finds acked rows through it alone, so nothing may be missing and nothing more may be in it."""
    async with stores(database) as gateway:
        sender, one, two = await gateway.devices(3)
        mids = await filled(gateway, sender, one, 4), await filled(gateway, sender, two, 4)
        await asyncio.gather(
            gateway.acks.ack(AckRequest(one, (*mids[0][:3], a_mid())), session=1),
            gateway.acks.ack(AckRequest(two, (*mids[1][2:], mids[0][3])), session=2),
        )
        remembered = await gateway.postgres.fetch(
            "SELECT d AS device, p AS position FROM ack_batches, unnest(device_ids, positions) AS k(d, p) ORDER BY 1, 2"
        )
        acked = await gateway.postgres.fetch(
            """SELECT recipient_device_id AS device, position FROM envelopes WHERE acked_at IS NOT NULL ORDER BY 1, 2"""
        )
        assert remembered == acked
        assert len(acked) == 5


async def test_an_ack_of_many_devices_is_one_transaction_and_a_hot_update(database: str) -> None:
    """ACK state is in no index: most updates stay within their page."""
    async with stores(database) as gateway:
        sender, *recipients = await gateway.devices(11)
        mids = [await filled(gateway, sender, recipient, 20) for recipient in recipients]
        await asyncio.gather(
            *(
                gateway.acks.ack(AckRequest(recipient, tuple(ids)), session=n)
                for n, (recipient, ids) in enumerate(zip(recipients, mids, strict=True))
            )
        )
        await gateway.acks.drain(5.0)  # closes the lane, whose counters then show
        assert await gateway.postgres.fetchval("SELECT count(*) FROM ack_batches") <= 2
        indexed = await gateway.postgres.fetch(
            "SELECT indexname FROM pg_indexes WHERE tablename = 'envelopes' AND indexdef LIKE '%acked_at%'"
        )
        assert indexed == []


@pytest.mark.parametrize("seed", random_seeds(2))
async def test_the_counters_come_out_right_whatever_meets(database: str, seed: int) -> None:
    """Submits, ACKs and expired entries that make way, from two gateways at once."""
    rng = random.Random(seed)
    async with stores(database) as one, stores(database) as two, connected(database) as clock:
        devices = await one.devices(4)
        mids: list[tuple[DeviceId, MessageId]] = []

        async def churn(session: int) -> None:
            gateway = rng.choice((one, two))
            for _ in range(15):
                to = rng.choice(devices)
                envelopes = [an_envelope(to, rng.randbytes(rng.randrange(200)))._replace(ttl_s=60) for _ in range(3)]
                await gateway.submit.submit(a_send(rng.choice(devices), *envelopes, session=session, echo=True))
                mids.extend((to, envelope.mid) for envelope in envelopes)
                device, _ = rng.choice(mids)
                chosen = tuple(mid for owner, mid in rng.sample(mids, min(20, len(mids))) if owner == device)
                if chosen:
                    await gateway.acks.ack(AckRequest(device, chosen), session=session)

        for round_ in range(3):
            await asyncio.gather(*(churn(session) for session in range(6)))
            await set_clock_offset(clock, 61 * (round_ + 1))
            assert await drift(one) == []
