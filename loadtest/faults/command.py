"""`python -m loadtest faults`: the command line of the fault kit."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from rich.console import Console

from loadtest.arguments import positive, server
from loadtest.faults.report import line, markdown, show
from loadtest.faults.run import Options, UnknownFault, load_faults, run_faults
from loadtest.faults.world import Given, WorldFailed
from mailbox_client.errors import NoAnswer


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The `faults` command and its options."""
    parser = commands.add_parser("faults", help="break real processes under traffic, and judge what became of it")
    parser.add_argument("--short", action="store_true", help="the selection of `make test`, about two minutes")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these faults")
    parser.add_argument("--seed", type=int, help="repeat a run (what it printed)")
    parser.add_argument("--messages", type=positive, help="accepted a fault, instead of its own number")
    parser.add_argument("--worlds", type=positive, default=4, help="run so many beside each other (default 4)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="copy the notes and logs of a broken run there")
    parser.add_argument("--list", action="store_true", help="name the faults and end")
    parser.add_argument("--postgres-dsn", help="an empty database of yours instead of the kit's PostgreSQL")
    parser.add_argument("--redis-url", help="a Redis of yours instead of the kit's Valkey")
    parser.add_argument(
        "--url", type=server, action="append", default=[], help="a gateway of yours; may come several times"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON document at the end instead of the table")
    form.add_argument("--markdown", action="store_true", help="the table of docs/faults.md")


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """One is enough to tell: the others are its consequences or say the same."""
    one = failures.exceptions[0]
    return _first(one) if isinstance(one, BaseExceptionGroup) else one


def run_command(options: argparse.Namespace) -> int:
    """0 only if every promise was kept. Each fault is told as it ends, on stderr."""
    if options.list:
        for one in load_faults().values():
            print(f"{one.name}: {one.about}")
        return 0
    chosen = Options(
        short=options.short,
        only=tuple(options.only),
        seed=options.seed,
        messages=options.messages,
        keep=options.keep,
        worlds=options.worlds if not (options.postgres_dsn or options.url) else 1,
        given=Given(options.postgres_dsn, options.redis_url, tuple(options.url)),
    )
    try:
        report = asyncio.run(run_faults(chosen, lambda result: print(line(result), file=sys.stderr, flush=True)))
    except UnknownFault as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 2
    except ExceptionGroup as failures:
        failed, unexpected = failures.split((WorldFailed, NoAnswer))
        if failed is None or unexpected is not None:
            raise
        print(f"loadtest: {_first(failed)}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(report, separators=(",", ":")))
    elif options.markdown:
        print(markdown(report))
    else:
        console = Console()
        show(report, console if console.is_terminal else Console(width=180))
    return 0 if report["ok"] else 1
