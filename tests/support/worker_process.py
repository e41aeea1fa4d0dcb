"""Workers as processes of their own, to be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import asyncpg

from protocol.ids import InstanceId
from runtime import keyring
from runtime.keyring import Keyring
from store.push_seal import PushSeal
from store.redis_client import connect
from store.redis_names import instance_tag
from store.wake import WakeNames
from tests.support.waiting import eventually

READY_SECONDS = 60.0


@dataclass
class WorkerProcess:
    process: asyncio.subprocess.Process
    ops_url: str
    log: Path

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(self.ops_url + path) as response:
            return response.status, await response.text()

    async def metric(self, name: str) -> float:
        """The sum over all labels of one metric."""
        _, text = await self.get("/metrics")
        lines = [
            line for line in text.splitlines() if line.startswith(("mailboxd_" + name + " ", "mailboxd_" + name + "{"))
        ]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def is_ready(self) -> bool:
        try:
            status, _ = await self.get("/readyz")
        except aiohttp.ClientError:
            return False
        return status == 200

    async def ended(self, within_seconds: float = 60.0) -> int:
        """Its exit status; negative for a signal."""
        async with asyncio.timeout(within_seconds):
            return await self.process.wait()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@dataclass
class WorkerLab:
    """Where workers are started: one database, one Valkey database, one keyring."""

    dsn: str
    redis_url: str
    directory: Path

    def __post_init__(self) -> None:
        self.secrets_dir = self.directory / "secrets"
        there = (self.secrets_dir / keyring.KEYRING_FILE).exists()
        self.keyring = Keyring.load(self.secrets_dir) if there else keyring.create(self.secrets_dir, 1)
        self.seal = PushSeal(*self.keyring.push_token_keys)
        self._number = 0

    async def ring(self) -> None:
        """As a gateway does after a commit."""
        redis = connect(self.redis_url)
        connection = await asyncpg.connect(self.dsn)
        try:
            instance = await connection.fetchval("SELECT instance_id FROM instances")
            await redis.publish(WakeNames(instance_tag(InstanceId(instance.bytes)), b"k" * 32).outbox, b"o 0")
        finally:
            await connection.close()
            await redis.aclose()

    @asynccontextmanager
    async def worker(
        self, *, faults: str = "", settings: Mapping[str, str] | None = None, ready: bool = True
    ) -> AsyncIterator[WorkerProcess]:
        """A running worker, killed at the end if it has not ended by itself."""
        self._number += 1
        log = self.directory / f"worker-{self._number}.log"
        port = _free_port()
        environment = {
            "PATH": os.environ["PATH"],
            "MAILBOXD_POSTGRES_DSN": self.dsn,
            "MAILBOXD_REDIS_URL": self.redis_url,
            "MAILBOXD_SECRETS_DIR": str(self.secrets_dir),
            "MAILBOXD_OPS_LISTEN": f"127.0.0.1:{port}",
            "MAILBOXD_PUSH_PRIVATE_NETWORKS_ALLOWED": "127.0.0.0/8",
            "MAILBOXD_DISPATCH_POLL_S": "0.1",
            **({"MAILBOXD_FAULTPOINTS": faults} if faults else {}),
            **(settings or {}),
        }
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "mailboxd", "worker", env=environment, stdout=output, stderr=output
            )
        worker = WorkerProcess(process, f"http://127.0.0.1:{port}", log)
        try:
            if ready:
                await eventually(
                    lambda: _ready_or_dead(worker), within_seconds=READY_SECONDS, what=f"worker ready; log {log}"
                )
            yield worker
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _ready_or_dead(worker: WorkerProcess) -> bool:
    if worker.process.returncode is not None and worker.process.returncode != -signal.SIGKILL:
        raise AssertionError(worker.log.read_text(errors="replace")[-2000:])
    return worker.process.returncode is not None or await worker.is_ready()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
