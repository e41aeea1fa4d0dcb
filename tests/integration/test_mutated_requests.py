"""Good requests, changed at random, over both doors: each gets an answer of the contract, none meets a bug."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgpack
import pytest

from protocol.ids import to_text
from tests.support.accounts import Keys
from tests.support.http_door import MSGPACK, Door, HttpDevice, registration_body, running_door, send_body
from tests.support.raw_client import PING, RawClient, ws_frame
from tests.support.seeds import random_seeds

REQUESTS, SESSIONS = 600, 80

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 1.0, 2**31, 2**32, 2**63, 2**64 - 1, -(2**63), 1e308, "", "a", "A" * 22, "A" * 43,
    "A" * 86, "\u00e9", "\x00", "\ud800", "A" * 5_000, [], {}, [[]], [{}], {"a": 1}, ["A" * 22] * 100,
    b"x" * 16, bytes(16), b"x" * 32, b"",
]  # fmt: skip


class Mutator:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def change(self, value: Any) -> Any:
        """The value with one thing about it different."""
        chance = self.chance
        if chance.random() < 0.2:
            return chance.choice(ODD)
        match value:
            case dict() if value:
                name = chance.choice(list(value))
                if chance.random() < 0.2:
                    return {key: each for key, each in value.items() if key != name}
                return {**value, name: self.change(value[name])}
            case list() if value:
                at = chance.randrange(len(value))
                if chance.random() < 0.2:
                    return value * chance.choice([2, 65])
                return [*value[:at], self.change(value[at]), *value[at + 1 :]]
            case str() if value:
                at = chance.randrange(len(value))
                return value[:at] + chance.choice(["", "A", "=", "\x00", "\u00e9", "%", "\n"]) + value[at + 1 :]
            case bytes() if value:
                at = chance.randrange(len(value))
                return value[:at] + bytes([chance.randrange(256)]) * chance.randrange(3) + value[at + 1 :]
            case int() | float():
                numbers = [value + 1, -value, value * 2**20, float(value)]
                return chance.choice([str(value), *[each for each in numbers if -(2**63) <= each < 2**64]])
            case _:
                return chance.choice(ODD)

    def damage(self, data: bytes) -> bytes:
        """Some bytes of it different."""
        damaged = bytearray(data)
        for _ in range(self.chance.randrange(1, 4) if data else 0):
            damaged[self.chance.randrange(len(damaged))] = self.chance.randrange(256)
        return bytes(damaged)


def as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return to_text(value)
    if isinstance(value, dict):
        return {str(key): as_json(each) for key, each in value.items()}
    return [as_json(each) for each in value] if isinstance(value, list) else value


@pytest.fixture
async def door(database: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Door]:
    async with running_door(database, redis_url, tmp_path, loopback_exempt=True) as running:
        await running.set_policy(
            "submit_rate_per_device=0", "submit_rate_per_pair=0", "handshakes_per_second=0",
            "max_active_devices_per_identity=5",
        )  # fmt: skip
        yield running


def good_requests(door: Door, one: HttpDevice, other: HttpDevice) -> list[tuple[str, str, Any]]:
    key, signature = to_text(os.urandom(32)), to_text(os.urandom(64))
    return [
        ("POST", "/v1/envelopes", send_body(one.id, other.id)),
        ("POST", "/v1/mailbox/acks", {"message_ids": [to_text(os.urandom(16))]}),
        ("PUT", "/v1/prekeys", {"one_time": [{"key_id": 7, "public_key": key}],
                                "last_resort": {"key_id": 1, "public_key": key, "signature": signature}}),
        ("POST", f"/v1/identities/{to_text(other.identity_id)}/prekey-claims", {}),
        ("PUT", "/v1/push-route", {"provider": "apns", "token": "t", "topic": "o.e", "mode": "alert"}),
        ("PUT", "/v1/push-route", {"provider": "webpush", "endpoint": "https://127.0.0.1:1/x"}),
        ("POST", "/v1/devices", {"device_public_key": key, "proof": signature, "challenge": key,
                                 "signature": signature, "replaces": other.id}),
        ("POST", f"/v1/devices/{one.id}/revocation", {"challenge": key, "signature": signature}),
        ("POST", "/v1/auth/challenges", {"device_id": one.id, "purpose": "token"}),
        ("POST", "/v1/auth/tokens", {"device_id": one.id, "challenge": key, "signature": signature}),
        ("POST", "/v1/identities", registration_body(Keys(), door.instance)),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", random_seeds(1))
async def test_a_changed_request_over_http_is_answered_and_is_no_bug(door: Door, seed: int) -> None:
    mutator = Mutator(random.Random(seed))
    chance = mutator.chance
    one, other = await door.device(), await door.device()
    statuses: Counter[int] = Counter()
    for _ in range(REQUESTS):
        method, path, body = chance.choice(good_requests(door, one, other))
        for _ in range(chance.choice([0, 1, 1, 2, 3])):
            body = mutator.change(body)
        in_msgpack = chance.random() < 0.5
        packed = (
            msgpack.packb(body, unicode_errors="surrogatepass") if in_msgpack else json.dumps(as_json(body)).encode()
        )
        data = mutator.damage(packed) if chance.random() < 0.15 else packed
        headers = {"Content-Type": MSGPACK if in_msgpack else "application/json"}
        reply = await door.call(method, path, token=one.token, raw=data, headers=headers)
        assert reply.status < 500, (method, path, data)
        statuses[reply.status] += 1
    assert statuses[400] > REQUESTS // 4
    assert statuses[201]  # some were still good
    assert (await door.call("GET", "/v1/mailbox", token=one.token)).status == 200


@pytest.mark.parametrize("seed", random_seeds(1))
async def test_changed_frames_end_in_errors_and_close_codes_of_the_contract(door: Door, seed: int) -> None:
    mutator = Mutator(random.Random(seed))
    chance = mutator.chance
    one, other = await door.device(), await door.device()
    parts = urlsplit(door.url)
    codes: Counter[int] = Counter()
    for _ in range(SESSIONS):
        mids = [os.urandom(16) for _ in range(3)]
        envelope = {"to": other.device_id, "mid": os.urandom(16), "pv": 1, "body": os.urandom(200)}
        kinds = [
            [2, {"cmid": os.urandom(16), "envelopes": [envelope]}], [3, {"ref": 1, "mids": mids}],
            [4, {"ref": 1, "limit": 5}], [5, {"mids": mids}], [6, {"token": one.token}], [7, {"t": 1}], [99, {}],
        ]  # fmt: skip
        frames = [chance.choice(kinds) for _ in range(chance.randrange(1, 10))]
        frames = [mutator.change(frame) if chance.random() < 0.3 else frame for frame in frames]
        hello = [1, {"token": one.token, "instance": os.urandom(16), "attempt": 1}]
        stream = b""
        for frame in [mutator.change(hello) if chance.random() < 0.2 else hello, *frames]:
            data = msgpack.packb(frame, unicode_errors="surrogatepass")
            data = mutator.damage(data) if chance.random() < 0.1 else data
            cut = chance.randrange(1, len(data) + 1)
            whole = chance.random() < 0.8 or cut == len(data)
            stream += ws_frame(data) if whole else ws_frame(data[:cut], fin=False) + ws_frame(data[cut:], 0)
        # Whatever became of it, this ends it: a fragment where none may be.
        stream += ws_frame(b"", PING, fin=False)
        client = await RawClient.connect(str(parts.hostname), int(parts.port or 0))
        try:
            assert (await client.upgrade()).status == 101
            for start in range(0, len(stream), 1_000):
                client.send_raw(stream[start : start + 1_000])
            closed = await client.closed()
            assert closed.code in (1002, 1007, 1009, 4400, 4401, 4409, 4429), (closed, frames)
            assert not [error for error in client.errors() if error.code == "INTERNAL"], frames
            codes[closed.code] += 1
        finally:
            client.cut()
            with suppress(ConnectionError):
                await client.writer.wait_closed()
    assert codes[4400]  # some got past the WebSocket's own checks to ours
    assert (await door.call("GET", "/readyz")).status == 200
