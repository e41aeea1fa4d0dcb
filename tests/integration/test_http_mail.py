"""Sending, pulling, waiting and acking over HTTP (WIRE, "HTTP"; seed 000, section 3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from protocol.ids import to_text
from tests.support.http_door import (
    MSGPACK,
    Door,
    HttpDevice,
    an_envelope,
    random_id,
    running_door,
    send_body,
    shared_door,
)
from tests.support.services import Services, set_clock_offset
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(services: Services, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    async with shared_door(services, tmp_path_factory.mktemp("door")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def own_door(database: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Door]:
    async with running_door(database, redis_url, tmp_path) as running:
        yield running


async def pair(door: Door) -> tuple[HttpDevice, HttpDevice]:
    return await door.device(), await door.device()


async def pull(device: HttpDevice, **query: Any) -> dict[str, Any]:
    path = "/v1/mailbox?" + "&".join(f"{name}={value}" for name, value in query.items())
    reply = await device.call("GET", path)
    assert reply.status == 200, reply
    return dict(reply.content)


async def test_a_sent_envelope_is_pulled_and_acked(door: Door) -> None:
    sender, recipient = await pair(door)
    envelope = {**an_envelope(recipient.id, b"x" * 512), "pad": 1, "ttl_s": 3_600}
    sent = await sender.call("POST", "/v1/envelopes", {"client_message_id": random_id(), "envelopes": [envelope]})
    assert (sent.status, sent.content["duplicate"]) == (201, False)
    (result,) = sent.content["results"]
    assert result["message_id"] == envelope["message_id"]
    assert result["expires_at"] - result["accepted_at"] == 3_600_000
    page = await pull(recipient)
    (entry,) = page["entries"]
    assert entry == {
        "message_id": envelope["message_id"],
        "protocol_version": 1,
        "body": envelope["body"],
        "accepted_at": result["accepted_at"],
        "expires_at": result["expires_at"],
        "pad": 1,
    }
    assert (page["more"], page["caught_up"]) == (False, True)
    status = (await recipient.call("GET", "/v1/mailbox/status")).content
    assert status == {"pending_entries": 1, "pending_bytes": 512, "oldest_accepted_at": result["accepted_at"]}
    assert (await pull(recipient))["entries"] == [entry]  # a pull deletes nothing
    acks = {"message_ids": [envelope["message_id"], random_id()]}
    for _ in range(2):
        reply = await recipient.call("POST", "/v1/mailbox/acks", acks)
        assert (reply.status, reply.content) == (200, {"results": ["acked", "acked"]})
    assert (await pull(recipient))["entries"] == []
    status = (await recipient.call("GET", "/v1/mailbox/status")).content
    assert status == {"pending_entries": 0, "pending_bytes": 0, "oldest_accepted_at": None}


async def test_nobody_acks_in_another_mailbox(door: Door) -> None:
    sender, recipient = await pair(door)
    await sender.send(recipient)
    (entry,) = (await pull(recipient))["entries"]
    await sender.call("POST", "/v1/mailbox/acks", {"message_ids": [entry["message_id"]]})
    assert (await pull(recipient))["entries"] == [entry]


async def test_an_echo_lands_in_the_senders_own_mailbox_and_is_no_default_with_a_key(door: Door) -> None:
    sender, recipient = await pair(door)
    cmid = random_id()
    await sender.call("POST", "/v1/envelopes", send_body(recipient.id, cmid=cmid))
    await sender.call("POST", "/v1/envelopes", {**send_body(recipient.id), "echo": False})
    keyed = {"envelopes": [an_envelope(recipient.id)]}
    assert (await sender.call("POST", "/v1/envelopes", keyed, key="k")).status == 201
    (echo,) = (await pull(sender))["entries"]
    assert (echo["echo"], echo["client_message_id"], echo["protocol_version"]) == (True, cmid, 0)
    assert "body" not in echo
    assert (await sender.call("GET", "/v1/mailbox/status")).content["pending_entries"] == 0
    assert all("client_message_id" not in entry for entry in (await pull(recipient))["entries"])


@pytest.mark.parametrize("by_key", [True, False])
async def test_a_repeat_answers_200_with_the_first_answer_and_stores_one(door: Door, by_key: bool) -> None:
    sender, recipient = await pair(door)
    body = send_body(recipient.id)
    if by_key:
        del body["client_message_id"]
    key = "the-key" if by_key else None
    first = await sender.call("POST", "/v1/envelopes", body, key=key)
    again = await sender.call("POST", "/v1/envelopes", body, key=key)
    assert (first.status, again.status) == (201, 200)
    assert again.content == {**first.content, "duplicate": True}
    assert len((await pull(recipient))["entries"]) == 1
    other = {**body, "envelopes": [an_envelope(recipient.id)]}
    reused = await sender.call("POST", "/v1/envelopes", other, key=key)
    assert (reused.status, reused.code) == (409, "IDEMPOTENCY_KEY_REUSED")


async def test_sends_at_once_under_one_key_store_one_envelope(door: Door) -> None:
    sender, recipient = await pair(door)
    body = send_body(recipient.id)
    replies = await asyncio.gather(*[sender.call("POST", "/v1/envelopes", body) for _ in range(12)])
    assert sorted(reply.status for reply in replies) == [200] * 11 + [201]
    assert len({str(reply.content["results"]) for reply in replies}) == 1
    assert len((await pull(recipient))["entries"]) == 1


async def test_the_same_key_of_another_device_or_operation_is_another_key(door: Door) -> None:
    one, other = await pair(door)
    for sender in (one, other):
        body = {"envelopes": [an_envelope(one.id)]}
        assert (await sender.call("POST", "/v1/envelopes", body, key="same")).status == 201
    assert (await one.call("PUT", "/v1/push-route", {"provider": "fcm", "token": "t"}, key="same")).status == 200


async def test_a_repeat_is_answered_even_to_a_revoked_sender(door: Door) -> None:
    sender, recipient = await pair(door)
    body = send_body(recipient.id)
    first = await sender.call("POST", "/v1/envelopes", body)
    revocation = await sender.revocation_body(sender.device_id)
    await sender.call("POST", f"/v1/devices/{sender.id}/revocation", revocation)
    again = await sender.call("POST", "/v1/envelopes", body)
    assert (again.status, again.content["results"]) == (200, first.content["results"])
    fresh = await sender.send(recipient)
    assert (fresh.status, fresh.code) == (403, "DEVICE_REVOKED")


@pytest.mark.parametrize(
    "change",
    [
        {"client_message_id": None},
        {"client_message_id": to_text(bytes(16))},
        {"client_message_id": "short"},
        {"envelopes": None},
        {"envelopes": []},
        {"envelopes": {}},
        {"envelopes": [1]},
        {"echo": 1},
        {"echo": None},
    ],
)
async def test_a_malformed_send_is_a_bad_request(door: Door, change: dict[str, Any]) -> None:
    sender, recipient = await pair(door)
    reply = await sender.call("POST", "/v1/envelopes", {**send_body(recipient.id), **change})
    assert (reply.status, reply.code, reply.content["outcome"]) == (400, "BAD_REQUEST", "not_committed")


@pytest.mark.parametrize(
    "change",
    [
        {"to": None},
        {"to": "A" * 22},
        {"to": "A" * 21 + "B"},
        {"to": "A" * 22 + "=="},
        {"message_id": 5},
        {"message_id": "A" * 22},
        {"protocol_version": True},
        {"protocol_version": 1.0},
        {"protocol_version": "1"},
        {"protocol_version": 2**70},
        {"body": None},
        {"body": "AB"},
        {"body": "A"},
        {"body": "QUJD="},
        {"body": "QU JD"},
        {"ttl_s": None},
        {"ttl_s": "60"},
        {"ttl_s": 1e3},
        {"pad": 13},
        {"pad": -1},
        {"pad": 0},
        {"pad": True},
    ],
)
async def test_a_malformed_envelope_is_a_bad_request_that_names_the_field(door: Door, change: dict[str, Any]) -> None:
    sender, recipient = await pair(door)
    good = an_envelope(recipient.id)
    body = {"client_message_id": random_id(), "envelopes": [good, {**an_envelope(recipient.id), **change}]}
    reply = await sender.call("POST", "/v1/envelopes", body)
    assert (reply.status, reply.code) == (400, "BAD_REQUEST")
    assert f"envelopes[1].{next(iter(change))}" in reply.content["detail"] or "pad" in reply.content["detail"]
    assert (await pull(recipient))["entries"] == []


async def test_both_keys_or_none_or_an_echo_with_a_key_are_bad_requests(door: Door) -> None:
    sender, recipient = await pair(door)
    envelopes = [an_envelope(recipient.id)]
    for body, key in (
        (send_body(recipient.id), "k"),
        ({"envelopes": envelopes}, None),
        ({"envelopes": envelopes, "echo": False}, "k"),
        ({"envelopes": envelopes * 2}, "k"),
        ({"envelopes": [an_envelope(recipient.id) for _ in range(65)]}, "k"),
    ):
        reply = await sender.call("POST", "/v1/envelopes", body, key=key)
        assert (reply.status, reply.code) == (400, "BAD_REQUEST")


async def test_what_was_refused_is_named_and_the_rest_goes_under_the_same_cmid(door: Door) -> None:
    sender, recipient = await pair(door)
    cmid = random_id()
    good = an_envelope(recipient.id)
    unknown = an_envelope(random_id())
    body = {"client_message_id": cmid, "envelopes": [unknown, good, {**an_envelope(random_id()), "ttl_s": 1}]}
    reply = await sender.call("POST", "/v1/envelopes", body)
    assert (reply.status, reply.code, reply.content["at"]) == (404, "UNKNOWN_RECIPIENT", [0, 2])
    assert (reply.content["retryable"], reply.content["outcome"]) == (False, "not_committed")
    assert (await pull(recipient))["entries"] == []
    rest = await sender.call("POST", "/v1/envelopes", {"client_message_id": cmid, "envelopes": [good]})
    assert rest.status == 201


async def test_one_send_reaches_many_devices_in_either_form(door: Door) -> None:
    sender = await door.device()
    recipients = [await door.device() for _ in range(3)]
    envelopes = [
        {
            "to": each.device_id,
            "message_id": bytes([n + 1]) * 16,
            "protocol_version": 1,
            "body": bytes([n]) * 100,
        }
        for n, each in enumerate(recipients)
    ]
    body = {"client_message_id": b"c" * 16, "envelopes": envelopes}
    sent = await sender.call("POST", "/v1/envelopes", body, as_msgpack=True)
    assert sent.status == 201
    assert [result["message_id"] for result in sent.content["results"]] == [each["message_id"] for each in envelopes]
    for n, each in enumerate(recipients):
        page = (await each.call("GET", "/v1/mailbox", headers={"Accept": MSGPACK})).content
        assert [(entry["message_id"], entry["body"]) for entry in page["entries"]] == [
            (bytes([n + 1]) * 16, bytes([n]) * 100)
        ]
        assert isinstance(page["cursor"], str)


async def test_a_walk_by_cursor_sees_everything_once_and_in_order(door: Door) -> None:
    sender, recipient = await pair(door)
    sent = []
    for _ in range(7):
        body = send_body(recipient.id)
        sent.append(body["envelopes"][0]["message_id"])
        await sender.call("POST", "/v1/envelopes", body)
    page = await pull(recipient, limit=3)
    until = page["watermark"]
    seen = [entry["message_id"] for entry in page["entries"]]
    assert page["more"]
    while page["more"]:
        page = await pull(recipient, limit=3, cursor=page["cursor"], until=until)
        seen += [entry["message_id"] for entry in page["entries"]]
        assert page["caught_up"] is not page["more"]
    assert seen == sent
    after = await pull(recipient, cursor=page["cursor"])
    assert (after["entries"], after["more"], after["caught_up"]) == ([], False, True)


async def test_until_speaks_of_the_watermark_and_not_of_what_came_later(door: Door) -> None:
    sender, recipient = await pair(door)
    for _ in range(2):
        await sender.send(recipient)
    until = (await pull(recipient))["watermark"]
    for _ in range(2):
        await sender.send(recipient)
    first = await pull(recipient, limit=1, until=until)
    assert (first["more"], first["caught_up"]) == (True, False)
    second = await pull(recipient, limit=1, until=until, cursor=first["cursor"])
    assert (second["more"], second["caught_up"]) == (True, True)


async def test_an_empty_mailbox_has_a_cursor_that_later_mail_lies_behind(door: Door) -> None:
    sender, recipient = await pair(door)
    empty = await pull(recipient)
    assert (empty["entries"], empty["more"], empty["caught_up"]) == ([], False, True)
    await sender.send(recipient)
    assert len((await pull(recipient, cursor=empty["cursor"]))["entries"]) == 1


MALFORMED_QUERIES = "cursor= until= limit=0 limit=257 limit=-1 limit=1.0 limit= limit=%D9%A3 limit=1&limit=2"
MALFORMED_WAITS = "wait_s=56 wait_s=-1 wait_s=x"


@pytest.mark.parametrize("query", [*MALFORMED_QUERIES.split(), *MALFORMED_WAITS.split(), "cursor=" + "a" * 513])
async def test_a_malformed_query_is_a_bad_request(door: Door, query: str) -> None:
    device = await door.device()
    reply = await device.call("GET", f"/v1/mailbox?{query}")
    assert (reply.status, reply.code) == (400, "BAD_REQUEST")


async def test_unknown_query_parameters_are_ignored(door: Door) -> None:
    device = await door.device()
    assert (await pull(device, of_tomorrow=1, limit=256, wait_s=0))["entries"] == []


async def test_a_cursor_of_another_device_or_history_or_one_that_is_changed_is_invalid(own_door: Door) -> None:
    one, other = await pair(own_door)
    cursor = (await pull(one))["cursor"]
    changed = cursor[:20] + ("A" if cursor[20] != "A" else "B") + cursor[21:]
    for name in ("cursor", "until"):
        for device, text in ((other, cursor), (one, changed), (one, "x"), (one, cursor + "A")):
            reply = await device.call("GET", f"/v1/mailbox?{name}={text}")
            assert (reply.status, reply.code) == (400, "CURSOR_INVALID")
    services = own_door.gateway.services
    cursors = services.cursors.for_device(services.instance_id, one.device_id)
    now_ms = services.database_time.now_ms()
    above = cursors.seal(2**60, now_ms, services.postgres.epoch)
    other_epoch = cursors.seal(0, now_ms, b"another!")
    old = cursors.seal(0, now_ms - 46 * 86_400_000, services.postgres.epoch)
    invalid, expired = (400, "CURSOR_INVALID"), (410, "CURSOR_EXPIRED")
    for name in ("cursor", "until"):
        for text, verdict in ((above, invalid), (other_epoch, invalid), (old, expired)):
            reply = await one.call("GET", f"/v1/mailbox?{name}={text}")
            assert (reply.status, reply.code) == verdict


async def test_a_waiting_pull_is_answered_by_a_commit_of_the_same_gateway(door: Door) -> None:
    sender, recipient = await pair(door)
    waiters = door.gateway.services.waiters
    waiting = asyncio.create_task(pull(recipient, wait_s=30))
    await eventually(lambda: waiters.waiting == 1, what="the pull waits")
    began = asyncio.get_running_loop().time()
    await sender.send(recipient)
    assert len((await waiting)["entries"]) == 1
    assert asyncio.get_running_loop().time() - began < 12
    assert waiters.waiting == 0


async def test_a_waiting_pull_is_answered_by_a_commit_of_another_gateway(
    database: str, redis_url: str, tmp_path: Path
) -> None:
    async with (
        running_door(database, redis_url, tmp_path) as here,
        running_door(database, redis_url, tmp_path) as there,
    ):
        sender, recipient = await pair(here)
        recipient.door = there
        await eventually(lambda: there.gateway.listener.alive, what="wakes are heard")
        waiting = asyncio.create_task(pull(recipient, wait_s=30))
        await eventually(lambda: there.gateway.services.waiters.waiting == 1, what="the pull waits")
        began = asyncio.get_running_loop().time()
        await sender.send(recipient)
        assert len((await waiting)["entries"]) == 1
        assert asyncio.get_running_loop().time() - began < 12


async def test_a_lost_wake_costs_a_waiting_pull_the_sweeps_time(
    database: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_door(database, redis_url, tmp_path, sweep_s=0.5, sweep_without_redis_s=0.5) as door:
        sender, recipient = await pair(door)
        waiters = door.gateway.services.waiters
        monkeypatch.setattr(waiters, "ring_channel", lambda _channel: None)
        waiting = asyncio.create_task(pull(recipient, wait_s=30))
        await eventually(lambda: waiters.waiting == 1, what="the pull waits")
        await sender.send(recipient)
        async with asyncio.timeout(25):
            assert len((await waiting)["entries"]) == 1


async def test_a_pull_waits_only_when_there_is_nothing_and_only_so_long(door: Door) -> None:
    sender, recipient = await pair(door)
    loop = asyncio.get_running_loop()
    began = loop.time()
    empty = await pull(recipient, wait_s=1)
    assert 0.9 < loop.time() - began < 12
    assert empty["entries"] == []
    await sender.send(recipient)
    began = loop.time()
    assert len((await pull(recipient, wait_s=30))["entries"]) == 1
    assert loop.time() - began < 12


async def test_a_device_revoked_while_it_waits_hears_of_it(door: Door) -> None:
    device = await door.device()
    waiting = asyncio.create_task(device.call("GET", "/v1/mailbox?wait_s=30"))
    await eventually(lambda: door.gateway.services.waiters.waiting == 1, what="the pull waits")
    revocation = await device.revocation_body(device.device_id)
    await device.call("POST", f"/v1/devices/{device.id}/revocation", revocation)
    async with asyncio.timeout(12):
        reply = await waiting
    assert (reply.status, reply.code) == (403, "DEVICE_REVOKED")


async def test_waiting_pulls_are_bounded_and_nobody_is_evicted(database: str, redis_url: str, tmp_path: Path) -> None:
    async with running_door(database, redis_url, tmp_path, long_polls_max=1) as door:
        one, other = await pair(door)
        waiting = asyncio.create_task(pull(one, wait_s=30))
        await eventually(lambda: door.gateway.services.waiters.waiting == 1, what="the pull waits")
        reply = await other.call("GET", "/v1/mailbox?wait_s=30")
        assert (reply.status, reply.code) == (503, "UNAVAILABLE")
        assert (await pull(other))["entries"] == []
        assert not waiting.done()
        await other.send(one)
        assert len((await waiting)["entries"]) == 1


async def test_a_drain_releases_who_waits(database: str, redis_url: str, tmp_path: Path) -> None:
    async with running_door(database, redis_url, tmp_path) as door:
        device = await door.device()
        waiting = asyncio.create_task(pull(device, wait_s=30))
        await eventually(lambda: door.gateway.services.waiters.waiting == 1, what="the pull waits")
        door.gateway.services.drain.begin()
        async with asyncio.timeout(12):
            assert (await waiting)["entries"] == []


async def test_a_client_that_gives_up_waiting_leaves_nothing_behind(door: Door) -> None:
    device = await door.device()
    waiters = door.gateway.services.waiters
    waiting = asyncio.create_task(pull(device, wait_s=55))
    await eventually(lambda: waiters.waiting == 1, what="the pull waits")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await eventually(lambda: waiters.waiting == 0, what="the server noticed")


async def test_a_pull_is_contact(door: Door) -> None:
    device = await door.device()
    postgres = door.gateway.services.postgres
    query = "SELECT contact_at FROM mailbox_owners WHERE device_id = $1"
    assert await postgres.fetchval(query, device.device_id) is None
    await pull(device)
    first = await postgres.fetchval(query, device.device_id)
    assert first is not None
    await pull(device)
    assert await postgres.fetchval(query, device.device_id) == first  # at most one write a minute


async def test_an_expired_envelope_is_pulled_no_more_cleaned_up_or_not(own_door: Door, database: str) -> None:
    sender, recipient = await pair(own_door)
    envelope = {**an_envelope(recipient.id), "ttl_s": 60}
    await sender.call("POST", "/v1/envelopes", {"client_message_id": random_id(), "envelopes": [envelope]})
    assert len((await pull(recipient))["entries"]) == 1
    connection = await asyncpg.connect(database)
    try:
        await set_clock_offset(connection, 61)
    finally:
        await connection.close()
    assert (await pull(recipient))["entries"] == []
    assert (await recipient.call("GET", "/v1/mailbox/status")).content["pending_entries"] == 0


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"message_ids": []},
        {"message_ids": [random_id()] * 101},
        {"message_ids": "x"},
        {"message_ids": [1]},
        {"message_ids": ["A" * 22]},
        {"message_ids": [random_id() + "="]},
    ],
)
async def test_a_malformed_ack_is_a_bad_request(door: Door, body: dict[str, Any]) -> None:
    device = await door.device()
    reply = await device.call("POST", "/v1/mailbox/acks", body)
    assert (reply.status, reply.code) == (400, "BAD_REQUEST")


async def test_a_token_that_ran_out_is_told_apart_on_a_connection_that_knows_it_too(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = await door.device()
    assert (await device.call("GET", "/v1/mailbox")).status == 200
    auth = door.gateway.services.auth
    late = auth._clock.wall_ms() + 901_000

    class Late:
        def wall_ms(self) -> int:
            return late

    monkeypatch.setattr(auth, "_clock", Late())
    for headers in ({}, {"Connection": "close"}, {}):  # known, known for the last time, not known
        reply = await device.call("GET", "/v1/mailbox", headers=headers)
        assert (reply.status, reply.code) == (401, "TOKEN_EXPIRED")


async def test_one_connection_may_carry_the_tokens_of_many_devices(door: Door) -> None:
    """As a balancer's upstream connection does."""
    one, other = await pair(door)
    await other.send(one)
    for _ in range(2):
        for device, count in ((one, 1), (other, 0)):
            status = (await device.call("GET", "/v1/mailbox/status")).content
            assert status["pending_entries"] == count
        assert (await door.call("GET", "/v1/mailbox", token=one.token + "x")).code == "UNAUTHENTICATED"
        assert (await door.call("GET", "/v1/mailbox", token="é")).code == "UNAUTHENTICATED"
