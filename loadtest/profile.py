"""`python -m loadtest profile`: where the time of a message goes, in the gateway and in PostgreSQL.

`cycle` runs against a fresh server whose PostgreSQL has pg_stat_statements loaded, for this run alone. py-spy looks
into the gateway from outside, so what is profiled is the process as it is; its sampling costs a part of the rate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import asyncpg
import uvloop

from loadtest.arguments import positive, seconds
from loadtest.run import Run, Settings
from loadtest.scenarios.cycle import cycle
from loadtest.server import fresh_server
from loadtest.stored_mail import superuser

SAMPLES_A_SECOND: Final = 200
TOP: Final = 25
QUERY_CHARS: Final = 160
_PRELOADED: Final = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "all"}


class ProfileFailed(Exception):
    """The profiler could not look; the message says why."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `profile` to the load tests' commands."""
    parser = commands.add_parser("profile", help="flame graph of the gateway and PostgreSQL's dearest statements")
    parser.add_argument("--devices", type=positive, default=200)
    parser.add_argument("--seconds", type=seconds, default=20.0, help="half for the picture, half for the table")
    parser.add_argument("--out", type=Path, default=Path("build/profile"))


def run_command(options: argparse.Namespace) -> int:
    """Write the files and print where they are; 0 only if the run itself was clean. Raises ProfileFailed."""
    directory = options.out.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    ok, files = uvloop.run(profile(directory, Settings(devices=options.devices, seconds=options.seconds)))
    for file in files:
        print(file)
    return 0 if ok else 1


async def profile(directory: Path, settings: Settings) -> tuple[bool, list[Path]]:
    """Run `cycle` under both profilers; whether it was clean, and the files written."""
    flame, folded = directory / "gateway.svg", directory / "gateway.folded"
    async with fresh_server(postgres_settings=_PRELOADED) as server:
        if server.postgres_dsn is None:
            raise ProfileFailed("the server does not say where its database is")
        connection = await asyncpg.connect(superuser(server.postgres_dsn))
        try:
            await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            running = asyncio.create_task(cycle(Run(server, settings)), name="cycle")
            try:
                await _until_traffic(connection, running)
                await connection.execute("SELECT pg_stat_statements_reset()")
                (gateway,) = server.pids["gateway"]
                half = max(1, round(settings.seconds / 2) - 1)
                await _py_spy(gateway, half, "flamegraph", flame)
                await _py_spy(gateway, half, "raw", folded)
                statements = await connection.fetch(_STATEMENTS, TOP)
                result = await running
            finally:
                running.cancel()
                await asyncio.wait((running,))
        finally:
            await connection.close()
    queries, functions, figures = directory / "queries.md", directory / "functions.md", directory / "cycle.json"
    queries.write_text(statements_table(statements))
    functions.write_text(functions_table(folded.read_text().splitlines()))
    figures.write_text(json.dumps(result, indent=1))
    return bool(result["ok"]), [flame, folded, functions, queries, figures]


def functions_table(folded: Iterable[str]) -> str:
    """The functions in which the process was found most often, from py-spy's folded stacks."""
    own: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for line in folded:
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        own[frames[-1]] += int(count)
        for frame in set(frames):
            within[frame] += int(count)
    total = sum(own.values()) or 1
    lines = ["| function | itself % | with what it calls % |", "|---|---|---|"]
    lines += [
        f"| {frame} | {count / total * 100:.1f} | {within[frame] / total * 100:.1f} |"
        for frame, count in own.most_common(TOP)
    ]
    return "\n".join(lines) + "\n"


def statements_table(statements: Sequence[Any]) -> str:
    """PostgreSQL's dearest statements, those inside of functions too (their time is also in the function's call)."""
    lines = ["| ms | % of top level | calls | ms a call | rows | WAL KiB | level | statement |", "|---" * 8 + "|"]
    total = sum(row["ms"] for row in statements if row["toplevel"]) or 1.0
    for row in statements:
        text = " ".join(row["query"].split()).replace("|", "\\|")[:QUERY_CHARS]
        level = "top" if row["toplevel"] else "inside"
        lines.append(
            f"| {row['ms']:.0f} | {row['ms'] / total * 100:.1f} | {row['calls']} | {row['ms'] / row['calls']:.3f} "
            f"| {row['rows']} | {row['wal_bytes'] / 1024:.0f} | {level} | `{text}` |"
        )
    return "\n".join(lines) + "\n"


async def _until_traffic(connection: asyncpg.Connection[Any], running: asyncio.Task[dict[str, Any]]) -> None:
    """Return once the warm-up's traffic flows, or raise what ended the run."""
    while not await connection.fetchval("SELECT EXISTS (SELECT FROM envelopes)"):
        if running.done():
            running.result()
            raise ProfileFailed("the run ended before it began")
        await asyncio.sleep(0.2)


async def _py_spy(pid: int, seconds: int, form: str, output: Path) -> None:
    output.unlink(missing_ok=True)
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("py-spy")), "record", "--pid", str(pid), "--duration", str(seconds),
        "--rate", str(SAMPLES_A_SECOND), "--format", form, "--output", str(output), "--nonblocking",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    said, _ = await process.communicate()
    if process.returncode or not output.exists():
        raise ProfileFailed(
            "py-spy could not look into the gateway (it needs the right to trace: root, kernel.yama.ptrace_scope=0 or "
            f"a container's SYS_PTRACE): {said.decode(errors='replace')[-1_000:].strip()}"
        )


_STATEMENTS: Final = """
SELECT total_exec_time AS ms, calls, rows, wal_bytes, toplevel, query FROM pg_stat_statements
 WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
 ORDER BY total_exec_time DESC LIMIT $1
"""
