"""No client's address is kept past the rate limiter's window, an hour: not in Redis, not in a table, not in memory.

Memory is walked from the gateway's own parts and tasks: whatever they reach, and holds a planted address in any text,
bytes or address object, is found.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import ipaddress
import types
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway
from store.rate_limit import FORGET_S
from tests.support.canary_evidence import dumped_tables, stored_in_redis
from tests.support.gateways import ShiftedClock
from tests.support.http_door import Door, running_door
from tests.support.waiting import eventually

# Built at run time and kept apart, so that the walk finds what the gateway keeps and not what this test does.
V4, V6 = (203, 0, 113), (0x2001, 0xDB8, 0x77, 0x42)


def addresses() -> list[str]:
    return [*(".".join(map(str, (*V4, last))) for last in range(1, 9)), ":".join(f"{part:x}" for part in V6) + "::1"]


def traces() -> tuple[str, str]:
    """What stands in every spelling of them."""
    return ".".join(map(str, V4)) + ".", ":".join(f"{part:x}" for part in V6)


# Where a walk would leave the gateway: code, classes, and the loop, which has this test among its tasks.
BEYOND = (types.ModuleType, type, types.CodeType, asyncio.AbstractEventLoop)


def kept_by(gateway: Gateway) -> list[str]:
    """The addresses that anything reachable from the gateway holds."""
    v4, v6 = traces()
    found: list[str] = []
    seen: dict[int, Any] = {}  # kept alive, so that no id comes twice
    this = asyncio.current_task()
    waiting: list[Any] = [gateway, *(task for task in asyncio.all_tasks() if task is not this)]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, BEYOND) or each is this:
            continue
        seen[id(each)] = each
        if isinstance(each, str | bytes | bytearray):
            text = each if isinstance(each, str) else bytes(each).decode("latin-1")
            if v4 in text or v6 in text:
                found.append(text)
        elif isinstance(each, ipaddress.IPv4Address | ipaddress.IPv6Address):
            if v4 in str(each) or v6 in str(each):
                found.append(str(each))
        elif isinstance(each, types.FunctionType):
            waiting += [cell.cell_contents for cell in each.__closure__ or () if cell_is_full(cell)]
            waiting += [each.__defaults__, each.__kwdefaults__]
        elif not (isinstance(each, dict) and "__builtins__" in each):  # the globals of a module
            waiting += gc.get_referents(each)
    assert len(seen) > 1_000, "the walk has lost its way"
    return found


def cell_is_full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
async def door(database: str, redis_url: str, tmp_path: Path, clock: ShiftedClock) -> AsyncIterator[Door]:
    async with running_door(database, redis_url, tmp_path, clock=clock, trusted_proxies="127.0.0.1") as running:
        yield running


async def come_from_everywhere(door: Door) -> None:
    """Requests of every kind that an address counts in: calls, sign-ins, a registration, SENDs, refusals, sockets."""
    device, other = await door.device(), await door.device()
    for address in addresses():
        headers = {"X-Forwarded-For": address}
        challenge = {"device_id": device.id, "purpose": "token"}
        assert (await door.call("POST", "/v1/auth/challenges", challenge, headers=headers)).status == 201
        assert (await door.call("POST", "/v1/identities", {}, headers=headers)).status == 400
        bad = {**registration(), "signature": "A" * 86}
        assert (await door.call("POST", "/v1/identities", bad, headers=headers)).status == 401
        assert (await door.call("GET", "/v1/mailbox", token="a.b.c", headers=headers)).status == 401
        assert (await device.send(other, headers=headers)).status == 201
        async with door.session.ws_connect(door.url + "/v1/ws", protocols=("mailboxd.v1",), headers=headers) as socket:
            await socket.send_bytes(b"\x92\x01\x81\xa5token\xa1x")
    await eventually(lambda: door.gateway.door.open_sockets == 0, what="the sockets are gone")


def registration() -> dict[str, str]:
    return {"identity_public_bundle": "AAAA", "device_public_key": "A" * 43}


async def forget_all(door: Door, clock: ShiftedClock) -> None:
    clock.ahead_s += FORGET_S + 1
    gateway = door.gateway
    await eventually(lambda: kept_by(gateway) == [], within_seconds=15, what="nothing remembers an address")


async def test_the_walk_finds_what_closures_keep_alive() -> None:
    """Whatever shape something is kept in."""
    hidden = addresses()[0]

    class Holder:
        def __init__(self) -> None:
            self.call = lambda: hidden

    assert inspect.isfunction(Holder().call)
    ballast = [[number] for number in range(1_000)]
    assert set(kept_by((ballast, Holder()))) == {hidden}  # type: ignore[arg-type]
    assert kept_by((ballast, {ipaddress.ip_address(hidden): 1}))  # type: ignore[arg-type]


async def test_an_hour_after_its_last_request_nobody_remembers_an_address(
    door: Door, clock: ShiftedClock, database: str, redis_url: str
) -> None:
    await come_from_everywhere(door)
    v4, v6 = traces()
    kept = " ".join(kept_by(door.gateway))
    assert v4 in kept  # the limiter's tables: this test can fail
    assert v6 in kept
    stored = stored_in_redis(redis_url)
    assert b"rate:" in stored
    assert v4.encode() not in stored
    assert v6.encode() not in stored
    tables = await dumped_tables(database)
    assert [name for name, text in tables.items() if v4.encode() in text or v6.encode() in text] == []
    # The names in Redis are keyed hashes, and go with the window all the same.
    redis = door.gateway.services.redis
    ends = [await redis.pttl(key) for key in await redis.keys("*:rate:*")]
    assert ends
    assert all(0 < end <= FORGET_S * 1_000 + 2_000 for end in ends)
    await forget_all(door, clock)


async def test_without_redis_they_are_forgotten_as_well(database: str, tmp_path: Path, clock: ShiftedClock) -> None:
    nowhere = "redis://127.0.0.1:1"
    async with running_door(database, nowhere, tmp_path, clock=clock, trusted_proxies="127.0.0.1") as door:
        await come_from_everywhere(door)
        assert kept_by(door.gateway)
        await forget_all(door, clock)
