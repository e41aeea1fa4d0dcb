"""Pushing with every logger at debug: no address of a phone, no key and no token gets into a line.

The platforms' services are spoken to by libraries that log what they do: whole URLs, header by header.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric import ec

from protocol.ids import WakeRouteId
from runtime import logs
from tests.support.canaries import Canaries
from tests.support.http2_server import Http2Server, Reply, http2_server
from tests.support.push_receiver import push_receiver
from tests.support.wakes import LOOPBACK
from worker.push.address_guard import AddressGuard
from worker.push.apns import ApnsCredentials, ApnsProvider
from worker.push.gateway import GatewayProvider
from worker.push.http2 import PlatformClient
from worker.push.http_post import HttpPoster
from worker.push.outcome import Target

ROUTE = WakeRouteId(b"CANARY-ROUTE-ID!")
TOKEN, TOPIC, PATH = "CANARYTOKEN" * 6, "org.canary.topic", "CANARY-PUSH-PATH"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """Where this process's lines go meanwhile, those of all libraries included."""
    root = logging.getLogger()
    before, level, structlog_before = list(root.handlers), root.level, structlog.get_config()
    logs.configure("worker", level="debug", directory=tmp_path)
    yield tmp_path / "worker.log"
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    for handler in before:
        root.addHandler(handler)
    root.setLevel(level)
    structlog.configure(**structlog_before)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Http2Server]:
    async with http2_server(tmp_path) as made:
        yield made


@pytest.fixture
def canaries() -> Canaries:
    planted = Canaries()
    for kind, value in (("push token", TOKEN), ("topic", TOPIC), ("push url", PATH)):
        planted.plant(kind, value)
    planted.plant("wake route id", bytes(ROUTE))
    return planted


async def test_a_platforms_library_tells_no_phone_by_its_token(
    log: Path, server: Http2Server, canaries: Canaries
) -> None:
    async with PlatformClient(tls=server.client_tls) as client:
        credentials = ApnsCredentials(ec.generate_private_key(ec.SECP256R1()), "KEY1234567", "TEAM123456")
        apns = ApnsProvider(client, credentials, url=server.url, alert_text="New message", wall_seconds=lambda: 1.8e9)
        for status, reason in ((200, ""), (410, "Unregistered"), (500, f"what {TOKEN} says")):
            server.answer = lambda _, status=status, reason=reason: Reply(  # type: ignore[misc]
                status, json.dumps({"reason": reason}).encode(), (("x-echo", TOKEN),)
            )
            await apns.push(Target(ROUTE, {"token": TOKEN, "topic": TOPIC}, "alert"))
    canaries.plant("authorization", server.requests[0].headers["authorization"].partition(" ")[2])
    assert server.requests[0].path.endswith(TOKEN)
    text = log.read_bytes()
    assert b"httpcore" in text, "the library did log"
    assert canaries.find_in("log", text) == set()


async def test_a_push_gateways_url_is_nowhere(log: Path, canaries: Canaries) -> None:
    async with push_receiver() as receiver, HttpPoster(AddressGuard(LOOPBACK)) as poster:
        for status in (200, 410, 500):
            receiver.always(status)
            await GatewayProvider(poster).push(Target(ROUTE, {"url": f"{receiver.url}/{PATH}"}, "background"))
        for url in (f"https://{PATH.lower()}.invalid/{PATH}", f"http://10.0.0.1/{PATH}", f"https://127.0.0.1:1/{PATH}"):
            await GatewayProvider(poster).push(Target(ROUTE, {"url": url}, "background"))
    logging.getLogger("test").debug("the last line")
    text = log.read_bytes()
    assert b"the last line" in text
    assert canaries.find_in("log", text) == set()
