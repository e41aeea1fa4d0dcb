"""Clients that mean harm, or have no luck, as a process of their own: `python -m loadtest.faults.hostile_clients`.

The first line of its standard input says what to do. It goes on until that input ends, then prints what it met as one
JSON line. A process apart, so that what it costs is not taken for what the server costs its other clients.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from loadtest.lean_socket import LeanSocket, ack, frame_head, hello, message
from protocol.frames import FrameType

_ERROR: Final = int(FrameType.ERROR)
_SEND_ACK: Final = int(FrameType.SEND_ACK)
_WELCOME: Final = int(FrameType.WELCOME)
_MAILBOX_BATCH: Final = int(FrameType.MAILBOX_BATCH)
CONNECT_S_MAX: Final = 5.0


@dataclass(slots=True)
class Attack:
    """Whom to harm, with which devices (id and token), and what was met so far."""

    host: str
    port: int
    devices: list[tuple[bytes, str]]
    met: Counter[str] = field(default_factory=Counter)
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    async def socket(self, token: str, **how: Any) -> HostileSocket | None:
        """One more connection with its upgrade on the way; None when it was refused."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                _, made = await loop.create_connection(lambda: HostileSocket(self, token, **how), self.host, self.port)
        except (OSError, TimeoutError):
            self.met["not connected"] += 1
            return None
        self.met["connected"] += 1
        return made


class HostileSocket(LeanSocket):
    """A connection that does what its options say and counts what the server does about it."""

    def __init__(
        self,
        attack: Attack,
        token: str,
        *,
        first: bytes | None = None,
        acks: bool = True,
        spares: int = 0,
        **options: Any,
    ) -> None:
        """`first`: sent instead of HELLO. `spares`: so many entries of every session are never acked."""
        super().__init__(f"{attack.host}:{attack.port}", token)
        self.welcomed = asyncio.Event()
        self.ended = asyncio.Event()
        self._attack = attack
        self._first = first
        self._acks = acks
        self._spares = spares
        self._options = options
        self._ref = 0

    def hello_message(self) -> bytes:
        return hello(self._token, **self._options) if self._first is None else self._first

    def frame(self, kind: int, body: dict[str, Any]) -> None:
        if kind == _WELCOME:
            self.welcomed.set()
        elif kind == _ERROR:
            self._attack.met[f"error {body['code']}"] += 1
        elif kind == _SEND_ACK:
            self._attack.met["accepted"] += 1
        elif kind == _MAILBOX_BATCH:
            mids = [entry["mid"] for entry in body["entries"]]
            self._attack.met["received"] += len(mids)
            while self._spares and mids:
                mids.pop(0)
                self._spares -= 1
            if self._acks and mids:
                self._ref += 1
                self.out.append(ack(self._ref, mids))

    def upgrade_refused(self, status_line: str, retry_after_s: int | None) -> None:
        self._attack.met[status_line.removeprefix("HTTP/1.1 ")] += 1

    def lost(self, reason: str) -> None:
        self._attack.met[f"closed {self.close_code}" if self.close_code else "ended"] += 1
        self.ended.set()

    def send(self, to: bytes, body: bytes, **options: Any) -> None:
        """One SEND with one envelope."""
        envelope = {"to": to, "mid": os.urandom(16), "pv": 1, "body": body, **options}
        self.out.append(message([FrameType.SEND, {"cmid": os.urandom(16), "echo": False, "envelopes": [envelope]}]))
        self.flush()


async def _ready(sockets: list[HostileSocket | None]) -> list[HostileSocket]:
    open_ = [one for one in sockets if one is not None]
    for one in open_:
        with suppress(TimeoutError):
            await asyncio.wait_for(one.welcomed.wait(), CONNECT_S_MAX)
    return open_


async def slow_readers(attack: Attack) -> None:
    """All devices but the last ask for the widest window and never read; the last one sends them large mail."""
    *slow, (_, sender_token) = attack.devices
    readers = await _ready(
        [await attack.socket(token, window_entries=1_024, window_bytes=8 << 20) for _, token in slow]
    )
    for reader in readers:
        if reader.transport is not None:
            reader.transport.pause_reading()
    (sender,) = await _ready([await attack.socket(sender_token)])
    body = os.urandom(60_000)
    while True:
        for device, _ in slow:
            sender.send(device, body)
            await asyncio.sleep(0.02)


async def silent(attack: Attack) -> None:
    """Connections without a word after the upgrade, opened again when they are closed."""
    await asyncio.gather(*(_kept_open(attack, attack.devices[0][1], first=b"") for _ in range(150)))


async def half_open(attack: Attack) -> None:
    """Sessions whose client is gone without a word: nothing is read, answered or sent any more."""
    sockets = await _ready([await attack.socket(token) for _, token in attack.devices])
    for one in sockets:
        if one.transport is not None:
            one.transport.pause_reading()
    await asyncio.Event().wait()


async def slow_loris(attack: Attack) -> None:
    """Upgrades and frames that come byte by byte."""
    head = b"GET /v1/ws HTTP/1.1\r\nHost: mailbox\r\nX-Slow: " + b"a" * 10_000

    async def one() -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection(attack.host, attack.port)
            except OSError:
                attack.met["not connected"] += 1
                await asyncio.sleep(0.5)
                continue
            attack.met["connected"] += 1
            try:
                for byte in head:
                    writer.write(bytes((byte,)))
                    await writer.drain()
                    await asyncio.sleep(0.3)
            except OSError:
                attack.met["ended"] += 1
            finally:
                writer.close()

    async def half_a_frame(token: str) -> None:
        part = frame_head(200_000) + b"x" * 10_000
        await _kept_open(attack, token, first=hello(token) + part)

    await asyncio.gather(*(one() for _ in range(100)), *(half_a_frame(token) for _, token in attack.devices))


async def flood_of_hello(attack: Attack) -> None:
    """Connections that say HELLO with tokens that are none, as fast as 150 a second."""
    await _flood(attack, 150, lambda: attack.socket("a" * 600))


async def flood_of_bad_frames(attack: Attack) -> None:
    """Sessions that send bytes which are no frame, as fast as 100 a second."""
    junk = frame_head(64) + os.urandom(64)
    await _flood(attack, 100, lambda: attack.socket("", first=junk))


async def flood_of_takeovers(attack: Attack) -> None:
    """One device connects again and again, 50 times a second, each time as another client."""
    token = attack.devices[0][1]
    await _flood(attack, 50, lambda: attack.socket(token, instance=os.urandom(16), attempt=1))


async def twins(attack: Attack) -> None:
    """Two copies of each device's store: each comes back whenever the other one has taken its session."""
    copies = [(token, os.urandom(16)) for _, token in attack.devices for _ in range(2)]
    await asyncio.gather(*(_kept_open(attack, token, instance=instance) for token, instance in copies))


async def never_decrypts(attack: Attack) -> None:
    """A device that never acks its first entries, and acks all others; a second one sends to it."""
    (device, token), (_, sender_token) = attack.devices[:2]
    await _ready([await attack.socket(token, spares=3)])
    (sender,) = await _ready([await attack.socket(sender_token)])
    while True:
        sender.send(device, b"x" * 500)
        await asyncio.sleep(0.02)


async def full_of_expired(attack: Attack) -> None:
    """A mailbox filled with mail that lives a second; then more is sent, for which there is room again."""
    (device, _), (_, sender_token) = attack.devices[:2]
    (sender,) = await _ready([await attack.socket(sender_token)])
    while True:
        for _ in range(50):
            sender.send(device, b"x" * 200, ttl_s=1)
        await asyncio.sleep(0.25)


async def hot_mailbox(attack: Attack) -> None:
    """Everybody sends to one mailbox, 100 messages a second in all; its owner reads and acks."""
    (device, token), *others = attack.devices
    await attack.socket(token)
    senders = await _ready([await attack.socket(other) for _, other in others])
    while True:
        attack.chance.choice(senders).send(device, b"x" * 200)
        await asyncio.sleep(0.01)


async def _kept_open(attack: Attack, token: str, **how: Any) -> None:
    while True:
        made = await attack.socket(token, **how)
        if made is not None:
            await made.ended.wait()
        await asyncio.sleep(attack.chance.uniform(0.2, 0.6))


async def _flood(attack: Attack, per_second: int, connect: Callable[[], Awaitable[HostileSocket | None]]) -> None:
    async def one() -> None:
        made = await connect()
        if made is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(made.ended.wait(), CONNECT_S_MAX)
            made.cut()

    async with asyncio.TaskGroup() as flood:
        while True:
            flood.create_task(one())
            await asyncio.sleep(1 / per_second)


ATTACKS: Final[dict[str, Callable[[Attack], Awaitable[None]]]] = {
    attack.__name__: attack
    for attack in (
        slow_readers, silent, half_open, slow_loris, flood_of_hello, flood_of_bad_frames, flood_of_takeovers, twins,
        never_decrypts, full_of_expired, hot_mailbox,
    )
}  # fmt: skip


async def _run(options: dict[str, Any]) -> None:
    devices = [(bytes.fromhex(device), token) for device, token in options["devices"]]
    attack = Attack(options["host"], options["port"], devices)
    attacking = asyncio.ensure_future(ATTACKS[options["attack"]](attack))
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.wait((attacking, ended), return_when=asyncio.FIRST_COMPLETED)
    if attacking.done():
        attacking.result()
    attacking.cancel()
    await asyncio.gather(attacking, return_exceptions=True)
    print(json.dumps(attack.met), flush=True)


if __name__ == "__main__":
    asyncio.run(_run(json.loads(sys.stdin.readline())))
