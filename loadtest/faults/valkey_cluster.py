"""A Valkey cluster of three shards, on loopback ports of its own; with a replica for each if asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from redis.crc import key_slot
from redis.exceptions import RedisError

from loadtest.faults.process import WorldFailed, unused_port
from loadtest.faults.valkey_server import ValkeyServer

SLOTS: Final = 16_384
SHARDS: Final = 3
STEP_S_MAX: Final = 30.0
_POLL_S: Final = 0.05
_OPTIONS: Final = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1500")
# A shard that is lost takes only its own slots with it.
_MORE: Final = ("--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0")


class ValkeyCluster(ValkeyServer):
    """Stands where a single server stands: its own process is that of the first node."""

    replicas = 0  # of each shard

    def __init__(self, directory: Path) -> None:
        self.nodes = [
            ValkeyServer(
                directory / f"node-{number}",
                name=f"valkey-{number}",
                options=(*_OPTIONS, *_MORE, "--cluster-port", str(unused_port())),
            )
            for number in range(SHARDS * (1 + self.replicas))
        ]
        super().__init__(directory, port=self.nodes[0].port)
        self.process = self.nodes[0].process

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:SHARDS])

    async def start(self) -> None:
        """Start every node and join them; again after a loss, only those that do not run."""
        self.directory.mkdir(mode=0o711, exist_ok=True)
        for node in self.nodes:
            if not node.process.is_running:
                await node.start()
        masters, replicas = self.nodes[:SHARDS], self.nodes[SHARDS:]
        if b"cluster_known_nodes:1\r" in await self._ask(masters[0], "CLUSTER", "INFO"):
            await self._join(masters, replicas)
        await self.whole()

    async def _join(self, masters: list[ValkeyServer], replicas: list[ValkeyServer]) -> None:
        for number, node in enumerate(masters):
            first, last = SLOTS * number // SHARDS, SLOTS * (number + 1) // SHARDS - 1
            await self._ask(node, "CLUSTER", "ADDSLOTSRANGE", first, last)
            await self._ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        bus = (await self._ask(masters[0], "CLUSTER", "NODES")).decode()
        bus_port = bus.partition("@")[2].partition(" ")[0].partition(",")[0]
        for node in self.nodes[1:]:
            await self._ask(node, "CLUSTER", "MEET", "127.0.0.1", masters[0].port, bus_port)
        await self._until_all_say(f"cluster_known_nodes:{len(self.nodes)}\r".encode())
        for number, replica in enumerate(replicas):
            name = (await self._ask(masters[number % SHARDS], "CLUSTER", "MYID")).decode()
            await self._ask(replica, "CLUSTER", "REPLICATE", name)
        for replica in replicas:
            await self._until(replica, b"master_link_status:up", "INFO", "replication")

    async def whole(self) -> None:
        """Return when every node that runs says that all slots are served."""
        await self._until_all_say(b"cluster_state:ok", b"cluster_slots_fail:0")

    async def slot_of_the_queue(self) -> int:
        """That of the project's one hash tag, from any key that is there."""
        for node in self._running():
            async with node.client() as client:
                async for key in client.scan_iter(match="mb:*", count=1_000):
                    return int(key_slot(key))
        raise WorldFailed("no node of the cluster holds a key of mailboxd")

    async def owner_of(self, slot: int) -> ValkeyServer:
        """The node that the cluster sends clients of this slot to."""
        for first, last, master, *_ in await self._ask(self._running()[0], "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == master[1])
        raise WorldFailed(f"no node of the cluster serves slot {slot}")

    async def promoted(self, slot: int, lost: ValkeyServer) -> None:
        """Return when somebody else than the lost node serves its slot; WorldFailed when nobody does in time."""
        try:
            async with asyncio.timeout(STEP_S_MAX):
                while await self.owner_of(slot) is lost:
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise WorldFailed(f"no replica took over from {lost.name} within {STEP_S_MAX:.0f} s") from None

    def clients(self) -> list[Redis]:
        return [node.client() for node in self._running()]

    async def flush(self) -> None:
        for node in self._running():
            await node.flush()

    async def close(self) -> None:
        for node in self.nodes:
            await node.process.stop()

    def freeze(self) -> None:
        for node in self.nodes:
            node.freeze()

    def cont(self) -> None:
        for node in self.nodes:
            node.cont()

    def _running(self) -> list[ValkeyServer]:
        return [node for node in self.nodes if node.process.is_running]

    async def _until_all_say(self, *words: bytes) -> None:
        for node in self._running():
            for word in words:
                await self._until(node, word, "CLUSTER", "INFO")

    async def _until(self, node: ValkeyServer, word: bytes, *command: object) -> None:
        try:
            async with asyncio.timeout(STEP_S_MAX):
                while word not in await self._ask(node, *command):
                    await asyncio.sleep(_POLL_S)
        except (TimeoutError, RedisError) as error:
            raise WorldFailed(f"{node.name} did not say {word!r} within {STEP_S_MAX:.0f} s: {error}") from None

    async def _ask(self, node: ValkeyServer, *command: object) -> Any:
        client: Any = node.client()
        try:
            # Command and first word apart, and INFO's text as it is: the client takes the answers of known ones apart.
            client.response_callbacks.clear()
            return await client.execute_command(*command)
        finally:
            await client.aclose()


class ValkeyClusterWithReplicas(ValkeyCluster):
    """Each shard has one replica, which takes over by itself."""

    replicas = 1
