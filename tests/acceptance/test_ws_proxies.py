"""Behind real nginx and HAProxy that reuse their connections to the gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from loadtest.certificate import self_signed
from protocol.frames import MailboxBatch, Ping, Pong
from tests.support.gateways import LOCAL, GatewayLab, free_port
from tests.support.programs import require_program
from tests.support.raw_client import RawClient
from tests.support.waiting import eventually

GET = "GET /v1/instance HTTP/1.1\nHost: x\n\n"

# One location for everything and one upstream pool: what a careless but common configuration looks like.
NGINX = """
daemon off; pid {dir}/nginx.pid; error_log {dir}/error.log; worker_processes 1;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/f;
  uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
  upstream gateway {{ server 127.0.0.1:{port}; keepalive 4; }}
  server {{
    listen 127.0.0.1:{front};
    location / {{
      proxy_pass http://gateway; proxy_http_version 1.1;
      proxy_set_header Host $host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;
      proxy_read_timeout 300s;
    }}
  }}
}}
"""

HAPROXY = """
global
  maxconn 256
defaults
  mode http
  timeout connect 2s
  timeout client 60s
  timeout server 60s
  timeout tunnel 1h
  http-reuse always
  option forwardfor
frontend front
  bind 127.0.0.1:{front}
  default_backend gateway
backend gateway
  server one 127.0.0.1:{port}
"""

# TLS goes through to the gateway unseen, so only the PROXY protocol can say who the client is.
HAPROXY_TCP = """
global
  maxconn 256
defaults
  mode tcp
  timeout connect 2s
  timeout client 60s
  timeout server 60s
frontend front
  bind 127.0.0.1:{front}
  default_backend gateway
backend gateway
  server one 127.0.0.1:{port} check inter 100 {option}
"""


@pytest.fixture
async def lab(database: str, redis_url: str, tmp_path: Path) -> AsyncIterator[GatewayLab]:
    async with GatewayLab(database, redis_url, tmp_path) as running:
        yield running


@asynccontextmanager
async def proxy(kind: str, directory: Path, port: int, option: str = "") -> AsyncIterator[int]:
    """Run the proxy before a gateway's port; gives its own port. With an `option` HAProxy passes bytes through."""
    front = free_port()
    config = directory / f"{kind}.conf"
    if kind == "nginx":
        program = require_program("nginx", "nginx")
        config.write_text(NGINX.format(dir=directory, port=port, front=front))
        command = [str(program), "-p", str(directory), "-c", str(config)]
    else:
        program = require_program("haproxy", "haproxy")
        config.write_text((HAPROXY_TCP if option else HAPROXY).format(port=port, front=front, option=option))
        command = [str(program), "-db", "-f", str(config)]
    with (directory / f"{kind}.out").open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
    try:
        await eventually(lambda: listens(front), what=f"{kind} listens; see {directory}")
        yield front
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(LOCAL, port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
async def test_both_doors_open_behind_a_proxy(lab: GatewayLab, tmp_path: Path, kind: str) -> None:
    settings = {"MAILBOXD_TRUSTED_PROXIES": "127.0.0.1"}
    async with lab.process(settings=settings) as gateway, proxy(kind, tmp_path, gateway.port) as front:
        alice, bob = await lab.devices(2)
        clients: list[RawClient] = gateway.clients

        async def connect() -> RawClient:
            client = await RawClient.connect(LOCAL, front)
            clients.append(client)
            return client

        # Fill the proxy's pool with connections that have carried HTTP.
        pool = [await connect() for _ in range(4)]
        answers = await asyncio.gather(*(client.request(GET) for client in pool))
        assert {answer.status for answer in answers} == {200}
        sessions = []
        for device in (alice, bob):
            client = await connect()
            assert (await client.request(GET)).status == 200
            # On the client's own connection too the upgrade is a later request.
            answer = await client.upgrade()
            assert answer.status == 101
            await client.hello(device.token)
            await client.caught_up()
            sessions.append(client)
        sender, receiver = sessions
        body = os.urandom(60_000)
        for _ in range(20):
            mid = await sender.deliver(bob.id, body)
            (entry,) = (await receiver.find(MailboxBatch)).entries
            assert (entry.mid, entry.body) == (mid, body)
            receiver.ack(mid)
        assert (await (await connect()).request(GET)).status == 200
        assert (await (await connect()).request("GET /v1/ws HTTP/1.1\nHost: x\n\n")).status in (426, 400)
        assert (await (await connect()).upgrade(protocol="chat")).status == 400
        for client in sessions:
            client.send(Ping("through"))
            assert (await client.find(Pong)).t == "through"
            await client.leave()

        async def gone() -> bool:
            return await gateway.metric("websockets") == 0

        await eventually(gone, what="the ends came through the proxy")


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
async def test_limits_tell_the_clients_behind_a_proxy_apart(lab: GatewayLab, tmp_path: Path, kind: str) -> None:
    await lab.set_policy('{"connections_per_ip": 2}')
    settings = {"MAILBOXD_TRUSTED_PROXIES": "127.0.0.1"}
    async with lab.process(settings=settings) as gateway, proxy(kind, tmp_path, gateway.port) as front:
        statuses = []
        for _ in range(4):
            client = await RawClient.connect(LOCAL, front)
            gateway.clients.append(client)
            # The proxy appends 127.0.0.1, which is itself trusted here, so the hop before it counts.
            statuses.append((await client.upgrade(headers={"X-Forwarded-For": "203.0.113.9"})).status)
        assert statuses == [101, 101, 429, 429]
        client = await RawClient.connect(LOCAL, front)
        gateway.clients.append(client)
        assert (await client.upgrade(headers={"X-Forwarded-For": "203.0.113.10"})).status == 101


@pytest.mark.parametrize("option", ["send-proxy", "send-proxy-v2"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_haproxys_own_header_opens_both_doors_and_names_the_client(
    lab: GatewayLab, tmp_path: Path, option: str, tls: bool
) -> None:
    await lab.set_policy('{"connections_per_ip": 1}')
    settings = {"MAILBOXD_TRUSTED_PROXIES": "127.0.0.1/32", "MAILBOXD_PROXY_PROTOCOL": "true"}
    options: dict[str, Any] = {}
    if tls:
        certificate, key = self_signed(tmp_path)
        settings |= {"MAILBOXD_TLS_CERTIFICATE": str(certificate), "MAILBOXD_TLS_KEY": str(key)}
        options = {"ssl": ssl.create_default_context(cafile=str(certificate)), "server_hostname": "localhost"}
    async with lab.process(settings=settings) as gateway, proxy("haproxy", tmp_path, gateway.port, option) as front:

        async def connect(address: str) -> RawClient:
            """From one of this machine's many loopback addresses: to the gateway a client like any other."""
            client = await RawClient.connect(LOCAL, front, local_addr=(address, 0), **options)
            gateway.clients.append(client)
            return client

        session = await connect("127.0.0.21")
        assert (await session.upgrade()).status == 101
        await session.hello((await lab.device()).token)
        await session.caught_up()
        assert (await (await connect("127.0.0.22")).request(GET)).status == 200
        assert (await (await connect("127.0.0.21")).upgrade()).status == 429
        assert (await (await connect("127.0.0.22")).request(GET)).status == 429
        session.send(Ping("through"))
        assert (await session.find(Pong)).t == "through"
        # HAProxy's own checks, which name nobody and leave at once, are none of those that were refused.
        assert await gateway.metric("connections_refused_total") == 2
