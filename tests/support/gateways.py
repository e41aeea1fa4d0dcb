"""Gateways on one database and one Valkey: inside the test's process, or as processes of their own to be killed."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg

from gateway.app import Gateway
from gateway.auth import AuthService
from protocol.ids import DeviceId, InstanceId
from runtime import keyring
from runtime.clock import Clock, SystemClock
from runtime.config import GatewayConfig
from runtime.keyring import Keyring
from store.instance import read_instance_id
from store.postgres import Postgres
from store.redis_client import connect
from store.redis_names import instance_tag
from store.wake import WakeNames
from tests.support.command import TREE
from tests.support.raw_client import RawClient
from tests.support.waiting import eventually

READY_SECONDS = 60.0
LOCAL = "127.0.0.1"

# Nothing but what a test is about may refuse it.
_NO_LIMITS = """{"submit_rate_per_pair": 0, "submit_rate_per_device": 0, "submit_rate_per_ip": 0,
                 "connections_per_ip": 0, "handshakes_per_second": 0}"""


@dataclass(repr=False)
class Device:
    """A registered device and the means to make tokens for it."""

    id: DeviceId
    auth: AuthService

    @property
    def token(self) -> str:
        return self.auth.issue(self.id).token


class ShiftedClock(SystemClock):
    """The host's clocks, moved ahead by a test. Sleeping takes its real time."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self.ahead_s * 1000)


class Door:
    """How tests come in; what they leave open is cut at the end."""

    port: int
    clients: list[RawClient]

    async def connect(self, **options: Any) -> RawClient:
        client = await RawClient.connect(LOCAL, self.port, **options)
        self.clients.append(client)
        return client

    async def socket(self, **headers: str) -> RawClient:
        """A connection that is upgraded."""
        client = await self.connect()
        answer = await client.upgrade(headers=headers)
        assert answer.status == 101, answer
        return client

    async def session(self, device: Device, **hello: Any) -> RawClient:
        """A live session that has heard `caught_up`; its batches are in `seen`."""
        client = await self.socket()
        await client.hello(device.token, **hello)
        await client.caught_up()
        return client

    async def cut_all(self) -> None:
        for client in self.clients:
            client.cut()
            with suppress(ConnectionError):
                await client.writer.wait_closed()


@dataclass(repr=False)
class LocalGateway(Door):
    """A gateway in this process."""

    gateway: Gateway
    stopping: asyncio.Event
    running: asyncio.Task[None]
    clients: list[RawClient] = field(default_factory=list)

    @property
    def port(self) -> int:  # type: ignore[override]
        return self.gateway.ports[0].port

    async def stop(self) -> None:
        self.stopping.set()
        await self.running


@dataclass(repr=False)
class GatewayProcess(Door):
    """A gateway in a process of its own."""

    process: asyncio.subprocess.Process
    port: int
    ops_port: int
    log: Path
    clients: list[RawClient] = field(default_factory=list)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{LOCAL}:{self.ops_port}/readyz", timeout=2) as answer:
                return bool(json.load(answer)["status"] == "ready")
        except OSError:
            return False

    async def metric(self, name: str) -> float:
        """The sum over all labels of one metric."""

        def read() -> float:
            with urllib.request.urlopen(f"http://{LOCAL}:{self.ops_port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
            found = [line for line in lines if line.startswith((f"mailboxd_{name} ", f"mailboxd_{name}{{"))]
            return sum(float(line.rpartition(" ")[2]) for line in found)

        return await asyncio.to_thread(read)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self, within_seconds: float = 60.0) -> int:
        async with asyncio.timeout(within_seconds):
            return await self.process.wait()


@dataclass(repr=False)
class GatewayLab:
    """Where gateways are started. `async with GatewayLab(...)` for one test."""

    dsn: str
    redis_url: str
    directory: Path
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _number: int = 0

    async def __aenter__(self) -> GatewayLab:
        self.secrets_dir = self.directory / "secrets"
        self.keyring: Keyring = keyring.create(self.secrets_dir, 1)
        self.postgres = Postgres(self.dsn, pool_max=4)
        await self.postgres.open()
        self._stack.push_async_callback(self.postgres.close)
        self.instance_id = InstanceId(await read_instance_id(self.postgres))
        self.names = WakeNames(instance_tag(self.instance_id), self.keyring.fingerprint.key)
        self.redis = connect(self.redis_url)
        self._stack.push_async_callback(self.redis.aclose)
        # A signer alone: it never asks the database.
        self.auth = AuthService(
            self.postgres,
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            self.instance_id,
            self.keyring.token_signing,
            SystemClock(),
        )
        await self.set_policy(_NO_LIMITS)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._stack.aclose()

    async def set_policy(self, changes: str) -> None:
        """Merge a JSON object into the policy."""
        await self.postgres.execute(
            "UPDATE instances SET policy = policy || $1::text::jsonb, policy_version = policy_version + 1", changes
        )

    async def device(self) -> Device:
        """A device of an identity of its own."""
        device = DeviceId(os.urandom(16))
        async with self.postgres.transaction() as connection:
            identity = os.urandom(16)
            await connection.execute(
                "INSERT INTO identities (identity_id, identity_public_bundle) VALUES ($1, 'bundle')", identity
            )
            await connection.execute(
                "INSERT INTO devices (device_id, identity_id, device_public_key) VALUES ($1, $2, $3)",
                device,
                identity,
                os.urandom(32),
            )
            await connection.execute("INSERT INTO mailboxes (device_id, identity_id) VALUES ($1, $2)", device, identity)
            await connection.execute("INSERT INTO mailbox_owners (device_id) VALUES ($1)", device)
        return Device(device, self.auth)

    async def devices(self, count: int) -> list[Device]:
        return [await self.device() for _ in range(count)]

    async def owner(self, device: Device) -> asyncpg.Record:
        """The owner's row of a device."""
        row = await self.postgres.fetchrow("SELECT * FROM mailbox_owners WHERE device_id = $1", device.id)
        assert row is not None
        return row

    def config(self, **settings: Any) -> GatewayConfig:
        """Quick to drain, and free ports."""
        return GatewayConfig(
            **{
                "postgres_dsn": self.dsn,
                "redis_url": self.redis_url,
                "secrets_dir": self.secrets_dir,
                "listen": f"{LOCAL}:0",
                "ops_listen": f"{LOCAL}:0",
                "drain_deadline_s": 1.0,
                "postgres_pool_max": 4,
                **settings,
            },
        )

    @asynccontextmanager
    async def gateway(self, *, clock: Clock | None = None, **settings: Any) -> AsyncIterator[LocalGateway]:
        """A gateway in this process, drained at the end."""
        async with AsyncExitStack() as stack:
            gateway = await Gateway.open(self.config(**settings), clock or SystemClock(), stack)
            stopping = asyncio.Event()
            running = asyncio.create_task(gateway.run(stopping))
            local = LocalGateway(gateway, stopping, running)
            await eventually(
                lambda: gateway.services.wake.reachable is False or local_hears(gateway), what="the wakes are heard"
            )
            try:
                yield local
            finally:
                await local.cut_all()
                await local.stop()

    @asynccontextmanager
    async def process(
        self, *, faults: str = "", settings: Mapping[str, str] | None = None, open_files: tuple[int, int] | None = None
    ) -> AsyncIterator[GatewayProcess]:
        """A gateway in a process of its own, killed at the end if it has not ended by itself.

        `open_files` is its soft and hard limit of open files.
        """
        self._number += 1
        log = self.directory / f"gateway-{self._number}.log"
        port, ops_port = free_port(), free_port()
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(TREE),
            "MAILBOXD_POSTGRES_DSN": self.dsn,
            "MAILBOXD_REDIS_URL": self.redis_url,
            "MAILBOXD_SECRETS_DIR": str(self.secrets_dir),
            "MAILBOXD_LISTEN": f"{LOCAL}:{port}",
            "MAILBOXD_OPS_LISTEN": f"{LOCAL}:{ops_port}",
            "MAILBOXD_DRAIN_DEADLINE_S": "2",
            "MAILBOXD_POSTGRES_POOL_MAX": "4",
            **({"MAILBOXD_FAULTPOINTS": faults} if faults else {}),
            **(settings or {}),
        }
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "mailboxd", "gateway", env=environment, stdout=output, stderr=output,
                preexec_fn=open_files and partial(resource.setrlimit, resource.RLIMIT_NOFILE, open_files),
            )  # fmt: skip
        gateway = GatewayProcess(process, port, ops_port, log)
        try:
            await eventually(
                lambda: _ready_or_dead(gateway), within_seconds=READY_SECONDS, what=f"gateway ready; log {log}"
            )
            yield gateway
        finally:
            await gateway.cut_all()
            if process.returncode is None:
                process.kill()
                with suppress(ProcessLookupError):
                    await process.wait()


def local_hears(gateway: Gateway) -> bool:
    """Wakes reach it."""
    return gateway.listener.alive


async def _ready_or_dead(gateway: GatewayProcess) -> bool:
    if gateway.process.returncode is not None:
        raise AssertionError(gateway.log.read_text(errors="replace")[-2000:])
    return await asyncio.to_thread(gateway.is_ready)


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    import socket

    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        return int(probe.getsockname()[1])
