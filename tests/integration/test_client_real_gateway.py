"""The client against the real gateway on real PostgreSQL and Valkey: what the model server cannot prove."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loadtest.certificate import self_signed
from mailbox_client import (
    Account,
    ClientSettings,
    Delivery,
    Event,
    LastResortKey,
    MailboxClient,
    MemoryStore,
    NoAnswer,
    OneTimeKey,
    Reconciled,
    SendRefused,
    StopReason,
    Transport,
)
from protocol.ids import DeviceId
from tests.support.gateways import GatewayLab, LocalGateway
from tests.support.waiting import eventually

QUICK = ClientSettings(backoff_base_ms=5, backoff_cap_ms=50, retry_base_ms=5, retry_cap_ms=50)


def url(gateway: LocalGateway) -> str:
    return f"http://127.0.0.1:{gateway.port}"


@pytest.fixture
async def gateway(lab: GatewayLab) -> AsyncIterator[LocalGateway]:
    """A gateway that takes registrations."""
    await lab.set_policy('{"registration": "open", "registrations_per_ip_per_hour": 0}')
    async with lab.gateway() as running:
        yield running


@pytest.fixture
async def store(gateway: LocalGateway) -> MemoryStore:
    made = MemoryStore()
    await Account.register(url(gateway), made)
    return made


@pytest.fixture
async def sender(gateway: LocalGateway) -> AsyncIterator[MailboxClient]:
    made = MemoryStore()
    await Account.register(url(gateway), made)
    async with MailboxClient(url(gateway), made, settings=QUICK) as client:
        yield client


async def take(client: MailboxClient, count: int) -> list[Delivery]:
    taken: list[Delivery] = []
    async with asyncio.timeout(20):
        async for delivery in client.messages():
            taken.append(delivery)
            if len(taken) == count:
                break
    return taken


async def pending(client: MailboxClient) -> int:
    return (await client.http.mailbox_status()).pending_entries


async def empty(client: MailboxClient) -> bool:
    return await pending(client) == 0


async def test_messages_go_through_once_and_in_order_while_connections_break(
    gateway: LocalGateway, sender: MailboxClient, store: MemoryStore
) -> None:
    got: list[bytes] = []
    bodies = [b"%d" % number for number in range(60)]
    async with MailboxClient(url(gateway), store, settings=QUICK) as client:

        async def read() -> None:
            async for delivery in client.messages():
                got.append(delivery.body)
                await delivery.confirm()

        reading = asyncio.create_task(read())
        for at in range(0, len(bodies), 6):
            await asyncio.gather(*[sender.send({client.device_id: body}) for body in bodies[at : at + 6]])
            (client, sender)[at // 6 % 2].cut_connection()
        await eventually(lambda: len(got) == len(bodies))
        await eventually(lambda: empty(client))
        reading.cancel()
    assert got == bodies


async def test_reconciliation_over_both_transports_finds_what_was_committed(
    gateway: LocalGateway, sender: MailboxClient, store: MemoryStore
) -> None:
    me = Account.load(store).device_id
    events: list[Event] = []
    sender._life._on_event = events.append
    for transport in (Transport.WEBSOCKET, Transport.HTTP):
        sender.prefer(transport)
        await sender.caught_up()
        sending = [asyncio.create_task(sender.send({me: b"%d" % number})) for number in range(50)]
        await eventually(lambda: sender.pending_sends > 0)
        sender.cut_connection()
        sender.prefer(None if transport is Transport.HTTP else Transport.HTTP)
        await asyncio.gather(*sending)
    assert any(isinstance(event, Reconciled) for event in events)
    async with MailboxClient(url(gateway), store) as client:
        assert [delivery.body for delivery in await take(client, 100)] == [b"%d" % number for number in range(50)] * 2


async def test_a_slow_app_with_a_full_window_still_reconciles_its_sends(
    gateway: LocalGateway, sender: MailboxClient, store: MemoryStore
) -> None:
    me = Account.load(store).device_id
    for at in range(0, 600, 100):
        await asyncio.gather(*[sender.send({me: b"%d" % number}) for number in range(at, at + 100)])
    async with MailboxClient(url(gateway), store, settings=QUICK) as client:
        await client.caught_up()  # 600 entries, a window of 256, and the app took none
        receipt = await client.send({sender.device_id: b"still able to send"})
        assert len(receipt.accepted) == 1
        taken = await take(client, 600)
        assert [delivery.body for delivery in taken] == [b"%d" % number for number in range(600)]
        assert await pending(client) == 600
        await client.confirm(*taken)
        await eventually(lambda: empty(client))


async def test_a_deferred_message_stays_on_the_server_until_it_is_confirmed(
    gateway: LocalGateway, sender: MailboxClient, store: MemoryStore
) -> None:
    async with MailboxClient(url(gateway), store, settings=QUICK) as client:
        await sender.send({client.device_id: b"cannot open"})
        (delivery,) = await take(client, 1)
        await delivery.defer()
        assert await pending(client) == 1
        await client.retry_deferred()
        (again,) = await take(client, 1)
        await again.confirm()
        await eventually(lambda: empty(client))


async def test_the_calls_of_the_http_door_are_understood(
    gateway: LocalGateway, sender: MailboxClient, store: MemoryStore
) -> None:
    async with MailboxClient(url(gateway), store) as client:
        http = client.http
        assert (await http.instance()).instance_id == client.account.instance_id
        assert [device.device_id for device in await http.devices()] == [client.device_id]
        assert await http.upload_prekeys([OneTimeKey(number, bytes([number]) * 32) for number in range(1, 4)]) == 3
        await http.upload_prekeys(last_resort=LastResortKey(9, b"l" * 32, b"s" * 64))
        claim = await sender.http.claim_prekeys(client.account.identity_id)
        assert claim.identity_public_bundle == client.account.stored.identity_bundle
        (device,) = claim.devices
        assert device.device_id == client.device_id
        assert device.one_time is not None
        assert device.last_resort == LastResortKey(9, b"l" * 32, b"s" * 64)
        assert await http.prekeys_left() == 2
        assert await http.push_route() is None
        route = await http.set_push_route("gateway", url="https://push.example/wake")
        assert await http.push_route() == route
        await http.remove_push_route()
        assert await http.push_route() is None


async def test_a_revoked_device_is_logged_out_and_unknown_to_senders(
    gateway: LocalGateway, sender: MailboxClient, store: MemoryStore
) -> None:
    async with MailboxClient(url(gateway), store, settings=QUICK) as client:
        await client.caught_up()
        await client.account.revoke_device(client.http, client.device_id)
        await eventually(lambda: client.stopped is StopReason.REVOKED)
        with pytest.raises(SendRefused):
            await sender.send({DeviceId(client.device_id): b"too late"})


async def test_a_drained_gateway_hands_its_clients_over_to_another(lab: GatewayLab, gateway: LocalGateway) -> None:
    """Both listen at one address for the client: a relay that always leads to the gateway that is there."""
    stores = [MemoryStore(), MemoryStore()]
    for store in stores:
        await Account.register(url(gateway), store)
    async with lab.gateway() as other:
        targets = [gateway.port]
        async with (
            Relay(targets) as address,
            MailboxClient(address, stores[0], settings=QUICK) as one,
            MailboxClient(address, stores[1], settings=QUICK) as two,
        ):
            await one.send({two.device_id: b"before"})
            targets[0] = other.port
            await gateway.stop()
            await one.send({two.device_id: b"after"})
            assert [delivery.body for delivery in await take(two, 2)] == [b"before", b"after"]


async def test_a_second_device_joins_the_identity_and_hears_what_the_first_one_sent(
    lab: GatewayLab, gateway: LocalGateway, sender: MailboxClient
) -> None:
    await lab.set_policy('{"max_active_devices_per_identity": 3}')
    await eventually(lambda: gateway.gateway.services.policy().max_active_devices_per_identity == 3)
    asked = 0

    async def ask(public_key: bytes, proof: bytes) -> DeviceId:
        nonlocal asked
        asked += 1
        return await sender.account.add_device(sender.http, public_key, proof)

    store = MemoryStore()
    account = await Account.join(url(gateway), store, sender.account.identity_id, ask)
    assert (await Account.join(url(gateway), store, sender.account.identity_id, ask)).device_id == account.device_id
    assert asked == 1
    assert await ask(account.device_public_key, account.device_proof(account.identity_id)) == account.device_id
    async with MailboxClient(url(gateway), store) as second:
        receipt = await sender.send({second.device_id: b"my own other device"})
        (delivery,) = await take(second, 1)
        assert delivery.client_message_id == receipt.client_message_id
        await delivery.confirm()
        assert len(await second.http.devices()) == 2


async def test_over_tls_both_doors_check_the_certificate(lab: GatewayLab, tmp_path: Path) -> None:
    await lab.set_policy('{"registration": "open"}')
    certificate, key = self_signed(tmp_path)
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with lab.gateway(tls_certificate=certificate, tls_key=key) as secure:
        address = f"https://localhost:{secure.port}"
        store = MemoryStore()
        await Account.register(address, store, tls=trusting)
        for transport in (Transport.WEBSOCKET, Transport.HTTP):
            async with MailboxClient(address, store, settings=QUICK, tls=trusting) as client:
                client.prefer(transport)
                await client.send({client.device_id: b"to myself"})
                (delivery,) = await take(client, 1)
                await delivery.confirm()
        with pytest.raises(NoAnswer):
            await Account.register(address, MemoryStore())


class Relay:
    """Passes bytes between its own address and `targets[0]`, whichever that is when a connection begins."""

    def __init__(self, targets: list[int]) -> None:
        self._targets = targets
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_error: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._targets[0])
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(_pipe(reader, back), _pipe(there, writer))
        finally:
            writer.close()
            back.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()
