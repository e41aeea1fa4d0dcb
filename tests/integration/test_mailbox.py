"""Reading mailboxes on real PostgreSQL (seed 000, 3.2 and 3.4)."""

from __future__ import annotations

import asyncio

from store.policy_rules import Policy
from store.records import AckRequest, ReadRequest
from tests.support.database import connected
from tests.support.mailboxes import a_cmid, a_send, an_envelope, stores
from tests.support.services import set_clock_offset


async def test_adr009_3_2_reading_deletes_nothing_and_a_repeat_gives_the_same(database: str) -> None:
    async with stores(database) as gateway:
        sender, recipient = await gateway.devices(2)
        envelopes = [an_envelope(recipient, bytes([n]) * n) for n in range(1, 6)]
        for envelope in envelopes:
            await gateway.submit.submit(a_send(sender, envelope))
        first, again = await gateway.page(recipient), await gateway.page(recipient)
        assert first == again
        assert [entry.entry.body for entry in first.entries] == [envelope.body for envelope in envelopes]
        assert [entry.position for entry in first.entries] == sorted(entry.position for entry in first.entries)
        assert first.head == first.entries[-1].position
        assert not first.more


async def test_adr009_3_2_pages_are_bounded_by_entries_and_bytes_and_one_entry_always_comes(database: str) -> None:
    async with stores(database) as gateway:
        sender, recipient = await gateway.devices(2)
        for size in (100, 100, 5_000, 100):
            await gateway.submit.submit(a_send(sender, an_envelope(recipient, bytes(size))))
        sizes, after, more = [], 0, True
        while more:
            page = await gateway.page(recipient, after=after, size=250)
            sizes.append([entry.size for entry in page.entries])
            after, more = page.entries[-1].position, page.more
        assert sizes == [[100, 100], [5_000], [100]]
        page = await gateway.page(recipient, entries=3)
        assert (len(page.entries), page.more) == (3, True)


async def test_adr009_3_4_expired_entries_are_never_returned_cleaned_up_or_not(database: str) -> None:
    async with stores(database) as gateway, connected(database) as clock:
        sender, recipient = await gateway.devices(2)
        short = an_envelope(recipient)._replace(ttl_s=60)
        long = an_envelope(recipient)
        await gateway.submit.submit(a_send(sender, short, long))
        await set_clock_offset(clock, 59)
        assert await gateway.whole_mailbox(recipient) == [short.mid, long.mid]
        await set_clock_offset(clock, 61)
        assert await gateway.whole_mailbox(recipient) == [long.mid]
        status = await gateway.reader.status(recipient)
        assert (status.pending_entries, status.pending_bytes) == (1, len(long.body))


async def test_adr009_3_4_the_lifetime_is_the_smaller_of_what_was_asked_and_the_policy(database: str) -> None:
    policy = Policy(ttl_s_default=200_000, ttl_s_max=300_000)
    async with stores(database, policy) as gateway:
        sender, recipient = await gateway.devices(2)
        lifetimes = []
        for asked in (None, 3_600, 300_000, 10**12):
            done = await gateway.submit.submit(a_send(sender, an_envelope(recipient)._replace(ttl_s=asked)))
            lifetimes.append((done.results[0].expires_at - done.results[0].accepted_at) // 1000)
        assert lifetimes == [200_000, 3_600, 300_000, 300_000]


async def test_lengthening_the_policy_revives_nothing_and_shortening_it_ends_nothing(database: str) -> None:
    """ADR 009, 3.4 and 7.3: a change of the policy is for new envelopes only."""
    one_day = Policy(ttl_s_default=86_400, ttl_s_max=86_400)
    async with stores(database, one_day) as gateway, connected(database) as clock:
        sender, recipient = await gateway.devices(2)
        expired = an_envelope(recipient)
        await gateway.submit.submit(a_send(sender, expired))
        await set_clock_offset(clock, 86_401)
        gateway.policy = Policy()
        kept = an_envelope(recipient)
        await gateway.submit.submit(a_send(sender, kept))
        gateway.policy = one_day
        await set_clock_offset(clock, 3 * 86_400)
        assert await gateway.whole_mailbox(recipient) == [kept.mid]


async def test_adr0008_a_cmid_comes_back_only_in_mailboxes_of_the_senders_own_identity(database: str) -> None:
    async with stores(database) as gateway:
        sender, second_device, stranger = await gateway.devices(3)
        await gateway.postgres.execute(
            """UPDATE mailboxes b SET identity_id = s.identity_id FROM mailboxes s
                WHERE s.device_id = $1 AND b.device_id = $2""",
            sender,
            second_device,
        )
        cmid = a_cmid()
        request = a_send(sender, *(an_envelope(to) for to in (sender, second_device, stranger)), cmid=cmid, echo=True)
        await gateway.submit.submit(request)
        own = (await gateway.page(sender)).entries
        assert [(entry.entry.echo, entry.entry.cmid) for entry in own] == [(False, cmid), (True, cmid)]
        assert [entry.entry.cmid for entry in (await gateway.page(second_device)).entries] == [cmid]
        assert [entry.entry.cmid for entry in (await gateway.page(stranger)).entries] == [None]


async def test_an_echo_is_in_no_quota_and_no_status_count_and_wakes_nobody(database: str) -> None:
    async with stores(database, Policy(pending_entries_max=1)) as gateway:
        sender, recipient, other = await gateway.devices(3)
        for to in (recipient, other):
            await gateway.submit.submit(a_send(sender, an_envelope(to), echo=True))
        assert (await gateway.reader.status(sender)).pending_entries == 0
        assert len((await gateway.page(sender)).entries) == 2
        await gateway.submit.submit(a_send(recipient, an_envelope(sender)))  # the one that fits
        refs = await gateway.postgres.fetch("SELECT aggregate_ref FROM outbox_events WHERE task_type = 'wake_device'")
        assert {row["aggregate_ref"] for row in refs} == {recipient, other, sender}
        sender_wake = await gateway.postgres.fetchrow("SELECT * FROM mailboxes WHERE device_id = $1", sender)
        assert sender_wake is not None
        assert sender_wake["wake_position"] == sender_wake["head_position"]


async def test_many_devices_are_read_in_one_statement_each_with_its_own_bounds(database: str) -> None:
    async with stores(database) as gateway:
        sender, *devices = await gateway.devices(31)
        for n, device in enumerate(devices):
            if n:
                await gateway.submit.submit(a_send(sender, *(an_envelope(device) for _ in range(n))))
        pages = await asyncio.gather(
            *(
                gateway.reader.read(ReadRequest(device, 0, 1 + n // 2, 1 << 20), session=n)
                for n, device in enumerate(devices)
            )
        )
        assert [len(page.entries) for page in pages] == [min(n, 1 + n // 2) for n in range(30)]
        assert [page.more for page in pages] == [n > 1 + n // 2 for n in range(30)]


async def test_inserts_in_between_are_neither_missed_nor_seen_twice_by_a_walk(database: str) -> None:
    async with stores(database) as gateway:
        sender, recipient = await gateway.devices(2)
        sent, seen, after = [], [], 0
        for _ in range(20):
            for _ in range(2):
                envelope = an_envelope(recipient)
                sent.append(envelope.mid)
                await gateway.submit.submit(a_send(sender, envelope))
            page = await gateway.page(recipient, after=after, entries=3)
            seen += [entry.entry.mid for entry in page.entries]
            after = page.entries[-1].position
            await gateway.acks.ack(AckRequest(recipient, (seen[-1],)), session=1)
        seen += [entry.entry.mid for entry in (await gateway.page(recipient, after=after)).entries]
        assert seen == sent
