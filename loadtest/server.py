"""A fresh server for a run: `mailboxd up` as its own process in its own data directory, gone afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final, cast

from loadtest import certificate
from loadtest.processes import ends_with_us

START_S_MAX: Final = 90.0
STOP_S_MAX: Final = 30.0

# What a bench raises, so that it measures the server and not its limits. Printed with every result.
UNLIMITED: Final[Mapping[str, str]] = {
    "submit_rate_per_device": "0",
    "submit_rate_per_ip": "0",
    "submit_rate_per_pair": "0",
    "registrations_per_ip_per_hour": "0",
    "connections_per_ip": "0",
    "handshakes_per_second": "0",
}

_ROLES: Final[Mapping[str, str]] = {"gateways": "gateway"}


class ServerFailed(Exception):
    """The server did not start or refused a setting; the message holds what it said."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where a running server listens and which processes it has. Without pids (`--url`) nothing of it is metered."""

    urls: tuple[str, ...]
    pids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    postgres_dsn: str | None = None
    data_dir: Path | None = None
    policy: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None  # how to speak to it where the urls are https

    @property
    def endpoints(self) -> list[tuple[str, int]]:
        """Host and port of each gateway."""
        found = []
        for url in self.urls:
            host, _, port = url.partition("://")[2].rstrip("/").rpartition(":")
            found.append((host, int(port)))
        return found


@asynccontextmanager
async def fresh_server(
    *,
    gateways: int = 1,
    policy: Mapping[str, str] = UNLIMITED,
    settings: Mapping[str, str] | None = None,
    postgres_settings: Mapping[str, str] | None = None,
    tls: bool = False,
) -> AsyncIterator[Server]:
    """Run a server with this policy in a temporary data directory; stopped and removed on leaving, however that is.

    `settings` are environment variables of its processes. `postgres_settings` are for this run alone, such as a library
    to preload: the cluster is made first, then they are written into its postgresql.conf. `tls`: with a certificate of
    its own for the run.
    """
    # Not made here: embedded PostgreSQL runs under another user where we are root, and must be able to reach it.
    data_dir = Path(tempfile.gettempdir()) / f"mailboxd-bench-{secrets.token_hex(4)}"
    environment = {**os.environ, **(settings or {})}
    context: ssl.SSLContext | None = None
    try:
        if tls:
            files = certificate.self_signed(data_dir.with_name(f"{data_dir.name}-tls"))
            context = certificate.trusting(files[0])
            environment |= {"MAILBOXD_TLS_CERTIFICATE": str(files[0]), "MAILBOXD_TLS_KEY": str(files[1])}
        if postgres_settings:
            async with _running(data_dir, gateways, {}, environment):
                pass
            with (data_dir / "postgres" / "postgresql.conf").open("a") as conf:
                conf.writelines(f"{name} = '{value}'\n" for name, value in postgres_settings.items())
        async with _running(data_dir, gateways, policy, environment) as server:
            yield replace(server, tls=context)
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)
        shutil.rmtree(data_dir.with_name(f"{data_dir.name}-tls"), ignore_errors=True)


@asynccontextmanager
async def _running(
    data_dir: Path, gateways: int, policy: Mapping[str, str], environment: Mapping[str, str]
) -> AsyncIterator[Server]:
    with tempfile.TemporaryFile() as said:
        process = await asyncio.create_subprocess_exec(
            command(), "up", "--json", "--data-dir", str(data_dir), "--port", "0", "--ops-port", "0",
            "--gateways", str(gateways),
            stdout=asyncio.subprocess.PIPE, stderr=said, start_new_session=True, env=environment,
            preexec_fn=ends_with_us(),
        )  # fmt: skip
        try:
            ready = await _ready_line(process, said)
            if policy:
                settings = [f"{key}={value}" for key, value in policy.items()]
                await _admin("policy", "set", *settings, "--data-dir", str(data_dir))
                await asyncio.sleep(5.0)  # "policy within 5 s" (DESIGN, stated times)
            yield Server(
                urls=tuple(ready["urls"]),
                pids={_ROLES.get(role, role): _pids(value) for role, value in ready["pids"].items()},
                postgres_dsn=ready.get("postgres_dsn"),
                data_dir=data_dir,
                policy=policy,
            )
        finally:
            await _stop(process)


def command() -> str:
    """The `mailboxd` of this interpreter's environment."""
    return str(Path(sys.executable).with_name("mailboxd"))


async def _ready_line(process: asyncio.subprocess.Process, said: IO[bytes]) -> dict[str, Any]:
    stdout = cast(asyncio.StreamReader, process.stdout)
    try:
        async with asyncio.timeout(START_S_MAX):
            line = await stdout.readline()
    except TimeoutError:
        raise ServerFailed(f"mailboxd up was not ready within {START_S_MAX:.0f} s") from None
    if not line:
        status = await process.wait()
        said.seek(0)
        raise ServerFailed(f"mailboxd up ended with {status}: {said.read()[-2_000:].decode(errors='replace')}")
    ready: dict[str, Any] = json.loads(line)
    return ready


async def _admin(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        command(), "admin", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise ServerFailed(f"mailboxd admin {' '.join(arguments[:2])}: {said.decode(errors='replace')[-2_000:]}")


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await process.wait()
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)  # its own session: only what it started
            await process.wait()


def _pids(value: int | list[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)
