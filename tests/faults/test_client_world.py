"""The world of the simulation on real parts: gateways, worker, PostgreSQL, Valkey and clients, all of them killed.

The judge is `loadtest.recorder`: every send that some process saw confirmed reaches each recipient's app once, in the
sender's order; nothing else appears; everything comes to rest.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest.recorder import OfferedEnvelope, Recorder
from mailbox_client import Account
from tests.acceptance.conftest import data_dir as data_dir
from tests.support.command import TREE, environment
from tests.support.up import running_up
from tests.support.waiting import pace

CLIENTS = 4
STORM_S = 40.0
STORM_MAX_S = 120.0
CALM_S = 120.0
# Nothing but what this is about may refuse a send: then order is kept without exception.
NO_LIMITS = ("submit_rate_per_pair=0", "submit_rate_per_device=0", "submit_rate_per_ip=0")


class Device:
    """One device and its process of the moment."""

    def __init__(self, directory: Path, name: str, urls: list[str]) -> None:
        self.store = directory / f"{name}.sqlite"
        self.log = directory / f"{name}.jsonl"
        self.urls = urls
        self.id = b""
        self.kills = 0
        self._errors = directory / f"{name}.err"
        self._process: asyncio.subprocess.Process | None = None

    async def register(self) -> None:
        self.id = (await Account.register(self.urls[0], self.store)).device_id

    async def start(self, peers: list[bytes], mode: str) -> None:
        with self._errors.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.support.client_process", random.choice(self.urls), str(self.store),
                str(self.log), ",".join(peer.hex() for peer in peers), mode,
                env=environment(), cwd=TREE, stderr=errors,
            )  # fmt: skip

    async def kill(self) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                self.kills += 1
                self._process.kill()
            await self._process.wait()

    async def ended(self, within_s: float) -> int:
        assert self._process is not None
        async with asyncio.timeout(within_s):
            return await self._process.wait()

    def failure(self) -> str:
        return self._errors.read_text()[-2_000:]


def running_pids(directory: Path) -> dict[str, Any]:
    """The pids that `mailboxd up` has written down now."""
    for path in directory.glob("*.json"):
        document = json.loads(path.read_text())
        if "pids" in document:
            pids: dict[str, Any] = document["pids"]
            return pids
    return {}


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Servers:
    """Kills one part of the server after the other: each kind once, in an order of chance, and then again.

    `mailboxd up` starts again what has ended.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kinds = {
            "gateway": lambda pids: os.kill(random.choice(pids["gateways"]), signal.SIGKILL),
            "worker": lambda pids: os.kill(pids["worker"], signal.SIGKILL),
            "valkey": lambda pids: os.kill(pids["valkey"], signal.SIGKILL),
            "postgres, immediate shutdown": lambda pids: os.kill(pids["postgres"], signal.SIGQUIT),
            "postgres, postmaster killed": lambda pids: os.kill(pids["postgres"], signal.SIGKILL),
            "postgres, backend killed": lambda pids: os.kill(
                random.choice(children_of(pids["postgres"])), signal.SIGKILL
            ),
            "postgres, standing still": self._stand_still,
        }
        self._next: list[str] = []
        self._still: list[int] = []
        self.done: list[str] = []

    def kill_one(self) -> None:
        self.go_on()
        if not self._next:
            self._next = random.sample(list(self._kinds), len(self._kinds))
        kind = self._next.pop()
        try:
            self._kinds[kind](running_pids(self._directory))
        except (ProcessLookupError, FileNotFoundError, IndexError, KeyError):
            self._next.insert(0, kind)  # it is down from the last time: later
        else:
            self.done.append(kind)

    def _stand_still(self, pids: dict[str, Any]) -> None:
        self._still = [pids["postgres"], *children_of(pids["postgres"])]
        for pid in self._still:
            os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        for pid in self._still:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass
        self._still = []

    @property
    def every_kind_was_killed(self) -> bool:
        return set(self.done) == set(self._kinds)


def judge(devices: list[Device]) -> dict[str, Any]:
    """Feed what all processes wrote down, in the order in which it happened."""
    lines: list[tuple[int, Device, dict[str, Any]]] = []
    for device in devices:
        for text in device.log.read_text().splitlines():
            line = json.loads(text)
            lines.append((line["at"], device, line))
    lines.sort(key=lambda one: one[0])
    recorder = Recorder(app_view=True)
    attempts: dict[tuple[bytes, str], Any] = {}
    outcomes: dict[tuple[bytes, str], int] = {}
    for _at, device, line in lines:
        match line["what"]:
            case "offered":
                key = (device.id, line["cmid"])
                assert key not in attempts, "a client message id was issued twice"
                envelopes = [OfferedEnvelope(*map(bytes.fromhex, one)) for one in line["envelopes"]]
                attempts[key] = recorder.offered(device.id, device.id, envelopes)
            case "accepted":
                key = (device.id, line["cmid"])
                outcomes[key] = outcomes.get(key, 0) + 1
                assert outcomes[key] == 1, "confirmed twice"
                results = [(bytes.fromhex(mid), at, expires or 0) for mid, at, expires in line["results"]]
                recorder.accepted(attempts[key], results)
            case "refused":
                pytest.fail(f"refused: {line['codes']}")
            case "handed":
                recorder.handed_over(device.id, bytes.fromhex(line["mid"]), bytes.fromhex(line["content"]))
            case "confirmed":
                recorder.confirmed(device.id, bytes.fromhex(line["mid"]))
    return recorder.verdict()


async def every(seconds: Callable[[], float], call: Callable[[], Any], until: Callable[[], bool]) -> None:
    while not until():
        await pace(seconds())
        result = call()
        if asyncio.iscoroutine(result):
            await result


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_clients_and_servers_that_are_killed_all_the_time_lose_and_double_nothing(
    data_dir: Path, tmp_path: Path
) -> None:
    with running_up(data_dir, "--gateways", "2") as server:
        policy = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mailboxd", "admin", "policy", "set", *NO_LIMITS, "--data-dir", str(data_dir),
            env=environment(), stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert await policy.wait() == 0
        devices = [Device(tmp_path, f"device-{number}", server.report["urls"]) for number in range(CLIENTS)]
        for device in devices:
            await device.register()
        ids = [device.id for device in devices]
        servers = Servers(data_dir)
        loop = asyncio.get_running_loop()

        async def kill_a_client() -> None:
            device = random.choice(devices)
            await device.kill()
            await device.start(ids, "storm")

        try:
            for device in devices:
                await device.start(ids, "storm")
            begun = loop.time()

            def is_over() -> bool:
                passed = loop.time() - begun
                return passed >= STORM_MAX_S or (passed >= STORM_S and servers.every_kind_was_killed)

            await asyncio.gather(
                every(lambda: random.uniform(0.2, 1.5), kill_a_client, is_over),
                every(lambda: random.uniform(2, 7), servers.kill_one, is_over),
            )
            servers.go_on()
            for device in devices:
                await device.kill()
            for device in devices:
                await device.start(ids, "calm")
            for device in devices:
                assert await device.ended(CALM_S) == 0, device.failure()
        finally:
            servers.go_on()
            for device in devices:
                await device.kill()
    verdict = judge(devices)
    print(json.dumps(verdict | {"clients_killed": sum(device.kills for device in devices), "servers": servers.done}))
    assert verdict["ok"], verdict
    assert verdict["accepted_sends"] > 100
    assert servers.every_kind_was_killed, servers.done
