"""Wakes over a cluster and behind Sentinel, on real servers of the wheel."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from mailboxd.unprivileged import ServerUser
from mailboxd.wheel_binaries import Programs
from protocol.ids import DeviceId
from runtime.clock import SystemClock
from runtime.supervise import Progress
from store.redis_client import connect
from store.wake import Heard, Wake, WakeBus, WakeNames, WakeSubscriber
from tests.support.gateways import LOCAL, free_port
from tests.support.waiting import eventually


def valkey_server() -> Path:
    """The program of the wheel, where it lies."""
    return Programs(Path(), ServerUser(os.getuid(), os.getgid(), "us", switches=False)).valkey_server()


@asynccontextmanager
async def server(directory: Path, port: int, *options: str) -> AsyncIterator[Redis]:
    """A Valkey of this test's own."""
    directory.mkdir()
    common = ("--port", str(port), "--bind", LOCAL, "--dir", str(directory), "--save", "", "--appendonly", "no")
    process = await asyncio.create_subprocess_exec(
        str(valkey_server()), *common, *options, stdout=asyncio.subprocess.DEVNULL
    )
    client = Redis(host=LOCAL, port=port)
    try:
        await eventually(lambda: answers(client), what="it answers")
        yield client
    finally:
        await client.aclose()
        process.kill()
        await process.wait()


async def answers(client: Redis) -> bool:
    try:
        return bool(await client.ping())
    except (RedisError, OSError):
        return False


async def carries_wakes(url: str) -> None:
    redis, device = connect(url), DeviceId(os.urandom(16))
    names = WakeNames("tag", b"k" * 32)
    heard: list[Heard] = []
    subscriber = WakeSubscriber(
        redis, SystemClock(), on_heard=heard.append, on_subscribed=lambda _channel: None, on_connected=lambda: None
    )
    subscriber.want(names.device(device))
    running = asyncio.create_task(subscriber.run(Progress(SystemClock())))
    try:
        await eventually(lambda: subscriber.hears(names.device(device)), what="it is subscribed")
        bus = WakeBus(redis, names)
        bus.publish([Wake(device, 7), Wake(DeviceId(os.urandom(16)), 8)])
        await eventually(lambda: heard == [Heard(names.device(device), b"e", 7)], what="the wake arrives")
        assert bus.reachable
        await bus.close()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await redis.aclose()


async def test_a_cluster_carries_wakes(tmp_path: Path) -> None:
    port = free_port()
    async with server(tmp_path / "node", port, "--cluster-enabled", "yes") as node:
        await node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)

        async def whole() -> bool:
            return b"cluster_state:ok" in await node.execute_command("CLUSTER", "INFO")

        await eventually(whole, what="the cluster is whole")
        await carries_wakes(f"redis+cluster://{LOCAL}:{port}")


async def test_the_master_that_sentinel_names_carries_wakes(tmp_path: Path) -> None:
    master, watcher = free_port(), free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(f"sentinel monitor mail {LOCAL} {master} 1\n")
    async with server(tmp_path / "master", master):
        sentinel = await asyncio.create_subprocess_exec(
            str(valkey_server()),
            str(config),
            "--sentinel",
            "--port",
            str(watcher),
            "--bind",
            LOCAL,
            stdout=asyncio.subprocess.DEVNULL,
        )
        client = Redis(host=LOCAL, port=watcher)
        try:
            await eventually(lambda: answers(client), what="the sentinel answers")
            await carries_wakes(f"redis+sentinel://{LOCAL}:1,{LOCAL}:{watcher}/mail/0")
        finally:
            await client.aclose()
            sentinel.kill()
            await sentinel.wait()
