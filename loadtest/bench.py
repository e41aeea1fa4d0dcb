"""`python -m loadtest bench`: run scenarios against a fresh server, or one given by URL, and say what was measured."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any, Final, NamedTuple

from loadtest import goals, machine
from loadtest.conditions import Watch, generator_warning
from loadtest.db_ceiling import db_ceiling
from loadtest.run import Planned, Run, Settings, merged
from loadtest.scenarios.backlog import backlog_many, backlog_one
from loadtest.scenarios.clean_up import expiry
from loadtest.scenarios.costs import costs
from loadtest.scenarios.cycle import cycle, cycle_echo, cycle_long, light_2, light_10
from loadtest.scenarios.fan_out import fan_out_32_64k, fan_out_64, fan_out_64_16k
from loadtest.scenarios.growth import growth
from loadtest.scenarios.http_only import http_only
from loadtest.scenarios.idle import idle
from loadtest.scenarios.paced import paced
from loadtest.scenarios.pgbench import pgbench_single
from loadtest.scenarios.storm import storm
from loadtest.scenarios.wakes import online_worker, wake_delay
from loadtest.server import UNLIMITED, Server, fresh_server

SCENARIOS: Final = {
    planned.name: planned
    for planned in (
        Planned("cycle", cycle),
        Planned("cycle-echo", cycle_echo),
        Planned("cycle-long", cycle_long, policy=(("acked_cleanup_s", "60"),), settings=Settings(seconds=900.0)),
        Planned("light-2", light_2),
        Planned("light-10", light_10),
        Planned("paced", paced, settings=Settings(seconds=60.0)),
        Planned("paced-500", paced, settings=Settings(seconds=60.0, rate_per_s=500)),
        Planned("paced-1000", paced, settings=Settings(seconds=60.0, rate_per_s=1_000)),
        Planned("fan-out-64", fan_out_64),
        Planned("fan-out-64-16k", fan_out_64_16k),
        Planned("fan-out-32-64k", fan_out_32_64k),
        Planned("backlog-one", backlog_one),
        Planned("backlog-many", backlog_many),
        Planned("idle", idle, settings=Settings(devices=10_000)),
        Planned("idle-tls", idle, tls=True, settings=Settings(devices=2_000)),
        Planned("storm", storm, settings=Settings(devices=10_000)),
        Planned("http-only", http_only),
        Planned("db-ceiling", db_ceiling),
        Planned("pgbench-single", pgbench_single),
        Planned("two-gateways", cycle, gateways=2),
        Planned("costs", costs, settings=Settings(seconds=15.0)),
        Planned("growth", growth, settings=Settings(seconds=6.0, warmup_s=2.0)),
        Planned("online-worker", online_worker, settings=Settings(seconds=150.0)),
        Planned("wake-delay", wake_delay, environment=(("MAILBOXD_PUSH_PRIVATE_NETWORKS_ALLOWED", "127.0.0.0/8"),)),
        Planned("expiry", expiry, settings=Settings(stored=(1_000_000,))),
    )
}

# The table of docs/performance.md in one run of less than ten minutes. `cycle` twice, for what two runs differ by;
# `idle` behind another kind of server, so that its gateway is a fresh one.
FIGURES: Final = (
    "cycle", "cycle-echo", "light-2", "light-10", "db-ceiling", "pgbench-single", "cycle",
    "fan-out-64", "fan-out-64-16k", "fan-out-32-64k", "backlog-one", "backlog-many", "http-only",
    "paced-500", "paced-1000", "two-gateways", "idle", "storm",
)  # fmt: skip


async def bench(names: Sequence[str], chosen: Mapping[str, Any], url: str | None = None) -> dict[str, Any]:
    """Run the scenarios in the order given, one fresh server for neighbours that need the same.

    `chosen` are fields of Settings that hold for all, instead of each scenario's own. `ok` if no scenario lost,
    doubled or disordered anything and every bound that must hold is met.
    """
    planned = [SCENARIOS[name] for name in names]
    report: dict[str, Any] = {"machine": machine.machine(), "versions": machine.packages(), "settings": {}}
    results: list[dict[str, Any]] = []
    for wanted, group in groupby(planned, key=_server_of):
        async with _server(url, wanted) as server:
            await _describe(report, server, chosen)
            run = Run(server)
            for one in group:
                run.settings = replace(one.settings, **chosen)
                watch = Watch(server_is_ours=url is None)
                result = merged({"name": one.name}, await one.scenario(run))
                result["settings"] = asdict(run.settings)
                result["conditions"] = watch.stop()
                result["warnings"] = [*generator_warning(result.get("cpu", {})), *result["conditions"]["disturbed"]]
                results.append(result)
                if not result["ok"]:
                    run.forget_accounts()
    compared = ratios(results)
    judged = goals.judge(results, compared)
    well = all(result["ok"] for result in results) and all(one["met"] for one in judged if one["must"])
    return merged({"ok": well}, report, {"scenarios": results, "ratios": compared, "goals": judged})


def ratios(results: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Rates of one run as ratios: over pgbench's single-transaction submits, the store alone, and `cycle`."""
    rates = {result["name"]: result["confirmed_per_s"] for result in results if result.get("confirmed_per_s")}
    compared = {
        "pgbench-single": ("cycle", "db-ceiling", "two-gateways"),
        "db-ceiling": ("cycle", "two-gateways"),
        "cycle": ("cycle-", "two-gateways"),
    }
    return {
        f"{name} / {base}": round(rate / rates[base], 3)
        for base, beside in compared.items()
        if base in rates
        for name, rate in rates.items()
        if name.startswith(beside)
    }


class _Wanted(NamedTuple):
    """What a scenario needs of its server: neighbours that need the same share one."""

    gateways: int
    policy: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]
    tls: bool


def _server_of(one: Planned) -> _Wanted:
    return _Wanted(one.gateways, one.policy, one.environment, one.tls)


@asynccontextmanager
async def _server(url: str | None, wanted: _Wanted) -> AsyncIterator[Server]:
    if url is not None:
        yield Server(urls=(url,))
    else:
        async with fresh_server(
            gateways=wanted.gateways,
            policy={**UNLIMITED, **dict(wanted.policy)},
            settings=dict(wanted.environment),
            tls=wanted.tls,
        ) as server:
            yield server


async def _describe(report: dict[str, Any], server: Server, chosen: Mapping[str, Any]) -> None:
    report["settings"] = {"chosen": dict(chosen), "policy": dict(server.policy), "postgres": {}}
    if server.postgres_dsn is not None:
        report["versions"]["postgres"], report["settings"]["postgres"] = await machine.postgres(server.postgres_dsn)
