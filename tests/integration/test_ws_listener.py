"""One port for both doors, and who is let in."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
from pathlib import Path

import pytest

from loadtest.certificate import self_signed
from protocol.codec import encode_client_frame
from protocol.frames import Hello, Ping, Pong, Welcome
from tests.support.gateways import LOCAL, GatewayLab, LocalGateway
from tests.support.http_door import ON_EVERY_ANSWER
from tests.support.raw_client import HttpAnswer, RawClient, ws_frame
from tests.support.waiting import eventually

GET = "GET /v1/instance HTTP/1.1\nHost: x\n\n"


def problem(answer: HttpAnswer) -> str:
    """The code of a problem document."""
    assert answer.headers["content-type"].startswith("application/problem+json")
    assert answer.headers["x-request-id"]
    for name, value in ON_EVERY_ANSWER.items():
        assert answer.headers[name.lower()] == value
    return str(json.loads(answer.body)["code"])


async def test_http_and_websocket_share_the_port(gateway: LocalGateway) -> None:
    http = await gateway.connect()
    answer = await http.request(GET)
    assert (answer.status, "instance_id" in json.loads(answer.body)) == (200, True)
    assert (await (await gateway.connect()).upgrade()).status == 101


async def test_an_upgrade_comes_as_a_later_request_on_a_connection_that_carried_http(
    lab: GatewayLab, gateway: LocalGateway
) -> None:
    """Balancers reuse their connections to us."""
    client = await gateway.connect()
    for _ in range(3):
        assert (await client.request(GET)).status == 200
    assert (await client.upgrade()).status == 101
    await client.hello((await lab.device()).token)
    await client.caught_up()
    client.send(Ping(1))
    assert (await client.find(Pong)).t == 1
    await client.leave()
    await eventually(lambda: gateway.gateway.door.open_sockets == 0, what="its end is seen")


async def test_an_upgrade_pipelined_behind_http_is_taken_with_what_follows_it(
    lab: GatewayLab, gateway: LocalGateway
) -> None:
    client = await gateway.connect()
    key = base64.b64encode(os.urandom(16)).decode()
    upgrade = (
        f"GET /v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Key: {key}\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mailboxd.v1\r\n\r\n"
    )
    hello = ws_frame(encode_client_frame(Hello((await lab.device()).token)))
    client.send_raw(GET.replace("\n", "\r\n").encode() + upgrade.encode() + hello)
    assert (await client.http_answer()).status == 200
    assert (await client.http_answer()).status == 101
    await client.expect(Welcome)


async def test_frames_right_behind_the_upgrade_are_not_lost(lab: GatewayLab, gateway: LocalGateway) -> None:
    client = await gateway.connect()
    upgrade = (
        "GET /v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mailboxd.v1\r\n\r\n"
    )
    client.send_raw(upgrade.encode() + ws_frame(encode_client_frame(Hello((await lab.device()).token))))
    assert (await client.http_answer()).status == 101
    await client.expect(Welcome)


async def test_the_websocket_path_without_an_upgrade_answers_426(gateway: LocalGateway) -> None:
    client = await gateway.connect()
    for head in (
        "GET /v1/ws HTTP/1.1\nHost: x\n\n",
        "GET /v1/ws HTTP/1.1\nHost: x\nConnection: keep-alive\nUpgrade: h2c\n\n",
        "GET /v1/ws?a=b HTTP/1.1\nHost: x\n\n",
    ):
        answer = await client.request(head)
        assert (answer.status, answer.headers["upgrade"]) == (426, "websocket")
        assert problem(answer) == "BAD_REQUEST"


async def test_an_upgrade_that_does_not_offer_the_subprotocol_answers_400(gateway: LocalGateway) -> None:
    for protocol in (None, "chat", "mailboxd.v2", "mailboxd"):
        answer = await (await gateway.connect()).upgrade(protocol=protocol)
        assert (answer.status, problem(answer)) == (400, "BAD_REQUEST")
    answer = await (await gateway.connect()).upgrade(protocol="chat, mailboxd.v1")
    assert (answer.status, answer.headers["sec-websocket-protocol"]) == (101, "mailboxd.v1")
    # The same as a later request.
    client = await gateway.connect()
    await client.request(GET)
    assert (await client.upgrade(protocol="chat")).status == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-WebSocket-Key": "short"},
        {"Sec-WebSocket-Key": ""},
        {"Sec-WebSocket-Version": "8"},
        {"Sec-WebSocket-Version": ""},
        {"Content-Length": "5"},
        {"Transfer-Encoding": "chunked"},
        {"Connection": "upgrade; q=("},
    ],
)
async def test_a_malformed_upgrade_answers_400(gateway: LocalGateway, headers: dict[str, str]) -> None:
    assert (await (await gateway.connect()).upgrade(headers=headers)).status == 400


async def test_offered_compression_is_declined(gateway: LocalGateway) -> None:
    answer = await (await gateway.connect()).upgrade(
        headers={"Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits"}
    )
    assert answer.status == 101
    assert "sec-websocket-extensions" not in answer.headers


async def test_other_methods_on_the_websocket_path_are_not_allowed(gateway: LocalGateway) -> None:
    client = await gateway.connect()
    answer = await client.request("POST /v1/ws HTTP/1.1\nHost: x\nContent-Length: 0\n\n")
    assert answer.status in (404, 405)


async def test_a_page_of_an_unlisted_origin_is_refused_and_an_app_has_none(lab: GatewayLab) -> None:
    async with lab.gateway(allowed_origins=("https://app.example",)) as gateway:
        for origin in ("https://evil.example", "null", "https://app.example.evil", "http://app.example"):
            answer = await (await gateway.connect()).upgrade(headers={"Origin": origin})
            assert (answer.status, problem(answer)) == (403, "FORBIDDEN")
        assert (await (await gateway.connect()).upgrade(headers={"Origin": "https://app.example"})).status == 101
        assert (await (await gateway.connect()).upgrade()).status == 101


class TestLimits:
    """Refused before any database work, with a come-back time, and nobody is evicted."""

    async def test_connections_of_one_address(self, lab: GatewayLab) -> None:
        await lab.set_policy('{"connections_per_ip": 3}')
        async with lab.gateway() as gateway:
            clients = [await gateway.socket() for _ in range(3)]
            refused = await (await gateway.connect()).upgrade()
            assert (refused.status, problem(refused)) == (429, "RATE_LIMITED")
            assert int(refused.headers["retry-after"]) >= 1
            await clients[0].hello((await lab.device()).token)  # those that are in stay
            clients[1].cut()
            await eventually(lambda: gateway.gateway.door.open_sockets == 2, what="one has left")
            await gateway.socket()

    async def test_http_connections_count_too(self, lab: GatewayLab) -> None:
        await lab.set_policy('{"connections_per_ip": 2}')
        async with lab.gateway() as gateway:
            held = [await gateway.connect() for _ in range(2)]
            for client in held:
                assert (await client.request(GET)).status == 200
            assert (await (await gateway.connect()).request(GET)).status == 429
            assert (await (await gateway.connect()).upgrade()).status == 429
            # An upgrade on a connection that is counted already takes no second place, and one that is none keeps it.
            assert (await held[0].request("GET /v1/ws HTTP/1.1\nHost: x\n\n")).status == 426
            assert (await (await gateway.connect()).request(GET)).status == 429
            assert (await held[0].upgrade()).status == 101
            assert (await (await gateway.connect()).request(GET)).status == 429
            held[0].cut()
            await eventually(lambda: gateway.gateway.limits.connections <= 1, what="it has left")
            assert (await (await gateway.connect()).request(GET)).status == 200
            held[1].cut()
            await eventually(lambda: gateway.gateway.limits.connections <= 1, what="one has left")
            await gateway.socket()

    async def test_loopback_is_exempt_where_the_operator_says_so(self, lab: GatewayLab) -> None:
        await lab.set_policy('{"connections_per_ip": 1}')
        async with lab.gateway(loopback_exempt=True) as gateway:
            for _ in range(3):
                await gateway.socket()

    async def test_connections_of_the_process(self, lab: GatewayLab) -> None:
        async with lab.gateway(connections_max=2) as gateway:
            first, second = await gateway.socket(), await gateway.socket()
            refused = await (await gateway.connect()).upgrade()
            assert (refused.status, problem(refused)) == (503, "UNAVAILABLE")
            assert int(refused.headers["retry-after"]) >= 1
            assert (await (await gateway.connect()).request(GET)).status == 503
            await first.hello((await lab.device()).token)
            await second.hello((await lab.device()).token)

    async def test_handshakes_a_second(self, lab: GatewayLab) -> None:
        await lab.set_policy('{"handshakes_per_second": 5}')
        async with lab.gateway() as gateway:
            answers = [await (await gateway.connect()).upgrade() for _ in range(12)]
            refused = [answer for answer in answers if answer.status != 101]
            assert {answer.status for answer in refused} == {503}
            assert 4 <= len(refused) <= 7
            # Every client gets a time of its own.
            times = [json.loads(answer.body)["retry_after_ms"] for answer in refused]
            assert len(set(times)) > 1

    async def test_who_has_all_that_he_may_leaves_the_handshakes_to_others(self, lab: GatewayLab) -> None:
        await lab.set_policy('{"connections_per_ip": 1, "handshakes_per_second": 4}')
        async with lab.gateway(trusted_proxies="127.0.0.1") as gateway:
            one, other = {"X-Forwarded-For": "203.0.113.1"}, {"X-Forwarded-For": "203.0.113.2"}
            statuses = [(await (await gateway.connect()).upgrade(headers=one)).status for _ in range(12)]
            assert statuses == [101] + [429] * 11
            assert (await (await gateway.connect()).upgrade(headers=other)).status == 101

    async def test_a_handshake_beyond_the_budget_takes_no_place_of_its_address(self, lab: GatewayLab) -> None:
        async with lab.gateway() as gateway:
            gateway.gateway.limits.upgrades.take = lambda: False  # type: ignore[method-assign]
            assert {(await (await gateway.connect()).upgrade()).status for _ in range(3)} == {503}
            del gateway.gateway.limits.upgrades.take
            await lab.set_policy('{"connections_per_ip": 1}')
            await gateway.gateway.services.policy.refresh()
            await gateway.socket()

    async def test_upgrades_of_one_address_count_as_calls_that_nobody_vouches_for(self, lab: GatewayLab) -> None:
        await lab.set_policy('{"submit_rate_per_ip": 1, "submit_burst_per_ip": 64}')
        async with lab.gateway(trusted_proxies="127.0.0.1") as gateway:
            headers = {"X-Forwarded-For": "203.0.113.1"}
            answers = [await (await gateway.connect()).upgrade(headers=headers) for _ in range(80)]
            refused = [answer for answer in answers if answer.status != 101]
            assert len(refused) >= 10
            assert {(answer.status, problem(answer)) for answer in refused} == {(429, "RATE_LIMITED")}
            assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
            assert (await (await gateway.connect()).upgrade(headers={"X-Forwarded-For": "203.0.113.2"})).status == 101

    async def test_clients_behind_a_trusted_proxy_are_told_apart(self, lab: GatewayLab) -> None:
        await lab.set_policy('{"connections_per_ip": 1}')
        async with lab.gateway(trusted_proxies="127.0.0.0/8") as gateway:
            for address in ("203.0.113.1", "203.0.113.2", "2001:db8::1"):
                assert (await (await gateway.connect()).upgrade(headers={"X-Forwarded-For": address})).status == 101
            for address in ("203.0.113.1", "9.9.9.9, 203.0.113.2", "2001:db8::2"):
                assert (await (await gateway.connect()).upgrade(headers={"X-Forwarded-For": address})).status == 429

    async def test_nobody_else_is_believed_about_his_address(self, lab: GatewayLab) -> None:
        await lab.set_policy('{"connections_per_ip": 1}')
        async with lab.gateway() as gateway:
            assert (await (await gateway.connect()).upgrade(headers={"X-Forwarded-For": "203.0.113.1"})).status == 101
            assert (await (await gateway.connect()).upgrade(headers={"X-Forwarded-For": "203.0.113.2"})).status == 429


class TestSlowAndHostile:
    async def test_a_head_that_never_ends_is_cut_off(
        self, gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("gateway.listener.HEAD_S", 0.5)
        clients = [await gateway.connect() for _ in range(3)]
        for client, start in zip(clients, (b"", b"GET", b"GET /v1/ws HTTP/1.1\r\nHost: x\r\n"), strict=True):
            client.send_raw(start)
        for client in clients:
            async with asyncio.timeout(20):
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await client.reader.readexactly(1)

    async def test_a_head_that_comes_byte_by_byte_is_taken(self, gateway: LocalGateway) -> None:
        client = await gateway.connect()
        head = (
            b"GET /v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mailboxd.v1\r\n\r\n"
        )
        for at in range(len(head)):
            client.send_raw(head[at : at + 1])
            await client.writer.drain()
        assert (await client.http_answer()).status == 101

    async def test_a_head_that_is_too_long_is_refused(self, gateway: LocalGateway) -> None:
        client = await gateway.connect()
        answer = await client.upgrade(headers={"X-Padding": "x" * 20_000})
        assert answer.status == 400

    async def test_a_head_that_can_be_read_in_two_ways_is_refused(self, gateway: LocalGateway) -> None:
        upgrade = (
            "GET /v1/ws HTTP/1.1\nHost: x\nUpgrade: websocket\nConnection: upgrade\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\n"
            "Sec-WebSocket-Version: 13\nSec-WebSocket-Protocol: mailboxd.v1\n{}\n\n"
        )
        for line in ("X-Folded: a\n b", "X-Space : a", "no colon here", ": no name"):
            answer = await (await gateway.connect()).request(upgrade.format(line))
            assert answer.status == 400, line

    async def test_what_is_no_http_is_refused(self, gateway: LocalGateway) -> None:
        for garbage in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            client = await gateway.connect()
            client.send_raw(garbage)
            assert (await client.http_answer()).status in (400, 505)

    async def test_connections_that_go_away_early_leave_nothing_behind(self, gateway: LocalGateway) -> None:
        for start in (b"", b"GET /v1/ws", b"GET /v1/instance HTTP/1.1\r\n"):
            client = await gateway.connect()
            client.send_raw(start)
            await client.writer.drain()
            client.cut()
        await eventually(lambda: gateway.gateway.limits.connections == 0, what="nothing is counted any more")


async def test_both_doors_open_behind_one_certificate(lab: GatewayLab, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    async with lab.gateway(tls_certificate=certificate, tls_key=key) as gateway:
        context = ssl.create_default_context(cafile=str(certificate))
        client = await gateway.connect(ssl=context, server_hostname="localhost")
        assert (await client.request(GET)).status == 200
        assert (await client.upgrade()).status == 101
        await client.hello((await lab.device()).token)
        await client.caught_up()
        body = os.urandom(60_000)
        own = await lab.device()
        await client.deliver(own.id, body)
        client.send_message(b"\xff")
        assert (await client.closed()).code == 4400
        other = await gateway.connect(ssl=context, server_hostname="localhost")
        assert (await other.upgrade()).status == 101
        # Plain text on a TLS port gets nothing.
        plain = await RawClient.connect(LOCAL, gateway.port)
        gateway.clients.append(plain)
        plain.send_raw(b"GET / HTTP/1.1\r\n\r\n")
        assert await plain.reader.read() == b""
