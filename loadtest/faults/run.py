"""Runs faults one after the other, each with its seed, and judges each: `python -m loadtest faults`."""

from __future__ import annotations

import asyncio
import importlib
import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import asyncpg

from loadtest import machine
from loadtest.faults.books import at_rest, check_books, server_time_ms
from loadtest.faults.connections import Descriptors, still_alive
from loadtest.faults.fault import FAULTS, Fault, Scene
from loadtest.faults.judge import Findings, judge
from loadtest.faults.process import WorldFailed
from loadtest.faults.quotas import quotas_watched
from loadtest.faults.traffic import Traffic
from loadtest.faults.world import Commands, Given, World, WorldPlan, running_world

# Modules that register faults, in the order in which they run.
MODULES: Final = (
    "kills",
    "points",
    "network",
    "database",
    "standby",
    "valkey",
    "clocks",
    "upgrade",
    "restore",
    "hostile",
    "storm",
)
FAULT_S_MAX: Final = 420.0
SHORT_SHARE: Final = 3  # the short selection's part of the messages: one third


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the person at the terminal chose."""

    short: bool = False
    only: tuple[str, ...] = ()
    seed: int | None = None
    given: Given = field(default_factory=Given)
    commands: Commands = field(default_factory=Commands)
    messages: int | None = None  # a fault's accepted entries, instead of its own number
    patience: float = 1.0  # stretches the times within which clients must settle
    keep: Path | None = None  # where notes and logs of a broken run go
    worlds: int = 1  # at most so many beside each other: most of a run is waiting


class UnknownFault(Exception):
    """There is no fault of that name."""


def load_faults() -> dict[str, Fault]:
    """All faults by name, in the order in which they run."""
    for module in MODULES:
        importlib.import_module(f"loadtest.faults.{module}")
    return FAULTS


def selected(options: Options) -> list[Fault]:
    """The faults to run, equal worlds next to each other. Raises UnknownFault."""
    known = load_faults()
    if unknown := set(options.only) - set(known):
        raise UnknownFault(f"no such fault: {', '.join(sorted(unknown))}")
    chosen = [one for one in known.values() if one.name in options.only or not options.only]
    if options.short and not options.only:
        chosen = [one for one in chosen if one.short]
    plans = list(dict.fromkeys(one.plan for one in chosen))
    return sorted(chosen, key=lambda one: plans.index(one.plan))


async def run_faults(options: Options, on_result: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run them all; `on_result` is told each as it ends. The report's `ok` is False if any promise was broken."""
    faults = selected(options)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**9)
    results: list[dict[str, Any]] = []

    def done(result: dict[str, Any]) -> None:
        results.append(result)
        on_result(result)

    files = _own_files()
    for undisturbed in (False, True):
        some = [one for one in faults if one.undisturbed is undisturbed]
        groups = [(plan, list(group)) for plan, group in groupby(some, key=lambda one: one.plan)]
        async with asyncio.TaskGroup() as running:
            for _ in range(1 if undisturbed else options.worlds):
                running.create_task(_until_done(groups, options, seed, done))
    left = [] if _own_files() <= files else [f"the kit itself holds {_own_files() - files} files more than before"]
    total = {key: sum(result.get(key, 0) for result in results) for key in _SUMS}
    return {
        "ok": all(result["ok"] for result in results) and not left,
        "seed": seed,
        "short": options.short,
        "machine": machine.machine(),
        "total": total,
        "left_behind": left,
        "faults": results,
    }


_SUMS: Final = ("accepted", "delivered", "opened_once", "lost", "duplicated", "out_of_order", "quota_breaches")


async def _until_done(
    groups: Sequence[tuple[WorldPlan, list[Fault]]],
    options: Options,
    seed: int,
    done: Callable[[dict[str, Any]], None],
) -> None:
    """Take faults from all groups until they are empty, in as many worlds one after the other as that needs."""
    for plan, waiting in groups:
        while waiting:
            await _in_one_world(plan, waiting.pop(0), waiting, options, seed, done)


async def _in_one_world(
    plan: WorldPlan,
    first: Fault,
    waiting: list[Fault],
    options: Options,
    seed: int,
    done: Callable[[dict[str, Any]], None],
) -> None:
    """Run `first`, then what waits, until one of them breaks the world or needed it for itself alone."""
    pids: set[int] = set()
    name = first.name
    try:
        async with running_world(plan, commands=options.commands, given=options.given) as world:
            usable, ran, files = True, "", Descriptors(world)
            one: Fault | None = first
            while one is not None:
                name = one.name
                if one.needs <= world.owns:
                    result = await _one(one, world, files, options, seed)
                    pids |= world.pids()
                    done(result)
                    ran, usable = name, bool(result["ok"]) and not plan.alone
                else:
                    done(_skipped(one, one.needs - world.owns))
                one = waiting.pop(0) if waiting and usable else None
            if ran and usable and world.sees_the_database and (open_ := await at_rest(world)):
                done(_broken(f"rest after {ran}", open_))
    except WorldFailed as error:
        done(_broken(f"world of {name}", [str(error)]))
    if left := still_alive(pids):
        done(_broken(f"left behind by {name}", [f"processes that still run: {left}"]))


def _broken(name: str, problems: list[str]) -> dict[str, Any]:
    return {"name": name, "ok": False, "problems": problems}


def _skipped(one: Fault, missing: frozenset[Any]) -> dict[str, Any]:
    return {"name": one.name, "ok": True, "skipped": f"not the kit's own: {', '.join(sorted(missing))}"}


async def _one(one: Fault, world: World, files: Descriptors, options: Options, seed: int) -> dict[str, Any]:
    """One fault under traffic, judged. Never raises but for a cancellation."""
    chance = random.Random(f"{seed} {one.name}")
    directory = world.directory / f"clients-{one.name}-{chance.randrange(10**6)}"
    traffic = Traffic(world, directory, one.load, chance, patience=options.patience)
    scene = Scene(world, traffic, chance)
    started = time.monotonic()
    try:
        async with quotas_watched(world) as quotas:
            findings, recovered_s = await _under_traffic(one, scene, options)
            if world.sees_the_database and not scene.problems:
                scene.problems += await check_books(world, traffic.devices)
                await quotas.look()
                scene.problems += await files.left_behind()
        await world.refresh()
    except (WorldFailed, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        scene.problems.append(str(error))
        findings, recovered_s = judge(traffic.history()), None
    finally:
        pids = traffic.pids()
        await traffic.close()
    if left := still_alive(pids):
        scene.problems.append(f"clients that still run: {left}")
    if world.sees_the_database:
        scene.problems += quotas.problems()
    result = _result(one, seed, scene, findings, recovered_s, time.monotonic() - started)
    result["quota_breaches"], result["quota_looks"] = quotas.most, quotas.looks
    if options.keep is not None and not result["ok"]:
        result["kept"] = str(_keep(world.directory, options.keep / f"{one.name}-{seed}"))
    return result


async def _under_traffic(one: Fault, scene: Scene, options: Options) -> tuple[Findings, float | None]:
    """Traffic, the fault in it, recovery, rest: what the clients' notes show then, and the longest recovery."""
    world, traffic = scene.world, scene.traffic
    messages = options.messages or (one.messages // SHORT_SHARE if options.short else one.messages)
    recovered_s: float | None = None
    try:
        async with asyncio.timeout(FAULT_S_MAX):
            await traffic.start()
            for _ in range(1 if options.short else one.rounds):
                scene.mended_ns = 0
                await one.act(scene)
                since = scene.mended_ns or time.monotonic_ns()
                await world.ready()
                took = await traffic.flowing(since, within_s=one.recover_s_max)
                recovered_s = max(took, recovered_s or 0.0)
            await traffic.messages(messages)
            await traffic.settle()
    except (WorldFailed, TimeoutError, OSError) as error:
        scene.problems.append(str(error) or "the fault run took too long")
        await _mend(world, traffic, scene)
    now_ms = await server_time_ms(world) if world.sees_the_database else None
    return judge(traffic.history(), now_ms=now_ms), recovered_s


def _keep(world: Path, place: Path) -> Path:
    """Copy what the processes of a broken run wrote: logs, and the clients' notes."""
    for source in (*world.rglob("*.log"), *world.rglob("*.jsonl")):
        copy = place / source.relative_to(world)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    return place


async def _mend(world: World, traffic: Traffic, scene: Scene) -> None:
    """After a failed act: put the world back, so that what was accepted can still be counted."""
    try:
        await world.mend()
        await traffic.settle()
    except (WorldFailed, TimeoutError, OSError) as error:
        scene.problems.append(f"not mended: {error}")


def _result(
    one: Fault, seed: int, scene: Scene, findings: Findings, recovered_s: float | None, seconds: float
) -> dict[str, Any]:
    verdict = findings.verdict
    problems = [*scene.problems, *findings.problems]
    if unexpected := set(findings.refusals) - one.refusals:
        problems.append(f"refused: {', '.join(f'{code} {findings.refusals[code]}' for code in sorted(unexpected))}")
    if not verdict["accepted_entries"]:
        problems.append("nothing was accepted")
    counted = [verdict, *scene.histories]
    return {
        "name": one.name,
        "ok": bool(verdict["ok"] and not problems),
        "seed": seed,
        "about": one.about,
        "accepted": _total(counted, "accepted_entries"),
        "delivered": _delivered(counted),
        "opened_once": _delivered(counted) - _total(counted, "duplicated"),
        "lost": _total(counted, "lost"),
        "duplicated": _total(counted, "duplicated"),
        "handed_again": {"unconfirmed after a crash": verdict["redelivered"]} if verdict["redelivered"] else {},
        "out_of_order": _total(counted, "out_of_order"),
        "unexpected": verdict["unexpected"] + verdict["refused_but_stored"] + verdict["corrupted"],
        "recovered_s": None if recovered_s is None else round(recovered_s, 2),
        "seconds": round(seconds, 1),
        "refusals": dict(findings.refusals),
        "clients_killed": sum(part.kills for part in scene.traffic.processes),
        "facts": scene.facts,
        "problems": problems,
        "examples": verdict["examples"],
        "verdict": {key: value for key, value in verdict.items() if key != "examples"},
    }


def _total(verdicts: Sequence[dict[str, Any]], key: str) -> int:
    return sum(verdict[key] for verdict in verdicts)


def _delivered(verdicts: Sequence[dict[str, Any]]) -> int:
    """Distinct entries in the app's hands; where a fault's own clients have no app, those that arrived."""
    return sum(verdict["handed_entries"] or verdict["received_entries"] for verdict in verdicts)


def _own_files() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
