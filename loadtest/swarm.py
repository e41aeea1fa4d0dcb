"""Many devices in one process: each sends, receives and acks over its own connection, and everything is recorded.

A device that wakes up handles all frames that arrived, acks all entries in one frame and writes once, as the SDK does.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

from loadtest.accounts import Account
from loadtest.latency import Latencies
from loadtest.lean_socket import Layout, LeanSocket, SendTemplate, ack, hello, message
from loadtest.recorder import Attempt, OfferedEnvelope, Recorder, Stream
from protocol.frames import FrameType
from protocol.limits import ACK_MAX

BODY_POOL: Final = 64  # distinct bodies; the recorder compares the bytes of every one that arrives
CONNECT_CONCURRENCY: Final = 100
CLIENT_ADDRESSES: Final = 8  # 127.0.0.2 and so on
CONNECT_S_MAX: Final = 60.0
_SEND_ACK: Final = int(FrameType.SEND_ACK)
_MAILBOX_BATCH: Final = int(FrameType.MAILBOX_BATCH)
_ACK_RESULT: Final = int(FrameType.ACK_RESULT)
_ERROR: Final = int(FrameType.ERROR)
_WELCOME: Final = int(FrameType.WELCOME)
_GOAWAY: Final = int(FrameType.GOAWAY)
_REAUTH: Final = int(FrameType.REAUTH)


class SwarmFailed(Exception):
    """The swarm could not do its work; the message says what the server answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is sent by whom to whom. Indices are those of the swarm's accounts."""

    payload_bytes: int
    echo: bool = False
    senders: Sequence[int]
    recipients: Sequence[int]
    closed_loop: bool = True  # each sender has one SEND in flight; else SENDs are made by `Swarm.send_from`
    window_entries: int = 256
    window_bytes: int = 1024 * 1024


@dataclass(slots=True)
class Window:
    """What happened since `started` (perf_counter seconds)."""

    started: float
    confirmed: int = 0
    delivered: int = 0
    echoes: int = 0
    acked: int = 0
    delivery: Latencies = field(default_factory=Latencies)
    send_ack: Latencies = field(default_factory=Latencies)


class Device(LeanSocket):
    """One device of a swarm."""

    def __init__(self, swarm: Swarm, index: int, host: str) -> None:
        super().__init__(host, swarm.accounts[index].token)
        self.index = index
        self.id = swarm.accounts[index].device
        self.welcomed = False
        self.admitted_at = 0.0
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.in_flight: dict[bytes, tuple[Attempt, float]] = {}
        self.acks_open: dict[int, list[bytes]] = {}
        self.sends_by_itself = False
        self.come_back_s: float | None = None  # the time that the server gave to come back at
        self._swarm = swarm
        self._stream: Stream
        self._to_ack: list[bytes] = []
        self._ref = 0

    def hello_message(self) -> bytes:
        self._stream = self._swarm.recorder.open_stream(self.id)
        traffic = self._swarm.traffic
        return hello(self._token, window_entries=traffic.window_entries, window_bytes=traffic.window_bytes)

    def message(self, message: bytes) -> None:
        """The two frames that come by the hundred thousand are read without unpacking; all others as they are."""
        swarm, size = self._swarm, len(message)
        if size == swarm.batch_of_one.size and self.ready.done():
            if (batch := swarm.batch_of_one.read(message)) is not None:
                self._entry(batch[0], batch[1])
                return
        elif size == swarm.send_ack_of_one.size and (answer := swarm.send_ack_of_one.read(message)) is not None:
            self._confirmed(answer[0], (answer[1:],))
            return
        super().message(message)

    def frame(self, kind: int, body: dict[str, Any]) -> None:
        if kind == _MAILBOX_BATCH:
            self._batch(body)
        elif kind == _SEND_ACK:
            self._confirmed(body["cmid"], [(r["mid"], r["accepted_at"], r["expires_at"]) for r in body["results"]])
        elif kind == _ACK_RESULT:
            mids = self.acks_open.pop(body["ref"])
            self._swarm.recorder.acked(self.id, mids)
            self._swarm.window.acked += len(mids)
        elif kind == _ERROR:
            self._refused(body)
        elif kind == _WELCOME:
            self.welcomed = True
            self._swarm.welcomes.add(perf_counter() - self.admitted_at)
        elif kind == _GOAWAY:
            self.come_back_s = body["reconnect_after_ms"] / 1_000

    def admitted(self) -> None:
        self.admitted_at = perf_counter()

    def wake_up_ends(self) -> None:
        waiting = self._to_ack
        while waiting:
            mids, waiting = waiting[:ACK_MAX], waiting[ACK_MAX:]
            self._ref += 1
            self.acks_open[self._ref] = mids
            self.out.append(ack(self._ref, mids))
        self._to_ack = waiting

    def upgrade_refused(self, status_line: str, retry_after_s: int | None) -> None:
        self.close_reason = status_line
        self.come_back_s = retry_after_s

    def lost(self, reason: str) -> None:
        if not self.ready.done():
            self.ready.set_exception(SwarmFailed(f"device {self.index}: {self.close_reason or reason}"))
        self._swarm.device_lost(self, reason)

    def _batch(self, body: dict[str, Any]) -> None:
        for entry in body["entries"]:
            if entry.get("echo"):
                self._to_ack.append(entry["mid"])
                self._swarm.recorder.received(self._stream, entry["mid"], None, entry["cmid"])
                self._swarm.window.echoes += 1
            else:
                self._entry(entry["mid"], entry["body"])
        if body["caught_up"] and not self.ready.done():
            self.ready.set_result(None)

    def _entry(self, mid: bytes, body: bytes) -> None:
        swarm = self._swarm
        self._to_ack.append(mid)
        sent = swarm.recorder.received(self._stream, mid, body)
        if sent is not None:
            swarm.window.delivered += 1
            swarm.window.delivery.add(perf_counter() - sent)

    def _confirmed(self, cmid: bytes, results: Sequence[tuple[Any, ...]]) -> None:
        swarm, window = self._swarm, self._swarm.window
        attempt, sent = self.in_flight.pop(cmid)
        swarm.recorder.accepted(attempt, results)
        window.confirmed += len(results)
        now = perf_counter()
        window.send_ack.add(now - sent)
        if self.sends_by_itself:
            self.out.append(swarm.next_send(self, now))

    def _refused(self, body: dict[str, Any]) -> None:
        swarm = self._swarm
        swarm.refusals[body["code"]] += 1
        waiting = self.in_flight.pop(body.get("cmid", b""), None)
        if waiting is None:
            return
        swarm.recorder.refused(waiting[0], not_committed=body.get("outcome") == "not_committed")
        if self.sends_by_itself:
            delay = body.get("retry_after_ms", 100) / 1_000
            asyncio.get_running_loop().call_later(delay, swarm.send_from, self)


class Swarm:
    """Connects the devices, makes the traffic, keeps the history."""

    def __init__(
        self,
        accounts: Sequence[Account],
        endpoints: Sequence[tuple[str, int]],
        traffic: Traffic,
        recorder: Recorder,
        *,
        seed: int = 1,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.accounts = accounts
        self._tls = tls
        self.traffic = traffic
        self.recorder = recorder
        self.devices: list[Device] = []
        self.refusals: Counter[str] = Counter()
        self.disconnects: Counter[str] = Counter()
        self.send_ack_of_one = send_ack_of_one()
        self.batch_of_one = batch_of_one(traffic.payload_bytes)
        self.window = Window(perf_counter())
        self.welcomes = Latencies()  # from the admitted upgrade to WELCOME
        self.on_lost: Callable[[Device], None] | None = None  # who looks after lost connections instead of failing
        self._endpoints = endpoints
        self._template = SendTemplate(traffic.payload_bytes, echo=traffic.echo)
        self._bodies = [os.urandom(traffic.payload_bytes) for _ in range(BODY_POOL)]
        self._recipients = [accounts[index].device for index in traffic.recipients]
        self._random = random.Random(seed)
        self._ids: list[bytes] = []
        self._closing = False

    async def connect(self, indices: Sequence[int] | None = None) -> None:
        """Connect devices (all by default), spread over the endpoints, and wait until each is caught up."""
        wanted = range(len(self.accounts)) if indices is None else indices
        gate = asyncio.Semaphore(CONNECT_CONCURRENCY)

        async def one(index: int) -> Device:
            async with gate:
                device = await self.open(index)
                await device.ready
                return device

        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                self.devices.extend(await asyncio.gather(*(one(index) for index in wanted)))
        except (OSError, TimeoutError) as error:
            raise SwarmFailed(f"connecting: {str(error) or 'no caught_up in time'}") from error

    async def open(self, index: int) -> Device:
        """Open one device's connection; its `ready` tells when it is caught up."""
        host, port = self._endpoints[index % len(self._endpoints)]
        loop = asyncio.get_running_loop()
        # From several addresses: one has 28,000 ports towards a server, and the server counts connections per address.
        local = (f"127.0.0.{2 + index % CLIENT_ADDRESSES}", 0) if host == "127.0.0.1" else None
        _, device = await loop.create_connection(
            lambda: Device(self, index, f"{host}:{port}"), host, port, local_addr=local, ssl=self._tls
        )
        return device

    def start(self) -> None:
        """Let every sender have one SEND in flight from now on."""
        senders = set(self.traffic.senders)
        for device in self.devices:
            if device.index in senders:
                device.sends_by_itself = True
                self.send_from(device)

    def stop(self) -> None:
        for device in self.devices:
            device.sends_by_itself = False

    def new_window(self) -> Window:
        """Count anew from now; returns what was counted before."""
        before, self.window = self.window, Window(perf_counter())
        return before

    async def warm_up(self, seconds: float) -> None:
        """Let the traffic run, uncounted."""
        await asyncio.sleep(seconds)
        self.new_window()

    async def measure(self, seconds: float) -> tuple[Window, float]:
        """What happens in the next `seconds`, and how long they really were."""
        self.new_window()
        await asyncio.sleep(seconds)
        measured = self.new_window()
        return measured, self.window.started - measured.started

    async def drain(self, patience_s: float = 20.0) -> bool:
        """Wait until every SEND and ACK is answered and every accepted entry is here; False if time ran out."""
        end = perf_counter() + patience_s
        while perf_counter() < end:
            if (
                not any(device.in_flight or device.acks_open for device in self.devices)
                and not self.recorder.outstanding()
            ):
                return True
            await asyncio.sleep(0.05)
        return False

    def close(self) -> None:
        """Close every connection normally."""
        self._closing = True
        self.stop()
        for device in self.devices:
            device.close()

    def send_from(self, device: Device, *, due: float | None = None) -> None:
        """Send one message now. `due` is the moment it was planned for, from which its latency counts."""
        device.out.append(self.next_send(device, due))
        device.flush()

    def next_send(self, device: Device, due: float | None = None) -> bytes:
        """The next SEND of this device to a random other one, noted as offered."""
        cmid, mid = self._id(), self._id()
        drawn = self._random.random()
        to = self._recipients[int(drawn * len(self._recipients))]
        if to == device.id:
            to = self._recipients[int(drawn * len(self._recipients)) - 1]
        body = self._bodies[int(drawn * 1_000_003) % BODY_POOL]
        now = perf_counter() if due is None else due
        attempt = self.recorder.offered(
            device.id,
            device,
            (OfferedEnvelope(to, mid, body),),
            echo_cmid=cmid if self.traffic.echo else None,
            note=now,
        )
        device.in_flight[cmid] = (attempt, now)
        return self._template.message(cmid, to, mid, body)

    def send_many(self, device: Device, to: Sequence[bytes], *, timed: bool = True) -> None:
        """Send one message with one envelope to each of these mailboxes (a mailbox may come several times).

        `timed` false: it is meant to wait, and its delivery counts in no latency.
        """
        cmid = self._id()
        envelopes = [OfferedEnvelope(recipient, self._id(), self._random.choice(self._bodies)) for recipient in to]
        now = perf_counter()
        attempt = self.recorder.offered(device.id, device, envelopes, note=now if timed else None)
        device.in_flight[cmid] = (attempt, now)
        wire = [{"to": e.to, "mid": e.mid, "pv": 1, "body": e.content} for e in envelopes]
        device.out.append(message([FrameType.SEND, {"cmid": cmid, "echo": False, "envelopes": wire}]))
        device.flush()

    def reauthenticate(self) -> None:
        """Show every connection its account's new token."""
        for device in self.devices:
            device.out.append(message([_REAUTH, {"token": self.accounts[device.index].token}]))
            device.flush()

    def device_lost(self, device: Device, reason: str) -> None:
        if self._closing:
            return
        if self.on_lost is not None:
            self.on_lost(device)
        else:
            self.disconnects[reason] += 1

    def _id(self) -> bytes:
        if not self._ids:
            block = os.urandom(16 * 4_096)
            self._ids = [block[at : at + 16] for at in range(0, len(block), 16)]
        return self._ids.pop()


_MID, _CMID = bytes(range(1, 17)), bytes(range(17, 33))
_ACCEPTED_AT, _EXPIRES_AT = 0x0102030405060708, 0x1112131415161718  # as long as every instant since 1970


def send_ack_of_one() -> Layout:
    """The SEND_ACK of a SEND of one envelope: its cmid, and the result's mid, accepted_at and expires_at."""
    result = {"mid": _MID, "accepted_at": _ACCEPTED_AT, "expires_at": _EXPIRES_AT}
    answer = {"cmid": _CMID, "duplicate": False, "results": [result]}
    return Layout([_SEND_ACK, answer], _CMID, _MID, _ACCEPTED_AT, _EXPIRES_AT)


def batch_of_one(body_bytes: int) -> Layout:
    """A pushed MAILBOX_BATCH of one entry, the mailbox's last: mid, body, accepted_at, expires_at, cursor."""
    body, cursor = b"\xfe" * body_bytes, "/" * 76
    entry = {"mid": _MID, "pv": 1, "body": body, "accepted_at": _ACCEPTED_AT, "expires_at": _EXPIRES_AT}
    batch = {"ref": None, "entries": [entry], "cursor": cursor, "more": False, "caught_up": True}
    return Layout([_MAILBOX_BATCH, batch], _MID, body, _ACCEPTED_AT, _EXPIRES_AT, cursor.encode())
