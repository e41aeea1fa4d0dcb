"""The `soak` command's arguments and its table."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from loadtest.arguments import positive


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `soak` to the load tests' commands."""
    parser = commands.add_parser("soak", help="a long run with Locust's users, judged on what only time shows")
    parser.add_argument("--minutes", type=_minutes, default=30.0, help="at least 1, and 5 to say something")
    parser.add_argument("--users", type=positive, default=100)
    parser.add_argument("--workers", type=positive, default=2, help="Locust workers, a process each")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="directory of pictures, CSV and report")
    parser.add_argument("--json", action="store_true", help="the report as one JSON document instead of the table")


def _minutes(text: str) -> float:
    value = float(text)
    if not 1 <= value < math.inf:
        raise argparse.ArgumentTypeError("must be at least 1: a shorter run has no thirds to compare")
    return value


def run_command(options: argparse.Namespace) -> int:
    """Run it and print the report; 0 only if nothing was lost and nothing grew. Raises SoakFailed, ServerFailed."""
    from loadtest.soak.run import SoakSettings, soak  # with it comes what draws, which no other command needs

    settings = SoakSettings(
        minutes=options.minutes, users=options.users, workers=options.workers, directory=options.out.resolve()
    )
    report = uvloop.run(soak(settings))
    if options.json:
        print(json.dumps(report, separators=(",", ":")))
    else:
        console = Console()
        show(report, console if console.is_terminal else Console(width=140))
    return 0 if report["ok"] else 1


def show(report: dict[str, Any], console: Console) -> None:
    """Print what was compared, what disturbed it, and where the pictures are."""
    settings = report["settings"]
    title = f"soak: {settings['users']} users, {settings['workers']} load processes, {settings['minutes']:g} minutes"
    table = Table(title=title)
    for heading in ("what", "before", "after", "bound", ""):
        table.add_column(heading, justify="left" if heading in ("what", "") else "right")
    for check in report["checks"]:
        values = (f"{check['before']:,}", f"{check['after']:,}", check["bound"])
        table.add_row(check["what"], *values, "ok" if check["ok"] else "FAILED")
    console.print(table)
    for role, seconds in report["cpu_s"].items():
        console.print(f"{role}: {seconds:,.1f} s of processor time")
    console.print(f"load processes: {report['load_generator_cores']:.2f} cores")
    for text in (*report["warnings"], *report["conditions"]["disturbed"]):
        console.print(f"WARNING {text}", style="bold red")
    for picture in report["pictures"]:
        console.print(picture)
    console.print("ok" if report["ok"] else "FAILED", style="bold")
