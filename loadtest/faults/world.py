"""One running world: PostgreSQL, Valkey, gateways and workers, each a process of its own that a fault can hit.

What is given by address (`Given`) is used and never touched: faults that need a process of its own are then left out.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import asyncpg

from loadtest.faults.postgres_server import PostgresServer, run
from loadtest.faults.process import START_S_MAX, Process, WorldFailed, unused_port
from loadtest.faults.tcp_proxy import TcpProxy
from loadtest.faults.valkey_server import ValkeyServer
from loadtest.processes import tree

__all__ = ["Commands", "Given", "Kind", "Role", "Service", "World", "WorldFailed", "WorldPlan", "running_world"]

ROOT: Final = Path(__file__).resolve().parents[2]
READY_POLL_S: Final = 0.05

# Nothing but what a fault is about may refuse a send: then order is kept without exception.
NO_LIMITS: Final = (
    ("registration", "open"),
    ("submit_rate_per_device", "0"),
    ("submit_rate_per_ip", "0"),
    ("submit_rate_per_pair", "0"),
    ("registrations_per_ip_per_hour", "0"),
    ("connections_per_ip", "0"),
    ("handshakes_per_second", "0"),
)


class Service(StrEnum):
    """What a proxy can stand before. The gateways' proxies are those before their clients."""

    POSTGRES = "postgres"
    REDIS = "redis"
    GATEWAY = "gateway"


class Kind(StrEnum):
    """What a role runs: a command of mailboxd."""

    GATEWAY = "gateway"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Commands:
    """How to start the parts. Tests put a program in between that plants a bug."""

    mailboxd: tuple[str, ...] = (sys.executable, "-m", "mailboxd")
    client: tuple[str, ...] = (sys.executable, "-m", "loadtest.faults.client")
    sleepers: tuple[str, ...] = (sys.executable, "-m", "loadtest.faults.sleepers")


@dataclass(frozen=True, slots=True)
class Given:
    """Somebody else's parts; the database must be empty. With `urls` the gateways and workers are theirs, too."""

    postgres_dsn: str | None = None
    redis_url: str | None = None
    urls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlan:
    """What a fault needs. Faults with equal plans run in one world, one after the other."""

    gateways: int = 2
    workers: int = 1
    proxied: frozenset[Service] = frozenset()
    policy: tuple[tuple[str, str], ...] = ()  # beside NO_LIMITS
    gateway_settings: tuple[tuple[str, str], ...] = (("heartbeat_s", "5"),)  # MAILBOXD_ and this, in capitals
    worker_settings: tuple[tuple[str, str], ...] = (("wake_repeat_s", "2"),)
    make_postgres: Callable[[Path], PostgresServer] = PostgresServer  # it creates and starts itself in `create`
    make_valkey: Callable[[Path], ValkeyServer] = ValkeyServer
    alone: bool = False  # a world for this fault only: it leaves traces


class Role:
    """A gateway or a worker."""

    def __init__(self, world: World, kind: Kind, number: int) -> None:
        self.kind = kind
        self.name = f"{kind}-{number}"
        self.world = world
        self.port = unused_port()
        self.ops_port = unused_port()
        self.process = Process(self.name, world.directory / f"{self.name}.log")
        self.settings: dict[str, str] = {}  # beside the plan's, from the next start on
        self.environment: dict[str, str] = {}  # of other programs, beside ours
        self.tree = ROOT  # the release that it runs

    @property
    def url(self) -> str:
        """Straight to it, without a proxy."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def ops_url(self) -> str:
        return f"http://127.0.0.1:{self.ops_port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def launch(self, *, faults: str = "") -> None:
        """Run it without waiting until it is ready. `faults` are fault points (runtime/faultpoints.py)."""
        world = self.world
        plan = world.plan.gateway_settings if self.kind is Kind.GATEWAY else world.plan.worker_settings
        own = {"listen": f"127.0.0.1:{self.port}", "loopback_exempt": "true"} if self.kind is Kind.GATEWAY else {}
        allowed = {"push_private_networks_allowed": "127.0.0.0/8"} if self.kind is Kind.WORKER else {}
        settings = {"ops_listen": f"127.0.0.1:{self.ops_port}", **own, **allowed, **dict(plan), **self.settings}
        environment = world.environment | self.environment
        environment |= {f"MAILBOXD_{name.upper()}": value for name, value in settings.items()}
        if faults:
            environment["MAILBOXD_FAULTPOINTS"] = faults
        self.process.spawn([*world.commands.mailboxd, str(self.kind)], environment, cwd=self.tree)

    async def start(self, *, faults: str = "", within_s: float = START_S_MAX) -> None:
        """Run it and return when it says that it is ready."""
        self.launch(faults=faults)
        await self.process.until(self.is_ready, within_s=within_s)

    async def restart(self, *, faults: str = "") -> None:
        """SIGTERM, drain, start again."""
        await self.process.stop()
        await self.start(faults=faults)

    async def kill(self) -> None:
        await self.process.kill()

    async def close(self) -> None:
        """At the world's end."""
        await self.process.stop()

    def freeze(self) -> None:
        self.process.freeze()

    def cont(self) -> None:
        self.process.cont()

    def send(self, number: signal.Signals) -> None:
        self.process.send(number)

    async def died(self, within_s: float = START_S_MAX) -> int:
        """Wait for the end that a fault point gives it."""
        return await self.process.ended(within_s)

    async def is_ready(self) -> bool:
        """Whether /readyz says 200 now."""
        try:
            status, _ = await self.get("/readyz")
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
        return status == 200

    async def get(self, path: str) -> tuple[int, str]:
        """From its operations port."""
        timeout = aiohttp.ClientTimeout(total=5.0)
        async with aiohttp.ClientSession(timeout=timeout) as http, http.get(self.ops_url + path) as answer:
            return answer.status, await answer.text()

    async def metric(self, name: str) -> float:
        """The sum over all labels of `mailboxd_NAME`."""
        _, text = await self.get("/metrics")
        lines = [line for line in text.splitlines() if line.startswith((f"mailboxd_{name} ", f"mailboxd_{name}{{"))]
        return sum(float(line.rpartition(" ")[2]) for line in lines)


@dataclass
class World:
    """The parts by name. A fault may hit everything that is ours and must leave it running."""

    plan: WorldPlan
    directory: Path
    commands: Commands
    given: Given
    postgres: PostgresServer | None = None
    valkey: ValkeyServer | None = None
    gateways: list[Role] = field(default_factory=list)
    workers: list[Role] = field(default_factory=list)
    proxies: dict[Service, list[TcpProxy]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # by kind, as `mailboxd config` says them
    shared: dict[str, Any] = field(default_factory=dict)  # what faults of this world made and use again

    @property
    def roles(self) -> list[Role]:
        return [*self.gateways, *self.workers]

    @property
    def owned_postgres(self) -> PostgresServer:
        """The kit's own; a fault that asks for it must say so in its `needs`."""
        if self.postgres is None:
            raise WorldFailed("PostgreSQL is given, not ours")
        return self.postgres

    @property
    def owned_valkey(self) -> ValkeyServer:
        if self.valkey is None:
            raise WorldFailed("Redis is given, not ours")
        return self.valkey

    @property
    def owns(self) -> frozenset[Service]:
        """What may be hit."""
        mine = {Service.POSTGRES: self.postgres, Service.REDIS: self.valkey, Service.GATEWAY: self.gateways}
        return frozenset(service for service, part in mine.items() if part)

    @property
    def urls(self) -> list[str]:
        """Where clients connect: one URL a gateway, that of its proxy where there is one."""
        if self.given.urls:
            return list(self.given.urls)
        if proxies := self.proxies.get(Service.GATEWAY):
            return [f"http://127.0.0.1:{proxy.port}" for proxy in proxies]
        return [role.url for role in self.gateways]

    @property
    def postgres_dsn(self) -> str:
        """What servers are told; by way of the proxy where there is one."""
        dsn = self.given.postgres_dsn or self.owned_postgres.dsn
        proxies = self.proxies.get(Service.POSTGRES)
        return _through(dsn, proxies[0]) if proxies else dsn

    @property
    def redis_url(self) -> str:
        url = self.given.redis_url or self.owned_valkey.url
        proxies = self.proxies.get(Service.REDIS)
        return _through(url, proxies[0]) if proxies else url

    @property
    def sees_the_database(self) -> bool:
        """False where only URLs are given: then the books are not checked."""
        return self.postgres is not None or self.given.postgres_dsn is not None

    def setting(self, kind: Kind, name: str) -> Any:
        """What a role of this kind was started with."""
        plan = self.plan.gateway_settings if kind is Kind.GATEWAY else self.plan.worker_settings
        return dict(plan).get(name, self.settings[kind][name])

    def proxy(self, service: Service) -> TcpProxy:
        """The first proxy before the service."""
        return self.proxies[service][0]

    async def connect(self) -> asyncpg.Connection:
        """The kit's own way to the database, by no proxy; close it."""
        dsn = self.given.postgres_dsn or self.owned_postgres.admin_dsn
        return await asyncpg.connect(dsn, timeout=5.0, server_settings={"application_name": "fault kit"})

    async def mailboxd(self, *arguments: str, tree: Path = ROOT) -> str:
        """Run a command of mailboxd (of this release) against this world, by no proxy; its output, or WorldFailed."""
        direct = {
            "MAILBOXD_POSTGRES_DSN": self.given.postgres_dsn or self.owned_postgres.dsn,
            "MAILBOXD_REDIS_URL": self.given.redis_url or self.owned_valkey.url,
        }
        return await run([sys.executable, "-m", "mailboxd", *arguments], self.environment | direct, cwd=tree)

    async def ready(self, within_s: float = START_S_MAX) -> None:
        """Return when every gateway and worker says so; WorldFailed names who does not."""
        late = list(self.roles)
        try:
            async with asyncio.timeout(within_s):
                while late := [role for role in late if not await role.is_ready()]:
                    await asyncio.sleep(READY_POLL_S)
        except TimeoutError:
            words = "\n".join(f"{role.name}: {role.process.last_words()[-1_000:]}" for role in late)
            raise WorldFailed(f"not ready within {within_s:.0f} s:\n{words}") from None

    async def mend(self) -> None:
        """Put everything back that a fault which failed may have left broken."""
        for proxies in self.proxies.values():
            for proxy in proxies:
                proxy.become(type(proxy.link)())
        for part in (self.postgres, self.valkey):
            if part is not None:
                part.cont()
                if not part.process.is_running:
                    await part.start()
        for role in self.roles:
            role.cont()
            if not role.process.is_running:
                role.launch()
        await self.ready()

    async def refresh(self) -> None:
        """Start gateways and workers anew where one carries fault points or settings of an earlier fault."""
        for role in self.roles:
            if role.settings:
                role.settings.clear()
                await role.restart()

    def pids(self) -> set[int]:
        """Everything of ours that runs, descendants included."""
        processes = [role.process for role in self.roles]
        processes += [part.process for part in (self.postgres, self.valkey) if part is not None]
        return {pid for process in processes if process.is_running for pid in tree(process.pid)}


@asynccontextmanager
async def running_world(
    plan: WorldPlan, *, commands: Commands | None = None, given: Given | None = None
) -> AsyncIterator[World]:
    """Start everything and wait until it is ready; on leaving, however that is, nothing of it is left.

    Raises WorldFailed when something does not start in its time, and when something does not end in its time.
    """
    given = given or Given()
    directory = Path(tempfile.gettempdir()) / f"mailboxd-faults-{secrets.token_hex(4)}"
    directory.mkdir(mode=0o711)
    world = World(plan, directory, commands or Commands(), given)
    try:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_stop, world)
            if not given.urls:
                await _start(world, stack)
            yield world
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        raise WorldFailed(f"{directory} could not be removed")


async def _start(world: World, stack: AsyncExitStack) -> None:
    plan, given, directory = world.plan, world.given, world.directory
    if given.postgres_dsn is None:
        world.postgres = plan.make_postgres(directory / "postgres")
        await world.postgres.create()
    if given.redis_url is None:
        world.valkey = plan.make_valkey(directory / "valkey")
        await world.valkey.start()
    for service in (Service.POSTGRES, Service.REDIS):
        if service in plan.proxied:
            where = world.postgres_dsn if service is Service.POSTGRES else world.redis_url
            parts = urlsplit(where)
            proxy = TcpProxy((parts.hostname or "127.0.0.1", parts.port or 0))
            world.proxies[service] = [await stack.enter_async_context(proxy)]
    world.environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "MAILBOXD_POSTGRES_DSN": world.postgres_dsn,
        "MAILBOXD_REDIS_URL": world.redis_url,
        "MAILBOXD_SECRETS_DIR": str(directory / "secrets"),
    }
    await world.mailboxd("migrate", "apply")
    await world.mailboxd("init")
    policy = dict(NO_LIMITS) | dict(plan.policy)
    await world.mailboxd("admin", "policy", "set", *(f"{key}={value}" for key, value in policy.items()))
    world.gateways = [Role(world, Kind.GATEWAY, number) for number in range(plan.gateways)]
    world.workers = [Role(world, Kind.WORKER, number) for number in range(plan.workers)]
    if Service.GATEWAY in plan.proxied:
        world.proxies[Service.GATEWAY] = [
            await stack.enter_async_context(TcpProxy(("127.0.0.1", role.port))) for role in world.gateways
        ]
    for role in world.roles:
        role.launch()
    world.settings = json.loads(await world.mailboxd("config", "--json"))
    await world.ready()


async def _stop(world: World) -> None:
    """Gateways first, then workers, then what they stand on. What does not obey is killed and told."""
    faults: list[str] = []
    for group in (world.gateways, world.workers, [part for part in (world.valkey, world.postgres) if part]):
        for part in group:
            part.cont()
        answers = await asyncio.gather(*(part.close() for part in group), return_exceptions=True)
        faults += [str(answer) for answer in answers if isinstance(answer, Exception)]
    if faults:
        raise WorldFailed("; ".join(faults))


def _through(url: str, proxy: TcpProxy) -> str:
    """The same URL with the proxy's address in it."""
    parts = urlsplit(url)
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{proxy.port}"))
