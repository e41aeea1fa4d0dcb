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


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the clients do. `pause_s` is the mean time between two sends of one client, to one or two peers each."""

    clients: int = 4
    pause_s: float = 0.02
    body_bytes: int = 200
    ttl_s: int | None = None
    disturbed: bool = False


class Client:
    """One device, its store and its notes, and the process that runs it at the moment."""

    def __init__(self, traffic: Traffic, number: int) -> None:
        directory = traffic.directory
        self.number = number
        self.name = f"client-{number}"
        self.store = directory / f"{self.name}.sqlite"
        self.notes = directory / f"{self.name}.jsonl"
        self.device = b""
        self.kills = 0
        self.url = ""  # of its newest process
        self.reader = NotesReader(self.notes)
        self.process = Process(self.name, directory / f"{self.name}.log")
        self._traffic = traffic
        self._stdin: Any = None

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
            "seed": traffic.random.randrange(10**9),
            "pause_s": load.pause_s,
            "body_bytes": load.body_bytes,
            "ttl_s": load.ttl_s,
            "disturbed": load.disturbed,
        }
        environment = {"PATH": os.environ.get("PATH", os.defpath), **traffic.client_environment}
        command = [*traffic.world.commands.client, json.dumps(options)]
        popen = self.process.spawn(command, environment, stdin=subprocess.PIPE, cwd=ROOT)
        self._stdin = popen.stdin

    async def kill(self) -> None:
        """SIGKILL: what it held and had not confirmed comes again after its next start."""
        self.kills += 1
        await self.process.kill()
        self._close()

    def calm(self) -> None:
        """Send nothing more, settle, end."""
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


class Traffic:
    """All clients of one fault run and what they have noted so far."""

    def __init__(self, world: World, directory: Path, load: Load, chance: random.Random) -> None:
        self.world = world
        self.directory = directory
        self.load = load
        self.random = chance
        self.clients = [Client(self, number) for number in range(load.clients)]
        self.extra_peers: list[bytes] = []  # devices that are no clients of ours and get mail, too
        self.client_environment: dict[str, str] = {}
        self.lines: list[tuple[Client, dict[str, Any]]] = []

    def peers_of(self, client: Client) -> list[bytes]:
        """Everybody but itself."""
        return [other.device for other in self.clients if other is not client] + self.extra_peers

    async def start(self) -> None:
        """Register all, start all, return when mail flows everywhere."""
        self.directory.mkdir(mode=0o700)
        urls = self.world.urls
        await asyncio.gather(*(client.register(urls[client.number % len(urls)]) for client in self.clients))
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
        for client in self.clients:
            status = client.process.returncode
            if status is not None and client._stdin is not None:
                raise WorldFailed(f"{client.name} ended with {status}:\n{client.process.last_words()}")

    async def settle(self, within_s: float = SETTLE_S_MAX) -> None:
        """Stop sending, let everything arrive and be confirmed, and end all clients; WorldFailed when that fails."""
        for client in self.clients:
            client.process.cont()
            if not client.process.is_running:
                client.start()
            client.calm()
        await asyncio.gather(*(client.settled(within_s) for client in self.clients))
        self._read()

    async def close(self) -> None:
        """Nothing of it runs any more."""
        for client in self.clients:
            await client.close()

    def history(self) -> Sequence[tuple[Client, dict[str, Any]]]:
        """What all processes noted, in the order in which it happened."""
        self._read()
        return sorted(self.lines, key=lambda one: one[1]["at"])

    def pids(self) -> set[int]:
        return {client.process.pid for client in self.clients if client.process.is_running}

    def _read(self) -> None:
        for client in self.clients:
            self.lines.extend((client, line) for line in client.reader.news())

    def _late(self, since_ns: int) -> list[Client]:
        """Clients without a confirmed send, or without an arrival, of what was offered since then."""
        self._read()
        offered, confirmed, reached = set(), set(), set()
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
