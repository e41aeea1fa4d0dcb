"""Cursors after a restore to an earlier moment (seed 000, 7.2; DESIGN, "Order" and "epoch")."""

from __future__ import annotations

import asyncpg
import pytest

from protocol.errors import ErrorCode
from protocol.frames import Error, MailboxBatch, PullMailbox
from protocol.ids import MessageId
from tests.support.gateways import Device, GatewayLab, LocalGateway
from tests.support.raw_client import RawClient
from tests.support.services import set_clock_offset

HOUR_S = 3_600


async def pulled(session: RawClient, cursor: str | None) -> MailboxBatch | Error:
    session.send(PullMailbox(9, cursor))
    while True:
        frame = await session.frame()
        if isinstance(frame, Error) or (isinstance(frame, MailboxBatch) and frame.ref == 9):
            return frame


async def sent(lab: GatewayLab, gateway: LocalGateway, to: Device) -> MessageId:
    """One message by a new sender."""
    (sender,) = await lab.devices(1)
    session = await gateway.session(sender)
    return await session.deliver(to.id)


async def row_of(lab: GatewayLab, device: Device) -> asyncpg.Record:
    row = await lab.postgres.fetchrow("SELECT * FROM mailboxes WHERE device_id = $1", device.id)
    assert row is not None
    return row


async def restore(lab: GatewayLab, device: Device, earlier: asyncpg.Record, lost: MessageId) -> None:
    """Take this mailbox back to the moment of `earlier`, before `lost` was committed, as a restored database has it."""
    async with lab.postgres.transaction() as connection:
        await connection.execute(
            "DELETE FROM envelopes WHERE recipient_device_id = $1 AND message_id = $2", device.id, lost
        )
        await connection.execute(
            """UPDATE mailboxes SET head_position = $2, wake_position = $3, stored_entries = $4, stored_bytes = $5
                WHERE device_id = $1""",
            device.id,
            earlier["head_position"],
            earlier["wake_position"],
            earlier["stored_entries"],
            earlier["stored_bytes"],
        )


async def test_adr009_7_2_new_positions_lie_above_the_cursors_of_a_lost_future(lab: GatewayLab) -> None:
    """The position is a clock: a counter taken back would hand old numbers out again, below what clients hold."""
    (bob,) = await lab.devices(1)
    async with lab.gateway() as gateway:
        await sent(lab, gateway, bob)
        earlier = await row_of(lab, bob)
        lost = await sent(lab, gateway, bob)
        page = await pulled(await gateway.session(bob), None)
        assert isinstance(page, MailboxBatch)
    await restore(lab, bob, earlier, lost)
    async with lab.gateway() as gateway:
        new = await sent(lab, gateway, bob)
        after = await pulled(await gateway.session(bob), page.cursor)
        assert isinstance(after, MailboxBatch)
        assert [entry.mid for entry in after.entries] == [new]


@pytest.mark.parametrize("door", ["pull", "hello"])
async def test_adr009_7_2_restored_onto_a_clock_an_hour_behind_old_cursors_are_refused_and_nothing_is_missed(
    lab: GatewayLab, door: str
) -> None:
    (bob,) = await lab.devices(1)
    async with lab.gateway() as gateway:
        kept = await sent(lab, gateway, bob)
        earlier = await row_of(lab, bob)
        lost = await sent(lab, gateway, bob)
        page = await pulled(await gateway.session(bob), None)
        assert isinstance(page, MailboxBatch)
        old_head = (await row_of(lab, bob))["head_position"]
    await restore(lab, bob, earlier, lost)
    async with lab.postgres.connection() as connection:
        await set_clock_offset(connection, -HOUR_S)
    await lab.postgres.execute("UPDATE instances SET restore_epoch = gen_random_uuid()")  # as after-restore does
    async with lab.gateway() as gateway:
        new = await sent(lab, gateway, bob)
        assert (await row_of(lab, bob))["head_position"] < old_head  # below what the old cursor stands at
        if door == "pull":
            session = await gateway.session(bob)
            refused = await pulled(session, page.cursor)
            assert isinstance(refused, Error)
            assert refused.code is ErrorCode.CURSOR_INVALID
            again = await pulled(session, None)
        else:
            session = await gateway.session(bob, cursor=page.cursor)
            again = next(frame for frame in session.seen if isinstance(frame, MailboxBatch) and frame.entries)
        assert isinstance(again, MailboxBatch)
        assert [entry.mid for entry in again.entries] == [kept, new]
