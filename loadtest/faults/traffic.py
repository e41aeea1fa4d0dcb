"""The clients of a fault run: SDK processes that send to each other all the time, killed and started at will."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtest.faults.notes import NotesReader
from loadtest.faults.process import Process
from loadtest.faults.world import ROOT, World, WorldFailed
from mailbox_client import Account

FLOW_POLL_S: Final = 0.05
SETTLE_S_MAX: Final = 120.0
WOKEN_S_MAX: Final = 90.0  # a lease of the kit's heartbeat and the first repeats fit in


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the clients do. `pause_s` is the mean time between two sends of one client, to one or two peers each."""

    clients: int = 4
    pause_s: float = 0.02
    body_bytes: int = 200
    ttl_s: int | None = None
    disturbed: bool = False
    clock_offset_s: int = 0  # of every second client's own clock
    sleepers: int = 0  # devices that are away until they are woken by a push; mail goes to them as well


class ClientProcess:
    """A process of ours that notes what it sees, takes `calm` on its standard input, and is killed at will."""

    def __init__(self, traffic: Traffic, name: str) -> None:
        self.name = name
        self.notes = traffic.directory / f"{name}.jsonl"
        self.reader = NotesReader(self.notes)
        self.process = Process(name, traffic.directory / f"{name}.log")
        self.kills = 0
        self.device = b""
        self._traffic = traffic
        self._stdin: Any = None

    def run(self, command: Sequence[str], options: dict[str, Any]) -> None:
        environment = {"PATH": os.environ.get("PATH", os.defpath), **self._traffic.client_environment}
        popen = self.process.spawn([*command, json.dumps(options)], environment, stdin=subprocess.PIPE, cwd=ROOT)
        self._stdin = popen.stdin

    @property
    def ended_by_itself(self) -> bool:
        return self._stdin is not None and not self.process.is_running

    async def kill(self) -> None:
        """SIGKILL: what it held and had not confirmed comes again after its next start."""
        self.kills += 1
        await self.process.kill()
        self._close()

    def calm(self) -> None:
        """Begin nothing more, settle, end."""
        try:
            self._stdin.write(b"calm\n")
            self._stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # it has ended; whoever waits for it is told so

    async def settled(self, within_s: float) -> None:
        """Return when it has ended well; WorldFailed when it has not, or not in time."""
        status = await self.process.ended(within_s)
        self._close()
        if status:
            raise WorldFailed(f"{self.name} ended with {status}:\n{self.process.last_words()}")

    async def close(self) -> None:
        if self.process.is_running:
            await self.process.kill()
        self._close()

    def _close(self) -> None:
        if self._stdin is not None:
            try:
                self._stdin.close()
            except BrokenPipeError:
                pass
            self._stdin = None


class Client(ClientProcess):
    """One device, its store and its notes, and the process that runs it at the moment."""

    def __init__(self, traffic: Traffic, number: int) -> None:
        super().__init__(traffic, f"client-{number}")
        self.number = number
        self.store = traffic.directory / f"{self.name}.sqlite"
        self.url = ""  # of its newest process

    async def register(self, url: str) -> None:
        self.device = (await Account.register(url, self.store)).device_id

    def start(self, url: str | None = None) -> None:
        """Run it at this gateway, or at one drawn by chance."""
        traffic, load = self._traffic, self._traffic.load
        self.url = url or traffic.random.choice(traffic.world.urls)
        options = {
            "url": self.url,
            "store": str(self.store),
            "notes": str(self.notes),
            "number": self.number,
            "peers": [peer.hex() for peer in traffic.peers_of(self)],
            "sleepers": [device.hex() for device in traffic.asleep],
            "seed": traffic.random.randrange(10**9),
            "pause_s": load.pause_s,
            "body_bytes": load.body_bytes,
            "ttl_s": load.ttl_s,
            "disturbed": load.disturbed,
            "clock_offset_s": load.clock_offset_s if self.number % 2 else 0,
        }
        self.run(traffic.world.commands.client, options)


class Sleepers(ClientProcess):
    """All sleeping devices, in one process."""

    def __init__(self, traffic: Traffic, count: int) -> None:
        super().__init__(traffic, "sleepers")
        self.stores = [traffic.directory / f"sleeper-{number}.sqlite" for number in range(count)]
        self.devices: list[bytes] = []

    async def register(self, url: str) -> None:
        self.devices = [(await Account.register(url, store)).device_id for store in self.stores]

    def start(self) -> None:
        traffic = self._traffic
        options = {
            "url": traffic.random.choice(traffic.world.urls),
            "notes": str(self.notes),
            "stores": [str(store) for store in self.stores],
            "seed": traffic.random.randrange(10**9),
        }
        self.run(traffic.world.commands.sleepers, options)


class Traffic:
    """All clients of one fault run and what they have noted so far."""

    def __init__(
        self, world: World, directory: Path, load: Load, chance: random.Random, *, patience: float = 1.0
    ) -> None:
        """`patience` stretches the times within which everything must settle."""
        self._settle_s = SETTLE_S_MAX * patience
        self._woken_s = WOKEN_S_MAX * patience
        self.world = world
        self.directory = directory
        self.load = load
        self.random = chance
        self.clients = [Client(self, number) for number in range(load.clients)]
        self.sleepers = Sleepers(self, load.sleepers) if load.sleepers and world.sees_the_database else None
        self.extra_peers: list[bytes] = []  # devices that are no clients of ours and get mail, too
        self.client_environment: dict[str, str] = {}
        self.lines: list[tuple[ClientProcess, dict[str, Any]]] = []

    def peers_of(self, client: Client) -> list[bytes]:
        """Everybody but itself and the sleepers."""
        return [other.device for other in self.clients if other is not client] + self.extra_peers

    @property
    def asleep(self) -> list[bytes]:
        """The devices that are away until they are woken."""
        return self.sleepers.devices if self.sleepers is not None else []

    @property
    def devices(self) -> list[bytes]:
        """Of all clients and sleepers."""
        return [client.device for client in self.clients] + self.asleep

    @property
    def processes(self) -> list[ClientProcess]:
        return [*self.clients, *((self.sleepers,) if self.sleepers is not None else ())]

    async def start(self) -> None:
        """Register all, start all, return when mail flows everywhere."""
        self.directory.mkdir(mode=0o700)
        urls = self.world.urls
        await asyncio.gather(*(client.register(urls[client.number % len(urls)]) for client in self.clients))
        if self.sleepers is not None:
            await self.sleepers.register(urls[0])
            self.sleepers.start()
        since = time.monotonic_ns()
        for client in self.clients:
            client.start(urls[client.number % len(urls)])
        await self.flowing(since, within_s=60.0)

    async def flowing(self, since_ns: int, *, within_s: float) -> float:
        """Return when, for what was offered after `since_ns`, every client was confirmed one and got one.

        Gives the seconds from `since_ns` until then; WorldFailed when it takes longer than `within_s`.
        """
        deadline = since_ns + int(within_s * 1e9)
        while True:
            late = self._late(since_ns)
            if not late:
                return (time.monotonic_ns() - since_ns) / 1e9
            if time.monotonic_ns() > deadline:
                words = "\n".join(client.process.last_words()[-600:] for client in late if client.process.log.exists())
                names = ", ".join(client.name for client in late)
                raise WorldFailed(f"mail did not flow again within {within_s:.0f} s: {names}\n{words}")
            self.check()
            await asyncio.sleep(FLOW_POLL_S)

    async def messages(self, count: int, *, within_s: float = 120.0) -> None:
        """Return when so many entries were accepted in all, or at the end of the time."""
        end = time.monotonic() + within_s
        while self.accepted < count and time.monotonic() < end:
            await asyncio.sleep(FLOW_POLL_S)

    @property
    def accepted(self) -> int:
        """Entries that clients saw confirmed so far."""
        self._read()
        return sum(len(line["results"]) for _, line in self.lines if line["what"] == "accepted")

    def check(self) -> None:
        """WorldFailed when a client ended that nobody killed."""
        for part in self.processes:
            if part.ended_by_itself:
                raise WorldFailed(f"{part.name} ended with {part.process.returncode}:\n{part.process.last_words()}")

    async def settle(self) -> None:
        """Stop sending, let everything arrive and be confirmed, and end all clients; WorldFailed when that fails.

        Sleeping devices come last, and only by pushes: who has mail and is not woken in its time is told as a fault.
        """
        for client in self.clients:
            client.process.cont()
            if not client.process.is_running:
                client.start()
            client.calm()
        await asyncio.gather(*(client.settled(self._settle_s) for client in self.clients))
        forgotten = 0
        if (sleepers := self.sleepers) is not None:
            sleepers.process.cont()
            if not sleepers.process.is_running:
                sleepers.start()
            forgotten = await self.not_woken()
            sleepers.calm()
            await sleepers.settled(self._settle_s)
        self._read()
        if forgotten:
            raise WorldFailed(
                f"{forgotten} messages lay {self._woken_s:.0f} s with devices that were not woken for them"
            )

    async def not_woken(self) -> int:
        """How many messages for sleeping devices their apps do not have, when pushes alone had their time.

        Nobody may be sending, so that whatever is forgotten stays so.
        """
        end = time.monotonic() + self._woken_s
        while (waiting := self._not_handed({device.hex() for device in self.asleep})) and time.monotonic() < end:
            self.check()
            await asyncio.sleep(FLOW_POLL_S)
        return waiting

    def _not_handed(self, devices: set[str]) -> int:
        self._read()
        meant = {
            mid
            for _, line in self.lines
            if line["what"] == "offered"
            for to, mid, _ in line["envelopes"]
            if to in devices
        }
        accepted = {mid for _, line in self.lines if line["what"] == "accepted" for mid, _, _ in line["results"]}
        handed = {line["mid"] for _, line in self.lines if line["what"] == "handed"}
        return len((meant & accepted) - handed)

    async def close(self) -> None:
        """Nothing of it runs any more."""
        for part in self.processes:
            await part.close()

    def history(self) -> Sequence[tuple[ClientProcess, dict[str, Any]]]:
        """What all processes noted, in the order in which it happened."""
        self._read()
        return sorted(self.lines, key=lambda one: one[1]["at"])

    def pids(self) -> set[int]:
        return {part.process.pid for part in self.processes if part.process.is_running}

    def _read(self) -> None:
        for part in self.processes:
            self.lines.extend((part, line) for line in part.reader.news())

    def _late(self, since_ns: int) -> list[Client]:
        """Clients without a confirmed send, or without an arrival, of what was offered since then."""
        self._read()
        offered: set[tuple[ClientProcess, str]] = set()
        confirmed: set[ClientProcess] = set()
        reached: set[ClientProcess] = set()
        mids: set[str] = set()
        for client, line in self.lines:
            if line["what"] == "offered" and line["at"] > since_ns:
                offered.add((client, line["cmid"]))
                mids.update(mid for _, mid, _ in line["envelopes"])
        for client, line in self.lines:
            if line["at"] <= since_ns:
                continue
            if line["what"] == "accepted" and (client, line["cmid"]) in offered:
                confirmed.add(client)
            elif line["what"] == "handed" and line["mid"] in mids:
                reached.add(client)
        return [client for client in self.clients if client not in confirmed or client not in reached]
