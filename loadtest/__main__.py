"""The command line of the load tests: `python -m loadtest bench --help`."""

from __future__ import annotations

import argparse
import gc
import json
import sys

import uvloop
from rich.console import Console

from loadtest.accounts import RegistrationFailed
from loadtest.bench import SCENARIOS, bench
from loadtest.report import markdown, show
from loadtest.run import Settings
from loadtest.scenarios.http_only import HttpFailed
from loadtest.scenarios.pgbench import PgbenchFailed
from loadtest.server import ServerFailed
from loadtest.swarm import SwarmFailed


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 0 only if every scenario's verdict is good."""
    parser = argparse.ArgumentParser(prog="python -m loadtest")
    commands = parser.add_subparsers(dest="command", required=True)
    benching = commands.add_parser("bench", help="throughput and latency on this machine, every run judged")
    benching.add_argument(
        "--scenario", action="append", choices=list(SCENARIOS), help="may come several times; default: cycle"
    )
    benching.add_argument("--devices", type=_positive, default=200)
    benching.add_argument("--payload", type=_positive, default=1024, help="bytes of one envelope's body")
    benching.add_argument("--seconds", type=float, default=8.0, help="measured time, after the warm-up")
    benching.add_argument("--warmup", type=float, default=3.0, help="seconds")
    benching.add_argument("--rate", type=_positive, default=500, help="messages per second of `paced`")
    benching.add_argument("--url", help="a running server; its limits must be raised beforehand (default: a fresh one)")
    form = benching.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    form.add_argument("--markdown", action="store_true", help="the tables of docs/performance.md")
    options = parser.parse_args(arguments)
    settings = Settings(
        devices=options.devices,
        payload_bytes=options.payload,
        seconds=options.seconds,
        warmup_s=options.warmup,
        rate_per_s=options.rate,
    )
    gc.disable()  # the history is millions of objects without cycles: walking them would only steal the server's cores
    try:
        report = uvloop.run(bench(options.scenario or ["cycle"], settings, options.url))
    except (ServerFailed, SwarmFailed, RegistrationFailed, HttpFailed, PgbenchFailed) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(report, separators=(",", ":")))
    elif options.markdown:
        print(markdown(report))
    else:
        console = Console()
        show(report, console if console.is_terminal else Console(width=160))
    return 0 if report["ok"] else 1


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
