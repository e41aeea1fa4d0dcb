"""What one door does and the other one sees: the same stores, keys, cursors and events behind both."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from protocol.frames import MailboxBatch, PullMailbox, PushEvents, Send, SendAck, SendEnvelope
from protocol.ids import ClientMessageId, MessageId, to_text
from tests.support.http_door import Door, HttpDevice, running_door, shared_door
from tests.support.raw_client import RawClient
from tests.support.services import Services

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(services: Services, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    async with shared_door(services, tmp_path_factory.mktemp("door")) as running:
        yield running


@asynccontextmanager
async def session(device: HttpDevice, *, door: Door | None = None, window: int = 256) -> AsyncIterator[RawClient]:
    """A live WebSocket session of the device that has caught up."""
    parts = urlsplit((door or device.door).url)
    client = await RawClient.connect(str(parts.hostname), int(parts.port or 0))
    try:
        assert (await client.upgrade()).status == 101
        await client.hello(device.token, window_entries=window)
        yield client
    finally:
        await client.leave()
        with suppress(ConnectionError):
            await client.writer.wait_closed()


def a_send(to: HttpDevice, body: bytes = b"sealed") -> Send:
    envelope = SendEnvelope(to.device_id, MessageId(os.urandom(16)), 1, body)
    return Send(ClientMessageId(os.urandom(16)), (envelope,))


def as_http(send: Send) -> dict[str, object]:
    return {
        "client_message_id": to_text(send.cmid),
        "echo": send.echo,
        "envelopes": [
            {
                "to": to_text(each.to),
                "message_id": to_text(each.mid),
                "protocol_version": each.pv,
                "body": to_text(each.body),
            }
            for each in send.envelopes
        ],
    }


async def test_a_send_over_the_websocket_repeated_over_http_is_a_repeat(door: Door) -> None:
    sender, recipient = await door.device(), await door.device()
    send = a_send(recipient)
    async with session(sender) as client:
        client.send(send)
        first = await client.find(SendAck)
    again = await sender.call("POST", "/v1/envelopes", as_http(send))
    assert (again.status, again.content["duplicate"]) == (200, True)
    assert again.content["results"][0]["accepted_at"] == first.results[0].accepted_at
    other = {**as_http(a_send(recipient)), "client_message_id": to_text(send.cmid)}
    assert (await sender.call("POST", "/v1/envelopes", other)).code == "IDEMPOTENCY_KEY_REUSED"


async def test_a_send_over_http_repeated_over_the_websocket_is_a_repeat(door: Door) -> None:
    sender, recipient = await door.device(), await door.device()
    send = a_send(recipient)
    first = await sender.call("POST", "/v1/envelopes", as_http(send))
    async with session(sender) as client:
        client.send(send)
        again = await client.find(SendAck)
    assert again.duplicate
    assert again.results[0].accepted_at == first.content["results"][0]["accepted_at"]
    assert len((await recipient.call("GET", "/v1/mailbox")).content["entries"]) == 1


async def test_a_send_over_http_is_pushed_to_the_recipients_session(door: Door) -> None:
    sender, recipient = await door.device(), await door.device()
    async with session(recipient) as client:
        await client.caught_up()
        send = a_send(recipient)
        assert (await sender.call("POST", "/v1/envelopes", as_http(send))).status == 201
        batch = await client.expect(MailboxBatch)
        assert [entry.mid for entry in batch.entries] == [send.envelopes[0].mid]


async def test_a_cursor_of_one_door_opens_at_the_other(door: Door) -> None:
    sender, recipient = await door.device(), await door.device()
    sends = [a_send(recipient) for _ in range(3)]
    for send in sends:
        assert (await sender.call("POST", "/v1/envelopes", as_http(send))).status == 201
    page = (await recipient.call("GET", "/v1/mailbox?limit=1")).content
    async with session(recipient) as client:
        client.send(PullMailbox(7, page["cursor"], 1))
        while (batch := await client.find(MailboxBatch)).ref != 7:
            pass
    assert [entry.mid for entry in batch.entries] == [sends[1].envelopes[0].mid]
    last = (await recipient.call("GET", f"/v1/mailbox?cursor={batch.cursor}")).content
    assert [entry["message_id"] for entry in last["entries"]] == [to_text(sends[2].envelopes[0].mid)]


async def test_an_ack_over_http_frees_the_sessions_window_at_once(
    database: str, redis_url: str, tmp_path: Path
) -> None:
    """On the session's own gateway and on another one."""
    async with (
        running_door(database, redis_url, tmp_path) as here,
        running_door(database, redis_url, tmp_path) as there,
    ):
        sender, recipient = await here.device(), await here.device()
        sends = [a_send(recipient) for _ in range(3)]
        for send in sends:
            assert (await sender.call("POST", "/v1/envelopes", as_http(send))).status == 201
        async with session(recipient, window=1) as client:
            for number, acking in enumerate((here, there)):
                batch = await client.expect(MailboxBatch)
                mid = sends[number].envelopes[0].mid
                assert [entry.mid for entry in batch.entries] == [mid]
                body = {"message_ids": [to_text(mid)]}
                async with asyncio.timeout(10):
                    reply = await acking.call("POST", "/v1/mailbox/acks", body, token=recipient.token)
                    assert reply.status == 200
                    if number == 1:
                        last = await client.expect(MailboxBatch)
                        assert [entry.mid for entry in last.entries] == [sends[2].envelopes[0].mid]


async def test_the_owner_hears_that_its_prekeys_run_low(database: str, redis_url: str, tmp_path: Path) -> None:
    """In its session, whichever gateway the claim was made at."""
    async with (
        running_door(database, redis_url, tmp_path) as here,
        running_door(database, redis_url, tmp_path) as there,
    ):
        (owner, near), claimer = (await here.device(), await here.device()), await here.device()
        keys = [{"key_id": n, "public_key": to_text(os.urandom(32))} for n in range(20)]
        for door, device in ((there, owner), (here, near)):
            assert (await device.call("PUT", "/v1/prekeys", {"one_time": keys})).status == 200
            async with session(device, door=door) as client:
                await client.caught_up()
                path = f"/v1/identities/{to_text(device.identity_id)}/prekey-claims"
                assert (await claimer.call("POST", path, {})).status == 201
                event = await client.find(PushEvents)
                assert event.events == ({"kind": "prekeys_low", "left": 19},)


async def test_revoking_over_http_closes_the_live_session_on_another_gateway(
    database: str, redis_url: str, tmp_path: Path
) -> None:
    async with (
        running_door(database, redis_url, tmp_path) as here,
        running_door(database, redis_url, tmp_path) as there,
    ):
        device = await here.device()
        async with session(device, door=there) as client:
            await client.caught_up()
            body = await device.revocation_body(device.device_id)
            async with asyncio.timeout(10):
                reply = await device.call("POST", f"/v1/devices/{device.id}/revocation", body)
                assert reply.status == 200
                assert (await client.closed()).code == 4403
