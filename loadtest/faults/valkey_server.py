"""A Valkey of the kit's own, from the wheel: nothing on disk, as the project asks no more of it."""

from __future__ import annotations

import signal
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from loadtest.faults.process import Process, unused_port
from loadtest.faults.programs import own, popen_arguments, valkey_bin


class ValkeyServer:
    """One server on a loopback port."""

    def __init__(self, directory: Path, *, name: str = "valkey", port: int = 0, options: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.name = name
        self.port = port or unused_port()
        self.options = options
        self.process = Process(name, directory / f"{name}.log", stop_signal=signal.SIGTERM)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        """Run it, empty, and return when it answers."""
        self.directory.mkdir(mode=0o711, exist_ok=True)
        own(self.directory)
        self.process.spawn(
            [
                str(valkey_bin() / "valkey-server"),
                *("--port", str(self.port), "--bind", "127.0.0.1", "--daemonize", "no", "--save", ""),
                *("--appendonly", "no", "--maxmemory", "128mb", "--maxmemory-policy", "noeviction"),
                *("--dir", str(self.directory), "--loglevel", "warning", *self.options),
            ],
            {"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            cwd="/",
            **popen_arguments(),
        )
        await self.process.until(self.answers)

    def client(self) -> Redis:
        """A connection for the kit; close it."""
        return Redis(host="127.0.0.1", port=self.port, socket_timeout=5.0, socket_connect_timeout=5.0)

    def clients(self) -> list[Redis]:
        """One for each server that may hold something; close them."""
        return [self.client()]

    async def answers(self) -> bool:
        client = self.client()
        try:
            return bool(await client.ping())
        except RedisError:
            return False
        finally:
            await client.aclose()

    async def flush(self) -> None:
        """FLUSHALL."""
        client = self.client()
        try:
            await client.flushall()
        finally:
            await client.aclose()

    async def kill(self) -> None:
        await self.process.kill()

    def freeze(self) -> None:
        self.process.freeze()

    def cont(self) -> None:
        self.process.cont()

    async def stop(self) -> None:
        await self.process.stop()

    async def close(self) -> None:
        """At the world's end: nothing of it is left running."""
        await self.process.stop()
