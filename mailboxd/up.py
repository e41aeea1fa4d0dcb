"""`mailboxd up`: the whole server on this machine, on an embedded PostgreSQL and Valkey in one data directory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import structlog

from mailboxd.child_process import ChildProcess, ChildSpec
from mailboxd.embedded import EmbeddedServices
from mailboxd.init import initialise
from mailboxd.log_keeping import AppendedLogs, keep_logs
from mailboxd.ports import choose_ports
from mailboxd.running import LOGS_DIR, SECRETS_DIR, holding, remove_runtime_file, write_runtime_file
from mailboxd.terminal import EXIT_OK, CommandError, print_result
from migrations import runner
from runtime import logs
from runtime.clock import SystemClock
from runtime.config import PREFIX, GatewayConfig, WorkerConfig, load_config
from runtime.keyring import Keyring
from store.audit import AuditStore
from store.policy import PolicyStore
from store.policy_rules import Policy
from store.postgres import Postgres

logger = structlog.get_logger(__name__)

OPS_HOST: Final = "127.0.0.1"
KILL_AFTER_DRAIN_S: Final = 10.0  # what a process gets beyond its own drain deadline
SERVICES_LOOK_S: Final = 0.5


class UpOptions(NamedTuple):
    """What the command line says. Port 0 takes free ones."""

    data_dir: Path
    host: str
    port: int
    ops_port: int
    gateways: int


class Plan(NamedTuple):
    """The processes to run, gateways first, and where they listen."""

    gateways: tuple[ChildSpec, ...]
    worker: ChildSpec
    urls: tuple[str, ...]
    ops_urls: tuple[str, ...]
    drain_deadline_s: float


class Stop:
    """SIGINT or SIGTERM asks to stop; a second one asks to hurry."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.urgent = asyncio.Event()

    @contextlib.contextmanager
    def on_signals(self) -> Any:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._ask)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _ask(self) -> None:
        (self.urgent if self.requested.is_set() else self.requested).set()


async def run_up(options: UpOptions, environ: Mapping[str, str], on_ready: Callable[[dict[str, Any]], None]) -> int:
    """Run until SIGINT or SIGTERM, then stop everything in order and return 0.

    `on_ready` gets the report (the `--json` line) once every process answers that it is ready. Raises CommandError,
    ConfigError or EmbeddedError when it cannot start or a process cannot be kept alive; then nothing runs any more.
    """
    stop = Stop()
    with stop.on_signals():
        running = asyncio.create_task(_run(options, environ, on_ready, stop), name="up")
        asked = asyncio.create_task(stop.requested.wait(), name="stop-asked")
        await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        running.cancel()
        try:
            await running
        except asyncio.CancelledError:
            pass
    return EXIT_OK


@contextlib.asynccontextmanager
async def serving(options: UpOptions, environ: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
    """The same server for the length of a block, which gets the report; stopped in order however the block ends.

    A part that cannot be kept alive ends the block: its error is raised here.
    """
    ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(_run(options, environ, ready.set_result, Stop()), name="up")
    block = asyncio.current_task()
    failed = False

    def ended(_task: asyncio.Task[NoReturn]) -> None:
        nonlocal failed
        if not leaving and block is not None:
            failed = True
            block.cancel()

    leaving = False
    try:
        await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            running.add_done_callback(ended)
            yield ready.result()
    except asyncio.CancelledError:
        if not failed or block is None:
            raise
        block.uncancel()
    finally:
        leaving = True
        running.cancel()
        await asyncio.wait((running,))
    if not running.cancelled():
        running.result()


async def _run(
    options: UpOptions, environ: Mapping[str, str], on_ready: Callable[[dict[str, Any]], None], stop: Stop
) -> NoReturn:
    _make_directory(options.data_dir)
    with holding(options.data_dir):
        remove_runtime_file(options.data_dir)  # a killed predecessor's
        async with EmbeddedServices(options.data_dir) as services:
            logs.configure("up", directory=options.data_dir / LOGS_DIR)
            plan = make_plan(options, environ, services.postgres_dsn, services.redis_url)
            await runner.apply(services.postgres_dsn)
            await initialise(services.postgres_dsn, options.data_dir / SECRETS_DIR, Policy(registration="open"))
            try:
                await _keep_all(plan, options.data_dir, services, on_ready, stop)
            finally:
                remove_runtime_file(options.data_dir)


async def _keep_all(
    plan: Plan, data_dir: Path, services: EmbeddedServices, on_ready: Callable[[dict[str, Any]], None], stop: Stop
) -> NoReturn:
    """Run the processes until cancelled; gateways stop first, then the worker, each within its time."""
    clock = SystemClock()

    def write_report() -> dict[str, Any]:
        pids = {"gateways": [child.pid for child in gateways], "worker": worker.pid, **services.pids}
        report = report_of(plan, data_dir, services.postgres_dsn, services.redis_url, pids)
        write_runtime_file(data_dir, report)
        return report

    gateways = [ChildProcess(spec, clock, write_report) for spec in plan.gateways]
    worker = ChildProcess(plan.worker, clock, write_report)
    try:
        async with asyncio.TaskGroup() as starting:
            for child in (*gateways, worker):
                starting.create_task(child.start(), name=f"start-{child.name}")
        on_ready(write_report())
        async with asyncio.TaskGroup() as keeping, _policy_of(data_dir, services.postgres_dsn) as load_policy:
            for child in (*gateways, worker):
                keeping.create_task(child.keep(), name=f"keep-{child.name}")
            keeping.create_task(_keep_services(services, clock, write_report), name="keep-services")
            own_logs = [f"{spec.name}.log" for spec in (*plan.gateways, plan.worker)]
            appended = AppendedLogs(data_dir / LOGS_DIR, [*own_logs, "up.log"])
            await keep_logs(appended, load_policy, clock)
    finally:
        await _stop_all(gateways, plan.drain_deadline_s + KILL_AFTER_DRAIN_S, stop)
        await _stop_all([worker], plan.drain_deadline_s + KILL_AFTER_DRAIN_S, stop)


async def _keep_services(services: EmbeddedServices, clock: SystemClock, on_started: Callable[[], Any]) -> NoReturn:
    """Start PostgreSQL or Valkey again when one has ended: both come back at their old address."""
    while True:
        await clock.sleep(SERVICES_LOOK_S)
        for name in services.ended():
            logger.warning("service ended; starting it again", service=name)
            await services.start_again(name)
            on_started()


async def _stop_all(children: Sequence[ChildProcess], grace_s: float, stop: Stop) -> None:
    """Stop them together. A second signal, seen before or meanwhile, kills what still runs."""
    stopping = [asyncio.create_task(child.stop(grace_s=grace_s), name=f"stop-{child.name}") for child in children]
    hurried = asyncio.create_task(stop.urgent.wait(), name="stop-urgent")
    ended = asyncio.gather(*stopping)
    await asyncio.wait((ended, hurried), return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if not ended.done():
        await asyncio.gather(*(child.stop(grace_s=0) for child in children))
    await ended


def make_plan(options: UpOptions, environ: Mapping[str, str], postgres_dsn: str, redis_url: str) -> Plan:
    """What to run. Raises ConfigError with every mistake in the environment, CommandError for a port in use."""
    secrets_dir, logs_dir = options.data_dir / SECRETS_DIR, options.data_dir / LOGS_DIR
    ports = choose_ports(options.host, options.port, options.gateways, "--port")
    ops_ports = choose_ports(OPS_HOST, options.ops_port, options.gateways + 1, "--ops-port")
    common = dict(environ) | {
        PREFIX + "POSTGRES_DSN": postgres_dsn,
        PREFIX + "REDIS_URL": redis_url,
        PREFIX + "SECRETS_DIR": str(secrets_dir),
        PREFIX + "LOG_DIR": str(logs_dir),
    }
    common.setdefault(PREFIX + "LOOPBACK_EXEMPT", "true")
    gateways = []
    for number, (port, ops_port) in enumerate(zip(ports, ops_ports[:-1], strict=True), start=1):
        own = {PREFIX + "LISTEN": _address(options.host, port), PREFIX + "OPS_LISTEN": f"{OPS_HOST}:{ops_port}"}
        gateways.append(_spec("gateway", f"gateway-{number}", common | own, ops_port))
    worker = _spec("worker", "worker", common | {PREFIX + "OPS_LISTEN": f"{OPS_HOST}:{ops_ports[-1]}"}, ops_ports[-1])
    gateway_config = load_config(GatewayConfig, gateways[0].environment)
    worker_config = load_config(WorkerConfig, worker.environment)
    scheme = "http" if gateway_config.tls_certificate is None else "https"
    return Plan(
        tuple(gateways),
        worker,
        tuple(f"{scheme}://{_address(options.host, port)}" for port in ports),
        tuple(f"http://{OPS_HOST}:{port}" for port in ops_ports),
        max(gateway_config.drain_deadline_s, worker_config.drain_deadline_s),
    )


def report_of(plan: Plan, data_dir: Path, postgres_dsn: str, redis_url: str, pids: dict[str, Any]) -> dict[str, Any]:
    """The one line of `up --json`, and the runtime file."""
    return {
        "url": plan.urls[0],
        "urls": list(plan.urls),
        "ws_urls": [f"ws{url.removeprefix('http')}/v1/ws" for url in plan.urls],
        "ops_urls": list(plan.ops_urls),
        "postgres_dsn": postgres_dsn,
        "redis_url": redis_url,
        "data_dir": str(data_dir),
        "pids": pids,
    }


def show_report(report: dict[str, Any], *, as_json: bool) -> None:
    """Say that it runs: one JSON line, or the same for a person."""
    urls, ops_urls = report["urls"], report["ops_urls"]
    lines = [
        f"mailboxd is up, data in {report['data_dir']}",
        *(f"  HTTP and WebSocket  {url}" for url in urls),
        f"  health, metrics     {'  '.join(ops_urls)}",
        f"  logs                {report['data_dir']}/{LOGS_DIR}",
        f"Try it:  curl {report['url']}/v1/instance",
        "Ctrl-C stops everything.",
    ]
    print_result(report, as_json=as_json, lines=lines)


@contextlib.asynccontextmanager
async def _policy_of(data_dir: Path, postgres_dsn: str) -> AsyncIterator[Callable[[], Any]]:
    postgres = Postgres(postgres_dsn, pool_min=0, pool_max=1, application_name="mailboxd up")
    await postgres.open()
    try:
        clock = SystemClock()
        tags = logs.DeviceTags(Keyring.load(data_dir / SECRETS_DIR).log_key, clock)
        yield PolicyStore(postgres, AuditStore(postgres, tags, clock)).load
    finally:
        await postgres.close()


def _spec(command: str, name: str, environment: Mapping[str, str], ops_port: int) -> ChildSpec:
    arguments = [sys.executable, "-m", "mailboxd", command, "--parent-pid", str(os.getpid()), "--log-name", name]
    return ChildSpec(name, arguments, environment, OPS_HOST, ops_port)


def _make_directory(data_dir: Path) -> None:
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"{data_dir} cannot be created: {error.strerror}; take another --data-dir") from None


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
