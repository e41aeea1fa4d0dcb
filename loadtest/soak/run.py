"""`python -m loadtest soak`: a fresh server, Locust's master with its workers, a verdict, pictures."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from loadtest import machine
from loadtest.conditions import GENERATOR_CORES_MAX, Watch
from loadtest.server import UNLIMITED, Server, fresh_server
from loadtest.soak.failure import SoakFailed
from loadtest.soak.history import courses, failures
from loadtest.soak.plots import draw
from loadtest.soak.verdict import judge
from loadtest.soak.watch import Watcher

LOCUSTFILE: Final = Path(__file__).resolve().parents[1] / "locustfile.py"
ENDS_WITHIN_S: Final = 180.0  # after the run: draining, stopping users, the last statistics
SAMPLES_A_RUN: Final = 120
_PUSH_SETTING: Final = "MAILBOXD_PUSH_PRIVATE_NETWORKS_ALLOWED"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakSettings:
    """How long, how many, where the results go."""

    minutes: float
    users: int
    workers: int
    directory: Path


async def soak(settings: SoakSettings) -> dict[str, Any]:
    """Run it and return the report, which is also in `report.json` beside the pictures and Locust's CSV files.

    Acked rows are deleted after a tenth of the run, so that clean-up and vacuum have found their pace in its first
    third; of the hour that is the default a short run would only see tables grow.
    """
    settings.directory.mkdir(parents=True, exist_ok=True)
    for old in settings.directory.glob("verdict-*.json"):
        old.unlink()
    seconds = settings.minutes * 60
    policy = {**UNLIMITED, "acked_cleanup_s": str(min(3_000, max(5, round(seconds / 10))))}
    watch = Watch(server_is_ours=True)
    # Phones of the run have their push gateway on this machine.
    async with fresh_server(policy=policy, settings={_PUSH_SETTING: "127.0.0.0/8"}) as server:
        if server.postgres_dsn is None:
            raise SoakFailed("the server does not say where its database is")
        version, postgres = await machine.postgres(server.postgres_dsn)
        watcher = Watcher(server.postgres_dsn, server.pids, max(1.0, seconds / SAMPLES_A_RUN))
        watching = asyncio.create_task(watcher.run(), name="soak-watch")
        try:
            generator_cores = await _locust(server, settings, seconds)
            if watching.done():
                watching.result()
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
    histories = [json.loads(path.read_text()) for path in sorted(settings.directory.glob("verdict-*.json"))]
    # What follows the last user's stop is no traffic.
    samples = [sample for sample in watcher.samples if sample.at_s <= seconds + 5]
    course = courses(settings.directory / "locust_stats_history.csv")
    verdict = judge(histories, failures(settings.directory / "locust_stats.csv"), course, samples)
    pictures = draw(settings.directory, course, samples)
    all_ran = len(histories) == settings.workers
    report = {
        "ok": bool(verdict["ok"] and all_ran),
        "machine": machine.machine(),
        "versions": {**machine.packages(), "postgres": version},
        "settings": {
            "minutes": settings.minutes,
            "users": settings.users,
            "workers": settings.workers,
            "policy": dict(server.policy),
            "postgres": postgres,
        },
        "conditions": watch.stop(),
        "load_processes_judged": len(histories),
        "load_generator_cores": round(generator_cores, 2),
        "warnings": _generator_warning(generator_cores, settings.workers),
        "cpu_s": {role: round(used, 2) for role, used in samples[-1].cpu_s.items()} if samples else {},
        **{key: value for key, value in verdict.items() if key != "ok"},
        "pictures": [str(path) for path in pictures],
    }
    (settings.directory / "report.json").write_text(json.dumps(report, indent=1))
    return report


async def _locust(server: Server, settings: SoakSettings, seconds: float) -> float:
    """Master and workers as processes of their own; when all have ended, returns the cores that they used."""
    used_before, started = _ended_children_s(), perf_counter()
    port = _free_port()
    environment = {**os.environ, "MAILBOX_LOAD_VERDICTS": str(settings.directory)}
    common = ["-f", str(LOCUSTFILE), "--host", server.urls[0], "--loglevel", "INFO"]
    master = [
        *common, "--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", str(port), "--headless",
        "--expect-workers", str(settings.workers), "--expect-workers-max-wait", "60", "--only-summary",
        "--users", str(settings.users), "--spawn-rate", str(max(1.0, settings.users / 10)),
        "--run-time", f"{round(seconds)}s", "--stop-timeout", "5",
        "--csv", str(settings.directory / "locust"), "--csv-full-history",
    ]  # fmt: skip
    worker = [*common, "--worker", "--master-host", "127.0.0.1", "--master-port", str(port)]
    processes: list[asyncio.subprocess.Process] = []
    logs = [settings.directory / f"{name}.log" for name in ("master", *_names(settings.workers))]
    try:
        for arguments, log in zip((master, *[worker] * settings.workers), logs, strict=True):
            with log.open("wb") as output:
                processes.append(
                    await asyncio.create_subprocess_exec(
                        sys.executable, "-m", "locust", *arguments, env=environment, stdout=output, stderr=output
                    )
                )
        async with asyncio.timeout(seconds + ENDS_WITHIN_S):
            await asyncio.gather(*(process.wait() for process in processes))
    except TimeoutError:
        raise SoakFailed(f"Locust did not end in time: {_tail(logs[0])}") from None
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    # A worker whose history was bad ends with 1: that is the verdict's to say.
    if not (settings.directory / "locust_stats_history.csv").exists():
        raise SoakFailed(f"Locust's master left no history: {_tail(logs[0])}")
    return (_ended_children_s() - used_before) / (perf_counter() - started)


def _ended_children_s() -> float:
    """Processor time of what this process has started and waited for; the server still runs and is not in it."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def _generator_warning(cores: float, workers: int) -> list[str]:
    most = workers * GENERATOR_CORES_MAX
    return [f"the load processes were the bottleneck: {cores:.2f} of {workers} cores"] if cores > most else []


def _names(workers: int) -> list[str]:
    return [f"worker-{number}" for number in range(1, workers + 1)]


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2_000:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
