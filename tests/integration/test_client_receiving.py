"""The public client over real sockets, receiving: once to the app, ACK after its confirmation, again after a crash."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailbox_client import (
    Account,
    ClientError,
    ClientSettings,
    ClientStopped,
    Delivery,
    Event,
    MailboxClient,
    MemoryStore,
    MessagesDeferred,
    NotRegistered,
    Reconciled,
    SqliteStore,
    Stopped,
    StopReason,
    Transport,
)
from mailbox_client.errors import ServerNotUnderstood
from mailbox_client.transport_http import MailboxHttp
from protocol.ids import DeviceId, InstanceId
from tests.support.model_gateway import ModelGateway, model_gateway
from tests.support.waiting import eventually

QUICK = ClientSettings(backoff_base_ms=5, backoff_cap_ms=50, retry_base_ms=5, retry_cap_ms=50)
TREE = Path(__file__).parents[2]


@pytest.fixture
async def gateway() -> AsyncIterator[ModelGateway]:
    async with model_gateway() as running:
        yield running


@pytest.fixture
async def store(gateway: ModelGateway) -> MemoryStore:
    made = MemoryStore()
    await Account.register(gateway.url, made)
    return made


@pytest.fixture
async def sender(gateway: ModelGateway) -> AsyncIterator[MailboxClient]:
    made = MemoryStore()
    await Account.register(gateway.url, made)
    async with MailboxClient(gateway.url, made) as client:
        yield client


def device_of(store: MemoryStore) -> DeviceId:
    return Account.load(store).device_id


def waiting(gateway: ModelGateway, device: DeviceId) -> int:
    return len(gateway.model.state.mailboxes[device].pending(gateway.model.now_ms))


async def take(client: MailboxClient, count: int) -> list[Delivery]:
    taken: list[Delivery] = []
    async with asyncio.timeout(10):
        async for delivery in client.messages():
            taken.append(delivery)
            if len(taken) == count:
                break
    return taken


async def test_five_lines_receive(gateway: ModelGateway, sender: MailboxClient, tmp_path: Path) -> None:
    account = await Account.register(gateway.url, tmp_path / "device.sqlite")
    await sender.send({account.device_id: b"sealed"}, ttl_s=3_600)
    async with MailboxClient(gateway.url, tmp_path / "device.sqlite") as client:
        async for delivery in client.messages():
            assert delivery.body == b"sealed"
            assert delivery.protocol_version == 1
            assert delivery.expires_at == delivery.accepted_at + 3_600_000
            assert delivery.pad is None
            assert delivery.client_message_id is None
            await delivery.confirm()
            break
        await eventually(lambda: waiting(gateway, account.device_id) == 0)


async def test_nothing_leaves_the_mailbox_before_the_app_confirmed(
    gateway: ModelGateway, sender: MailboxClient, store: MemoryStore
) -> None:
    me = device_of(store)
    async with MailboxClient(gateway.url, store) as client:
        await sender.send({me: b"one"})
        await sender.send({me: b"two"})
        one, two = await take(client, 2)
        assert waiting(gateway, me) == 2
        await two.confirm()
        await eventually(lambda: waiting(gateway, me) == 1)
        await one.confirm()
        await eventually(lambda: waiting(gateway, me) == 0)


async def test_leaving_right_after_a_confirmation_still_acks_it(
    gateway: ModelGateway, sender: MailboxClient, tmp_path: Path
) -> None:
    account = await Account.register(gateway.url, tmp_path / "device.sqlite")
    await sender.send({account.device_id: b"sealed"})
    async with MailboxClient(gateway.url, tmp_path / "device.sqlite") as client:
        (delivery,) = await take(client, 1)
        await delivery.confirm()
    await eventually(lambda: waiting(gateway, account.device_id) == 0)


async def test_messages_confirmed_together_cost_one_write(
    gateway: ModelGateway, sender: MailboxClient, store: MemoryStore
) -> None:
    me = device_of(store)
    async with MailboxClient(gateway.url, store) as client:
        await asyncio.gather(*[sender.send({me: b"%d" % number}) for number in range(150)])
        taken = await take(client, 150)
        assert [delivery.body for delivery in taken] == [b"%d" % number for number in range(150)]
        await client.confirm(*taken)
        await eventually(lambda: waiting(gateway, me) == 0)


async def test_each_message_comes_once_over_connections_that_break(
    gateway: ModelGateway, sender: MailboxClient, store: MemoryStore
) -> None:
    me = device_of(store)
    got: list[bytes] = []
    async with MailboxClient(gateway.url, store, settings=QUICK) as client:

        async def read() -> None:
            async for delivery in client.messages():
                got.append(delivery.body)
                await delivery.confirm()

        reading = asyncio.create_task(read())
        for number in range(40):
            await sender.send({me: b"%d" % number})
            if number % 4 == 0:
                client.cut_connection()
        await eventually(lambda: len(got) == 40)
        await eventually(lambda: waiting(gateway, me) == 0)
        reading.cancel()
    assert got == [b"%d" % number for number in range(40)]


async def test_a_message_that_was_cut_off_half_way_goes_on_over_http_with_its_cursor(
    gateway: ModelGateway, sender: MailboxClient, store: MemoryStore
) -> None:
    me = device_of(store)
    async with MailboxClient(gateway.url, store, settings=QUICK) as client:
        for number in range(4):
            await sender.send({me: b"%d" % number})
        first = await take(client, 2)
        await client.confirm(*first)
        client.cut_connection()
        client.prefer(Transport.HTTP)
        await eventually(lambda: client.connected is Transport.HTTP)
        await sender.send({me: b"4"})
        rest = await take(client, 3)
        await client.confirm(*rest)
        client.prefer(None)
        await eventually(lambda: client.connected is Transport.WEBSOCKET)
        await eventually(lambda: waiting(gateway, me) == 0)
    assert [delivery.body for delivery in first + rest] == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_clean_end_gives_back_what_was_not_confirmed(
    gateway: ModelGateway, sender: MailboxClient, store: MemoryStore
) -> None:
    await sender.send({device_of(store): b"again"})
    async with MailboxClient(gateway.url, store) as client:
        await take(client, 1)
    async with MailboxClient(gateway.url, store) as client:
        (delivery,) = await take(client, 1)
        assert delivery.crashes == 0
        await delivery.confirm()


async def test_an_error_of_the_app_on_a_message_counts_and_the_third_puts_it_aside(
    gateway: ModelGateway, sender: MailboxClient, store: MemoryStore
) -> None:
    await sender.send({device_of(store): b"poison"})
    for crashes in range(3):
        with pytest.raises(ZeroDivisionError):
            async with MailboxClient(gateway.url, store) as client:
                (delivery,) = await take(client, 1)
                assert delivery.crashes == crashes
                raise ZeroDivisionError
    seen: list[Event] = []
    async with MailboxClient(gateway.url, store, on_event=seen.append) as client:
        await client.caught_up()
        await sender.send({client.device_id: b"healthy"})
        (delivery,) = await take(client, 1)
        assert delivery.body == b"healthy"
        await client.retry_deferred()
        (poison,) = await take(client, 1)
        assert poison.body == b"poison"
        await client.confirm(delivery, poison)
    assert [event.after_crashes for event in seen if isinstance(event, MessagesDeferred)] == [True]
    assert waiting(gateway, device_of(store)) == 0


async def test_a_deferred_message_comes_back_when_the_app_asks(
    gateway: ModelGateway, sender: MailboxClient, store: MemoryStore
) -> None:
    await sender.send({device_of(store): b"cannot open"})
    async with MailboxClient(gateway.url, store) as client:
        (delivery,) = await take(client, 1)
        await delivery.defer()
        await client.retry_deferred()
        (again,) = await take(client, 1)
        assert again.message_id == delivery.message_id
        assert waiting(gateway, client.device_id) == 1
        await again.confirm()
        await eventually(lambda: waiting(gateway, client.device_id) == 0)


async def test_another_process_of_the_device_ends_this_one_until_the_user_acts(
    gateway: ModelGateway, store: MemoryStore
) -> None:
    async with MailboxClient(gateway.url, store, settings=QUICK) as client:
        await client.caught_up()
        other = MemoryStore()
        with store.transaction():
            account = store.account()
        assert account is not None
        with other.transaction():
            other.save_account(account)
        async with MailboxClient(gateway.url, other) as newer:
            await newer.caught_up()
            with pytest.raises(ClientStopped) as stopped:
                await take(client, 1)
            assert stopped.value.reason is StopReason.REPLACED
        client.reconnect()
        await client.caught_up()


async def test_a_revoked_device_is_logged_out(gateway: ModelGateway, store: MemoryStore) -> None:
    async with MailboxClient(gateway.url, store) as client:
        await client.caught_up()
        gateway.model.revoke(client.device_id)
        with pytest.raises(ClientStopped) as stopped:
            await take(client, 1)
        assert stopped.value.reason is StopReason.REVOKED


async def test_a_server_that_restarts_is_come_back_to(
    gateway: ModelGateway, sender: MailboxClient, store: MemoryStore
) -> None:
    async with MailboxClient(gateway.url, store, settings=QUICK) as client:
        await client.caught_up()
        gateway.model.restart(say_goodbye=True, reconnect_after_ms=20)
        await sender.send({client.device_id: b"after the restart"})
        (delivery,) = await take(client, 1)
        assert delivery.body == b"after the restart"


async def test_a_server_restored_to_an_earlier_point_shows_no_message_twice(
    gateway: ModelGateway, sender: MailboxClient, store: MemoryStore
) -> None:
    async with MailboxClient(gateway.url, store, settings=QUICK) as client:
        await sender.send({client.device_id: b"before"})
        backup = gateway.model.backup()
        (before,) = await take(client, 1)
        await before.confirm()
        await eventually(lambda: waiting(gateway, client.device_id) == 0)
        gateway.model.restore(backup)
        assert waiting(gateway, client.device_id) == 1
        await eventually(lambda: waiting(gateway, client.device_id) == 0)
        await sender.send({client.device_id: b"after"})
        (after,) = await take(client, 1)
        assert after.body == b"after"


async def test_events_tell_the_way_in(gateway: ModelGateway, store: MemoryStore) -> None:
    async with MailboxClient(gateway.url, store) as client:
        events = client.events()
        kinds = []
        async with asyncio.timeout(10):
            async for event in events:
                kinds.append(event.kind)
                if isinstance(event, Reconciled):
                    break
        await events.aclose()
    assert kinds == ["connected", "caught_up", "reconciled"]


async def test_an_error_in_the_apps_event_handler_costs_the_client_nothing(
    gateway: ModelGateway, sender: MailboxClient, store: MemoryStore
) -> None:
    def careless(_event: Event) -> None:
        raise ZeroDivisionError

    async with MailboxClient(gateway.url, store, on_event=careless) as client:
        await sender.send({client.device_id: b"still here"})
        (delivery,) = await take(client, 1)
        await delivery.confirm()


async def test_messages_and_events_end_with_the_client(gateway: ModelGateway, store: MemoryStore) -> None:
    client = MailboxClient(gateway.url, store)
    async with client:
        await client.caught_up()

        async def read_events() -> list[Event]:
            return [event async for event in client.events()]

        async def read_messages() -> list[Delivery]:
            return [delivery async for delivery in client.messages()]

        reading = asyncio.gather(read_events(), read_messages())
        await asyncio.sleep(0)
    events, messages = await reading
    assert events[-1] == Stopped(StopReason.CLOSED)
    assert messages == []
    with pytest.raises(ClientStopped):
        await client.retry_deferred()


async def test_a_second_client_on_one_store_object_is_refused_and_harms_nothing(
    gateway: ModelGateway, store: MemoryStore
) -> None:
    async with MailboxClient(gateway.url, store) as client:
        second = MailboxClient(gateway.url, store)
        with pytest.raises(ClientError, match="another client is using this store"):
            async with second:
                pass
        await second.close()
        with pytest.raises(ClientError, match="another client is using this store"):
            async with MailboxClient(gateway.url, store):
                pass
        await client.send({client.device_id: b"to myself"})
        async for delivery in client.messages():
            assert delivery.body == b"to myself"
            await delivery.confirm()
            break
    async with MailboxClient(gateway.url, store) as next_one:
        await next_one.caught_up()


async def test_a_client_that_could_not_be_entered_leaves_its_store_free(gateway: ModelGateway) -> None:
    store = MemoryStore()
    with pytest.raises(NotRegistered):
        async with MailboxClient(gateway.url, store):
            pass
    await Account.register(gateway.url, store)
    async with MailboxClient(gateway.url, store) as client:
        await client.caught_up()


async def test_without_an_account_there_is_a_clear_error(gateway: ModelGateway) -> None:
    with pytest.raises(NotRegistered):
        async with MailboxClient(gateway.url, MemoryStore()):
            pass


async def test_registering_again_gives_the_same_account(gateway: ModelGateway, tmp_path: Path) -> None:
    first = await Account.register(gateway.url, tmp_path / "device.sqlite")
    again = await Account.register(gateway.url, tmp_path / "device.sqlite")
    assert first.device_id == again.device_id
    assert len(gateway.model.state.mailboxes) == 1


async def test_a_registration_whose_answer_was_lost_leads_to_the_same_device(gateway: ModelGateway) -> None:
    store = MemoryStore()
    first = await Account.register(gateway.url, store)
    with store.transaction():
        account = store.account()
        assert account is not None
        store.save_account(account._replace(device_id=DeviceId(b""), identity_id=type(account.identity_id)(b"")))
    with pytest.raises(NotRegistered):
        Account.load(store)
    assert (await Account.register(gateway.url, store)).device_id == first.device_id


async def test_a_challenge_under_another_context_is_not_signed(
    gateway: ModelGateway, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account.load(store)
    monkeypatch.setattr("protocol.http_shapes.CHALLENGE_CONTEXTS", {"token": "mailboxd.device-add.v1"})
    async with MailboxHttp(gateway.url) as http:
        with pytest.raises(ServerNotUnderstood):
            await account.fetch_token(http)
    assert "POST /v1/auth/tokens" not in gateway.requests


async def test_another_instance_at_the_address_is_noticed(gateway: ModelGateway, store: MemoryStore) -> None:
    async with model_gateway() as other:
        other.model.instance_id = InstanceId(b"another instance")
        async with MailboxClient(other.url, store) as client:
            await eventually(lambda: client.stopped is StopReason.NOT_KNOWN)


_CHILD = """
import asyncio, os, sys
from mailbox_client import MailboxClient

async def main(url, path, peer):
    async with MailboxClient(url, path) as client:
        async for delivery in client.messages():
            print(delivery.body.decode(), flush=True)
            if delivery.body == b"die":
                os.kill(os.getpid(), 9)
            await delivery.confirm()
            await client.send({peer: b"re " + delivery.body})

asyncio.run(main(sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3])))
"""


async def test_a_process_killed_with_a_message_in_hand_gets_it_again_and_nothing_else_twice(
    gateway: ModelGateway, sender: MailboxClient, tmp_path: Path
) -> None:
    path = tmp_path / "device.sqlite"
    account = await Account.register(gateway.url, path)
    for body in (b"one", b"two", b"die", b"three"):
        await sender.send({account.device_id: body})

    async def process() -> tuple[int, list[str]]:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _CHILD, gateway.url, str(path), sender.device_id.hex(),
            stdout=subprocess.PIPE, cwd=TREE, env={**os.environ, "PYTHONPATH": str(TREE)},
        )  # fmt: skip
        try:
            async with asyncio.timeout(30):
                output, _ = await child.communicate()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        return child.returncode or 0, output.decode().split()

    killed = [await process() for _ in range(3)]
    assert [code for code, _seen in killed] == [-signal.SIGKILL] * 3
    assert [seen for _code, seen in killed] == [["one", "two", "die"], ["die"], ["die"]]
    store = SqliteStore(path)
    try:
        async with MailboxClient(gateway.url, store) as client:
            (three,) = await take(client, 1)  # the fourth process is not killed: the poison was put aside
            assert three.body == b"three"
            await three.confirm()
            await eventually(lambda: client.pending_sends == 0)
    finally:
        store.close()
    replies = [delivery.body for delivery in await take(sender, 2)]
    assert replies == [b"re one", b"re two"]
