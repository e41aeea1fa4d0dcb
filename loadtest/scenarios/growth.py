"""Does it stay as fast with millions of envelopes in it? `cycle` and `pull` beside 0, 1 and 5 million stored ones.

They lie in the mailboxes of 10,000 devices that never come, so the tables and every index grow and nobody's mailbox is
near its limit. At each step the full cycle runs, and 50 devices read the same 100 waiting envelopes over HTTP, page
after page. All steps share one server: what differs is what lies there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Any, Final

import aiohttp
import asyncpg
import msgpack  # type: ignore[import-untyped]

from loadtest.accounts import Account, renew
from loadtest.latency import Latencies
from loadtest.processes import cpu_seconds
from loadtest.run import Run, merged
from loadtest.scenarios.cycle import closed_loop
from loadtest.stored_mail import NoRoom, check_room, put, settle, silent_mailboxes, spread

SILENT: Final = 10_000
PULLERS: Final = 50
WAITING: Final = 100  # envelopes that each puller reads, one page of them
REPEATS: Final = 3  # of both measurements at each step; the median counts
PULL_SHARE: Final = 0.5  # of --seconds


class GrowthFailed(Exception):
    """The run cannot be made: too small a disk, or a server whose database is not known."""


async def growth(run: Run) -> dict[str, Any]:
    """Rates, latencies and CPU a message at each step of `--stored`, and the worst step's rates over the first's.

    CPU a message is told twice: all that gateway and PostgreSQL used meanwhile, vacuum and clean-up included, and what
    serving took, which is the gateway and its hot sessions in the database. On a busy machine the former is divided by
    fewer messages; what one message costs is the latter. `ratio_generator_cpu` is the load generator's own CPU a
    message, which no stored envelope can change: as far as it is off 1, the machine was not the same at all steps, and
    the ratios of the rates say as much about that.
    """
    settings, dsn, data_dir = run.settings, run.server.postgres_dsn, run.server.data_dir
    if dsn is None or data_dir is None:
        raise GrowthFailed("growth: the database of a server given by --url is not known")
    try:
        check_room(data_dir, settings.stored[-1], settings.payload_bytes)
    except NoRoom as error:
        raise GrowthFailed(f"growth: {error}") from error
    accounts = await run.accounts(settings.devices + PULLERS)
    pullers = accounts[settings.devices :]
    connection = await asyncpg.connect(dsn)
    steps: list[dict[str, Any]] = []
    try:
        await silent_mailboxes(connection, SILENT)
        await put(connection, [account.device for account in pullers], WAITING, settings.payload_bytes)
        there = 0
        for stored in settings.stored:
            started = perf_counter()
            if stored > there:
                await spread(connection, stored - there, settings.payload_bytes)
            there = stored
            await settle(dsn)
            filled_s = perf_counter() - started
            await renew(run.server.urls[0], accounts)
            measured = [await _measured(run, pullers, connection) for _ in range(REPEATS)]
            sizes = await connection.fetchrow(_SIZES)
            steps.append(merged({"stored": stored, "filled_s": round(filled_s, 1)}, _middle(measured), dict(sizes)))
    finally:
        await connection.close()
        run.forget_accounts()  # the pullers' mailboxes are not empty
    return merged(
        {"devices": settings.devices, "payload": settings.payload_bytes},
        {"ok": all(step["ok"] for step in steps)},
        {f"ratio_{what}": _ratio(steps, f"{what}_per_s") for what in ("cycle", "pull")},
        {"ratio_cpu": _ratio(steps, "cycle_cpu_us"), "ratio_generator_cpu": _ratio(steps, "generator_cpu_us")},
        {f"ratio_{what}_serving_cpu": _ratio(steps, f"{what}_serving_us") for what in ("cycle", "pull")},
        {"steps": steps},
        {"facts": {f"{step['stored']:,} stored:": _said(step) for step in steps}},
    )


async def _measured(run: Run, pullers: Sequence[Account], connection: asyncpg.Connection[Any]) -> dict[str, Any]:
    before = await _hot_sessions_s(connection)
    cycle = await closed_loop(run, run.settings.devices, echo=False)
    between = await _hot_sessions_s(connection)
    pull = await _pull(run, pullers)
    pulled = await _hot_sessions_s(connection) - between
    server = ("gateway", "postgres")
    gateway_us = [one["cpu"]["gateway"]["cpu_s_per_1000"] * 1_000 for one in (cycle, pull)]
    cycle_hot_us = (between - before) / max(1, cycle["verdict"]["accepted_entries"]) * 1e6
    return {
        "ok": cycle["ok"] and pull["ok"],
        "cycle_per_s": cycle["confirmed_per_s"],
        "cycle_p99_ms": cycle["latency_ms"]["p99"],
        "cycle_cpu_us": round(sum(cycle["cpu"][role]["cpu_s_per_1000"] for role in server) * 1_000, 1),
        "cycle_serving_us": round(gateway_us[0] + cycle_hot_us, 1),
        "pull_serving_us": round(gateway_us[1] + pulled / max(1, pull["entries"]) * 1e6, 2),
        "generator_cpu_us": round(cycle["cpu"]["load_generator"]["cpu_s_per_1000"] * 1_000, 1),
        "pull_per_s": pull["entries_per_s"],
        "pull_p99_ms": pull["page_ms"]["p99"],
        "pull_cpu_us": round(sum(pull["cpu"][role]["cpu_s_per_1000"] for role in server) * 1_000, 1),
    }


async def _pull(run: Run, pullers: Sequence[Account]) -> dict[str, Any]:
    """Every puller reads its one page again and again, from the oldest un-acked envelope on."""
    pages = Latencies()
    meter = run.meter()
    end = perf_counter() + max(1.0, run.settings.seconds * PULL_SHARE)
    wrong = 0

    async def reading(http: aiohttp.ClientSession, account: Account) -> None:
        nonlocal wrong
        headers = {"Authorization": f"Bearer {account.token}", "Accept": "application/msgpack"}
        while perf_counter() < end:
            started = perf_counter()
            async with http.get(f"/v1/mailbox?limit={WAITING}", headers=headers) as answer:
                page = msgpack.unpackb(await answer.read())
            pages.add(perf_counter() - started)
            wrong += answer.status != 200 or len(page["entries"]) != WAITING

    async with aiohttp.ClientSession(run.server.urls[0], connector=aiohttp.TCPConnector(limit=len(pullers))) as http:
        meter.start()
        started = perf_counter()
        await asyncio.gather(*(reading(http, account) for account in pullers))
        seconds = perf_counter() - started
    entries = pages.count * WAITING
    return {
        "ok": not wrong and pages.count > 0,
        "entries": entries,
        "entries_per_s": round(entries / seconds, 1),
        "page_ms": pages.summary(),
        "cpu": meter.stop(entries),
    }


async def _hot_sessions_s(connection: asyncpg.Connection[Any]) -> float:
    """CPU seconds so far of the gateway's sessions that submit, ack and read."""
    sessions = await connection.fetch(_HOT_SESSIONS)
    return cpu_seconds([session["pid"] for session in sessions], ended_children=False)


def _middle(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The median of each figure; `ok` only if all are."""
    figures = {key: round(median(one[key] for one in measured), 2) for key in measured[0] if key != "ok"}
    return {"ok": all(one["ok"] for one in measured), **figures}


def _ratio(steps: Sequence[Mapping[str, Any]], figure: str) -> float:
    """The worst step's figure over the first step's."""
    shares: list[float] = [step[figure] / steps[0][figure] for step in steps]
    return round(max(shares) if figure.endswith("_us") else min(shares), 3)


def _said(step: Mapping[str, Any]) -> str:
    return (
        f"cycle {step['cycle_per_s']:,.0f}/s p99 {step['cycle_p99_ms']} ms {step['cycle_cpu_us']} us a message "
        f"({step['cycle_serving_us']} in serving; load generator {step['generator_cpu_us']}), "
        f"pull {step['pull_per_s']:,.0f} envelopes/s p99 {step['pull_p99_ms']} ms a page {step['pull_cpu_us']} us each"
        f" ({step['pull_serving_us']} in serving),"
        f" table {step['table_bytes'] / 2**20:,.0f} MiB and indexes {step['index_bytes'] / 2**20:,.0f} MiB, "
        f"filled and settled in {step['filled_s']:.0f} s"
    )


_HOT_SESSIONS: Final = """
SELECT pid FROM pg_stat_activity WHERE application_name ~ '^mailboxd gateway (submit|ack|read)'
"""
_SIZES: Final = """
SELECT pg_table_size('envelopes') AS table_bytes, pg_indexes_size('envelopes') AS index_bytes
"""
