"""The public client over real sockets, sending: never lost, never doubled, whatever breaks (model server behind it)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mailbox_client import (
    Account,
    ClientError,
    ClientSettings,
    ClientStopped,
    Event,
    IdNotUsable,
    IdsUnavailable,
    MailboxClient,
    MemoryStore,
    SendConfirmed,
    SendRefused,
    SendWaiting,
    StopReason,
    StoreFault,
    Transport,
)
from mailbox_client.local_store import SendState
from protocol.errors import ErrorCode, MailboxError
from protocol.frames import Send, SendEnvelope
from protocol.ids import ClientMessageId, DeviceId, MessageId
from tests.support.client_values import envelope
from tests.support.model_gateway import ModelGateway, model_gateway
from tests.support.waiting import eventually

QUICK = ClientSettings(backoff_base_ms=5, backoff_cap_ms=50, retry_base_ms=5, retry_cap_ms=50)


@pytest.fixture
async def gateway() -> AsyncIterator[ModelGateway]:
    async with model_gateway() as running:
        yield running


@pytest.fixture
async def friend(gateway: ModelGateway) -> DeviceId:
    return (await Account.register(gateway.url, MemoryStore())).device_id


@pytest.fixture
async def store(gateway: ModelGateway) -> MemoryStore:
    """A store with an account."""
    made = MemoryStore()
    await Account.register(gateway.url, made)
    return made


def bodies_of(gateway: ModelGateway, device: DeviceId) -> list[bytes]:
    return [held.body for held in gateway.model.state.mailboxes[device].pending(gateway.model.now_ms)]


async def test_five_lines_send(gateway: ModelGateway, friend: DeviceId, tmp_path: Path) -> None:
    await Account.register(gateway.url, tmp_path / "device.sqlite")
    async with MailboxClient(gateway.url, tmp_path / "device.sqlite") as client:
        receipt = await client.send({friend: b"sealed"})
    assert [one.to for one in receipt.accepted] == [friend]
    assert bodies_of(gateway, friend) == [b"sealed"]


async def test_a_hundred_sends_at_once_arrive_in_order_and_cost_few_commits(
    gateway: ModelGateway, friend: DeviceId, tmp_path: Path
) -> None:
    await Account.register(gateway.url, tmp_path / "device.sqlite")
    async with MailboxClient(gateway.url, tmp_path / "device.sqlite") as client:
        bodies = [b"%d" % number for number in range(100)]
        await asyncio.gather(*[client.send({friend: body}) for body in bodies])
    assert bodies_of(gateway, friend) == bodies


async def test_sends_survive_connections_that_break_all_the_time(
    gateway: ModelGateway, friend: DeviceId, store: MemoryStore
) -> None:
    confirmed: list[Event] = []
    bodies = [b"%d" % number for number in range(60)]
    async with MailboxClient(gateway.url, store, settings=QUICK, on_event=confirmed.append) as client:
        for at in range(0, len(bodies), 10):
            sending = [asyncio.create_task(client.send({friend: body})) for body in bodies[at : at + 10]]
            for _ in range(3):
                await client.caught_up()
                gateway.cut_all()
                await asyncio.sleep(0)
            await asyncio.gather(*sending)
    assert bodies_of(gateway, friend) == bodies
    assert sum(isinstance(event, SendConfirmed) for event in confirmed) == len(bodies)


async def test_an_answer_lost_after_the_commit_is_found_in_the_mailbox(
    gateway: ModelGateway, friend: DeviceId, store: MemoryStore
) -> None:
    sends = 0

    def cut_after_commit(_device: DeviceId, _send: Send) -> MailboxError | None:
        nonlocal sends
        sends += 1
        if sends == 1:
            asyncio.get_running_loop().call_soon(gateway.cut_all)
        return None

    gateway.model.refusals.send = cut_after_commit
    async with MailboxClient(gateway.url, store, settings=QUICK) as client:
        receipt = await client.send({friend: b"once"})
    assert bodies_of(gateway, friend) == [b"once"]
    assert sends == 1, "it was found, not repeated"
    assert receipt.reconciled or receipt.accepted[0].expires_at is not None


async def test_a_pending_send_outlives_the_process(gateway: ModelGateway, friend: DeviceId, tmp_path: Path) -> None:
    await Account.register(gateway.url, tmp_path / "device.sqlite")
    gateway.down = True
    async with MailboxClient(gateway.url, tmp_path / "device.sqlite") as client:
        cmid = await client.post([SendEnvelope(friend, MessageId(b"m" * 16), 1, b"later")])
        waiting = asyncio.create_task(client.outcome(cmid))
        await asyncio.sleep(0)
    with pytest.raises(ClientStopped):
        await waiting
    gateway.down = False
    async with MailboxClient(gateway.url, tmp_path / "device.sqlite") as client:
        assert client.pending_sends == 1
        receipt = await client.outcome(cmid)
        again = await client.outcome(cmid)
    assert receipt.accepted[0].message_id == again.accepted[0].message_id == b"m" * 16
    assert bodies_of(gateway, friend) == [b"later"]


async def test_a_cancelled_send_goes_out_nevertheless(
    gateway: ModelGateway, friend: DeviceId, store: MemoryStore
) -> None:
    gateway.down = True
    async with MailboxClient(gateway.url, store, settings=QUICK) as client:
        sending = asyncio.create_task(client.send({friend: b"kept"}))
        await eventually(lambda: client.pending_sends == 1)
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        gateway.down = False
        await eventually(lambda: client.pending_sends == 0)
    assert bodies_of(gateway, friend) == [b"kept"]


async def test_seed003_an_id_that_was_not_issued_here_is_refused_before_anything_is_written(
    gateway: ModelGateway, friend: DeviceId, store: MemoryStore
) -> None:
    async with MailboxClient(gateway.url, store) as client:
        issued = client.next_client_message_id()
        await client.send({friend: b"first"}, client_message_id=issued)
        for unusable in (issued, ClientMessageId(bytes(16)), ClientMessageId(b"x" * 16)):
            with pytest.raises(IdNotUsable):
                await client.send({friend: b"never"}, client_message_id=unusable)
        assert client.pending_sends == 0
    assert bodies_of(gateway, friend) == [b"first"]
    with store.transaction():
        assert len(store.sends(*SendState)) == 1


async def test_seed003_too_many_ids_in_the_apps_hands_is_a_clear_error_that_passes(
    gateway: ModelGateway, friend: DeviceId, store: MemoryStore
) -> None:
    async with MailboxClient(gateway.url, store) as client:
        issued = [client.next_client_message_id() for _ in range(256)]
        assert client.next_client_message_id() == bytes(16)
        with pytest.raises(IdsUnavailable):
            await client.send({friend: b"no id"})
        await client.send({friend: b"one used"}, client_message_id=issued[0])
        await client.send({friend: b"one free"})
    assert bodies_of(gateway, friend) == [b"one used", b"one free"]


async def test_small_leases_are_renewed_without_a_stall(
    gateway: ModelGateway, friend: DeviceId, store: MemoryStore
) -> None:
    settings = ClientSettings(lease_ordinals=8)
    async with MailboxClient(gateway.url, store, settings=settings) as client:
        for number in range(60):
            await client.send({friend: b"%d" % number})
    assert len(bodies_of(gateway, friend)) == 60


async def test_a_lease_starts_at_the_servers_time_once_it_is_known(gateway: ModelGateway, store: MemoryStore) -> None:
    async with MailboxClient(gateway.url, store) as client:
        await client.caught_up()
        (high_water,) = store._high_water.values()
    assert high_water >> 64 >= gateway.model.now_ms - 60_000


async def test_what_is_refused_is_told_recipient_by_recipient(
    gateway: ModelGateway, friend: DeviceId, store: MemoryStore
) -> None:
    stranger = DeviceId(b"x" * 16)
    async with MailboxClient(gateway.url, store) as client:
        receipt = await client.send({stranger: b"no", friend: b"yes"})
        assert [(one.to, one.code) for one in receipt.refused] == [(stranger, "UNKNOWN_RECIPIENT")]
        assert [one.to for one in receipt.accepted] == [friend]
        with pytest.raises(SendRefused) as refused:
            await client.send({stranger: b"no"})
        assert [one.code for one in refused.value.refused] == ["UNKNOWN_RECIPIENT"]
        with pytest.raises(SendRefused):
            await client.outcome(refused.value.client_message_id)
    assert bodies_of(gateway, friend) == [b"yes"]


async def test_a_rate_limit_is_shown_and_waited_for(
    gateway: ModelGateway, friend: DeviceId, store: MemoryStore
) -> None:
    left = 3

    def limited(_device: DeviceId, _send: Send) -> MailboxError | None:
        nonlocal left
        left -= 1
        return MailboxError(ErrorCode.RATE_LIMITED, retry_after_ms=30) if left >= 0 else None

    gateway.model.refusals.send = limited
    seen: list[Event] = []
    async with MailboxClient(gateway.url, store, settings=QUICK, on_event=seen.append) as client:
        await client.send({friend: b"patient"})
    assert [event.code for event in seen if isinstance(event, SendWaiting)] == ["RATE_LIMITED"] * 3
    assert bodies_of(gateway, friend) == [b"patient"]


async def test_a_full_queue_makes_senders_wait(gateway: ModelGateway, friend: DeviceId, store: MemoryStore) -> None:
    settings = ClientSettings(pending_max=4, backoff_base_ms=5, backoff_cap_ms=50)
    gateway.down = True
    async with MailboxClient(gateway.url, store, settings=settings) as client:
        sending = [asyncio.create_task(client.send({friend: b"%d" % number})) for number in range(10)]
        await eventually(lambda: client.pending_sends == 4)
        for _ in range(20):
            await asyncio.sleep(0)
        assert client.pending_sends == 4
        gateway.down = False
        await asyncio.gather(*sending)
    assert len(bodies_of(gateway, friend)) == 10


async def test_everything_goes_over_http_where_websockets_are_blocked_and_back_when_they_work(
    gateway: ModelGateway, friend: DeviceId, store: MemoryStore
) -> None:
    gateway.websockets_blocked = True
    settings = ClientSettings(backoff_base_ms=5, backoff_cap_ms=50, socket_retry_base_ms=300, socket_retry_cap_ms=400)
    async with MailboxClient(gateway.url, store, settings=settings) as client:
        await client.send({friend: b"over http"})
        assert client.connected is Transport.HTTP
        gateway.websockets_blocked = False
        await eventually(lambda: client.connected is Transport.WEBSOCKET)
        await client.send({friend: b"over a socket"})
    assert bodies_of(gateway, friend) == [b"over http", b"over a socket"]


class FullDisk(MemoryStore):
    """Commits fail while `full`."""

    full = False

    @contextlib.contextmanager
    def transaction(self):  # type: ignore[no-untyped-def, override]
        with super().transaction():
            yield
            if self.full:
                raise StoreFault("the disk is full")


async def test_a_disk_that_is_full_for_a_moment_costs_a_clear_error_and_nothing_else(
    gateway: ModelGateway, friend: DeviceId
) -> None:
    store = FullDisk()
    await Account.register(gateway.url, store)
    async with MailboxClient(gateway.url, store, settings=QUICK) as client:
        await client.send({friend: b"before"})
        store.full = True
        with pytest.raises(StoreFault):
            await client.send({friend: b"refused"})
        store.full = False
        await client.send({friend: b"after"})
        assert client.pending_sends == 0
    assert bodies_of(gateway, friend) == [b"before", b"after"]


async def test_a_disk_that_stays_full_stops_the_client(gateway: ModelGateway, friend: DeviceId) -> None:
    store = FullDisk()
    await Account.register(gateway.url, store)
    async with MailboxClient(gateway.url, store, settings=QUICK) as client:
        await client.caught_up()
        store.full = True
        with pytest.raises(StoreFault):
            await client.send({friend: b"refused"})
        await eventually(lambda: client.stopped is StopReason.STORE)
        with pytest.raises(ClientStopped):
            await client.send({friend: b"refused"})
        store.full = False


@pytest.mark.parametrize(
    "envelopes",
    [
        [],
        [SendEnvelope(DeviceId(b"d" * 16), MessageId(b"m" * 16), 1, b"")] * 2,
        [SendEnvelope(DeviceId(b"short"), MessageId(b"m" * 16), 1, b"")],
        [SendEnvelope(DeviceId(b"d" * 16), MessageId(bytes(16)), 1, b"")],
        [SendEnvelope(DeviceId(b"d" * 16), MessageId(b"m" * 16), 1, b"x", pad=0)],
        [SendEnvelope(DeviceId(b"d" * 16), MessageId(bytes([n]) * 16), 1, b"") for n in range(1, 66)],
        [SendEnvelope(DeviceId(b"d" * 16), MessageId(b"m" * 16), 1, bytes(5 * 1024 * 1024))],
    ],
    ids=["none", "twice the same", "short id", "zero id", "wrong pad", "too many", "too large"],
)
async def test_a_malformed_send_is_refused_here_and_costs_no_connection(
    gateway: ModelGateway, store: MemoryStore, envelopes: list[SendEnvelope]
) -> None:
    async with MailboxClient(gateway.url, store) as client:
        with pytest.raises(ValueError):
            await client.send_envelopes(envelopes)
        await client.caught_up()
        assert client.pending_sends == 0


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        ({"body": "text"}, TypeError, "a body is bytes"),
        ({"body": bytearray(b"x")}, TypeError, "a body is bytes"),
        ({"to": b"short"}, ValueError, "16 bytes"),
        ({"ttl_s": "1h"}, TypeError, "ttl_s is an int"),
        ({"ttl_s": 2**70}, ValueError, "beyond 64 bits"),
        ({"pv": None}, TypeError, "protocol_version is an int"),
        ({"pad": 99}, ValueError, "pad is 0 to 12"),
        ({"pad": 0}, ValueError, "256 bytes"),
    ],
    ids=["text", "bytearray", "short id", "ttl as text", "huge ttl", "no version", "no such pad", "not padded"],
)
async def test_what_no_frame_can_hold_is_refused_before_it_is_kept_and_the_client_goes_on(
    gateway: ModelGateway,
    friend: DeviceId,
    store: MemoryStore,
    wrong: dict[str, Any],
    error: type[Exception],
    told: str,
) -> None:
    async with MailboxClient(gateway.url, store) as client:
        with pytest.raises(error, match=told):
            await client.post([envelope(1, to=friend)._replace(**wrong)])
        assert client.pending_sends == 0
        await client.send({friend: b"and this goes out"})


async def test_a_client_is_entered_once_and_wants_a_whole_address(gateway: ModelGateway, store: MemoryStore) -> None:
    with pytest.raises(ValueError, match="http:// or https://"):
        MailboxClient("localhost:8080", store)
    client = MailboxClient(gateway.url, store)
    async with client:
        with pytest.raises(ClientError, match="entered before"):
            await client.__aenter__()
        with pytest.raises(ValueError, match="carrier pigeon"):
            client.prefer("carrier pigeon")  # type: ignore[arg-type]
    with pytest.raises(ClientStopped, match="async with"):
        client.next_client_message_id()
