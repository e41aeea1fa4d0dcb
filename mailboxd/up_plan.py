"""What `mailboxd up` is going to run: ports, the environment of each process, and how that is told."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from mailboxd.child_process import ChildSpec
from mailboxd.ports import choose_ports
from mailboxd.running import LOGS_DIR, SECRETS_DIR
from mailboxd.terminal import print_result
from runtime.config import PREFIX, ConfigError, GatewayConfig, ProcessConfig, WorkerConfig, load_config

C = TypeVar("C", bound=ProcessConfig)

OPS_HOST: Final = "127.0.0.1"


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
    has_tls: bool

    def with_services(self, postgres_dsn: str, redis_url: str) -> Plan:
        """The same processes, told where PostgreSQL and Redis are."""
        found = _services(postgres_dsn, redis_url)
        gateways = tuple(spec._replace(environment={**spec.environment, **found}) for spec in self.gateways)
        worker = self.worker._replace(environment={**self.worker.environment, **found})
        return self._replace(gateways=gateways, worker=worker)


def make_plan(options: UpOptions, environ: Mapping[str, str]) -> Plan:
    """What to run, decided before anything is started; `with_services` completes it.

    Raises ConfigError with every mistake that the environment holds for any process, CommandError for a port in use.
    """
    common = dict(environ) | {
        PREFIX + "SECRETS_DIR": str(options.data_dir / SECRETS_DIR),
        PREFIX + "LOG_DIR": str(options.data_dir / LOGS_DIR),
    }
    common.setdefault(PREFIX + "LOOPBACK_EXEMPT", "true")
    problems: list[str] = []
    gateway_config = _checked(GatewayConfig, common, problems)
    worker_config = _checked(WorkerConfig, common, problems)
    if gateway_config is None or worker_config is None:
        raise ConfigError(problems)
    ports = choose_ports(options.host, options.port, options.gateways, "--port")
    ops_ports = choose_ports(OPS_HOST, options.ops_port, options.gateways + 1, "--ops-port")
    gateways = []
    for number, (port, ops_port) in enumerate(zip(ports, ops_ports[:-1], strict=True), start=1):
        own = {PREFIX + "LISTEN": _address(options.host, port), PREFIX + "OPS_LISTEN": f"{OPS_HOST}:{ops_port}"}
        gateways.append(_spec("gateway", f"gateway-{number}", common | own, ops_port))
    worker = _spec("worker", "worker", common | {PREFIX + "OPS_LISTEN": f"{OPS_HOST}:{ops_ports[-1]}"}, ops_ports[-1])
    scheme = "http" if gateway_config.tls_certificate is None else "https"
    return Plan(
        tuple(gateways),
        worker,
        tuple(f"{scheme}://{_address(options.host, port)}" for port in ports),
        tuple(f"http://{OPS_HOST}:{port}" for port in ops_ports),
        max(gateway_config.drain_deadline_s, worker_config.drain_deadline_s),
        has_tls=gateway_config.tls_certificate is not None,
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
    # A certificate is for a name, and this is an address; a self-signed one is nobody's word at all.
    insecure = "--insecure " if report["url"].startswith("https:") else ""
    lines = [
        f"mailboxd is up, data in {report['data_dir']}",
        *(f"  HTTP and WebSocket  {url}" for url in urls),
        f"  health, metrics     {'  '.join(ops_urls)}",
        f"  logs                {report['data_dir']}/{LOGS_DIR}",
        f"Try it:  curl {insecure}{report['url']}/v1/instance",
        "Ctrl-C stops everything.",
    ]
    print_result(report, as_json=as_json, lines=lines)


def _checked(kind: type[C], environ: Mapping[str, str], problems: list[str]) -> C | None:
    """The settings as they will be; the addresses that `up` itself gives need not be there yet."""
    given = {PREFIX + "LISTEN": f"{OPS_HOST}:0", PREFIX + "OPS_LISTEN": f"{OPS_HOST}:0"}
    try:
        return load_config(kind, {**environ, **given, **_services("postgresql://", "redis://")})
    except ConfigError as error:
        problems += [problem for problem in error.problems if problem not in problems]
        return None


def _services(postgres_dsn: str, redis_url: str) -> dict[str, str]:
    return {PREFIX + "POSTGRES_DSN": postgres_dsn, PREFIX + "REDIS_URL": redis_url}


def _spec(command: str, name: str, environment: Mapping[str, str], ops_port: int) -> ChildSpec:
    arguments = [sys.executable, "-m", "mailboxd", command, "--parent-pid", str(os.getpid()), "--log-name", name]
    return ChildSpec(name, arguments, environment, OPS_HOST, ops_port)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
