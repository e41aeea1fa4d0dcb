"""The command line of the load tests: `python -m loadtest bench --help`."""

from __future__ import annotations

import argparse
import gc
import json
import signal
import sys
from dataclasses import fields
from typing import Final

import uvloop
from rich.console import Console

from loadtest import machine, profile
from loadtest.accounts import RegistrationFailed
from loadtest.arguments import positive, seconds, seconds_or_none, server
from loadtest.bench import FIGURES, SCENARIOS, bench
from loadtest.conditions import busy_before
from loadtest.faults import command as faults
from loadtest.profile import ProfileFailed
from loadtest.report import markdown, show
from loadtest.run import Settings
from loadtest.scenarios.growth import GrowthFailed
from loadtest.scenarios.http_only import HttpFailed
from loadtest.scenarios.pgbench import PgbenchFailed
from loadtest.server import ServerFailed
from loadtest.soak import command as soak
from loadtest.soak.failure import SoakFailed
from loadtest.swarm import SwarmFailed

_FAILURES: Final = (
    ServerFailed,
    SwarmFailed,
    RegistrationFailed,
    HttpFailed,
    PgbenchFailed,
    GrowthFailed,
    SoakFailed,
    ProfileFailed,
)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 0 only if every scenario's verdict is good."""
    parser = argparse.ArgumentParser(prog="python -m loadtest")
    parser.add_argument("--cores", type=positive, default=2, help="processors for everything together, default: 2")
    commands = parser.add_subparsers(dest="command", required=True)
    benching = commands.add_parser("bench", help="throughput and latency on this machine, every run judged")
    benching.add_argument(
        "--scenario", action="append", choices=list(SCENARIOS), help="may come several times; default: cycle"
    )
    benching.add_argument("--figures", action="store_true", help="the scenarios of docs/performance.md, ten minutes")
    own = "default: the scenario's own"
    benching.add_argument("--devices", type=positive, help=own)
    benching.add_argument("--payload", dest="payload_bytes", type=positive, help=f"bytes of one envelope's body; {own}")
    benching.add_argument("--seconds", type=seconds, help=f"measured time, after the warm-up; {own}")
    benching.add_argument("--warmup", dest="warmup_s", type=seconds_or_none, help=f"seconds; {own}")
    benching.add_argument("--rate", dest="rate_per_s", type=positive, help="messages per second of `paced`")
    benching.add_argument("--stored", type=_counts, help="envelopes that lie there in `growth`: 0,1000000,5000000")
    benching.add_argument(
        "--url", type=server, help="a running server; its limits must be raised beforehand (default: a fresh one)"
    )
    benching.add_argument("--quiet-only", action="store_true", help="refuse to start on a machine that is busy")
    form = benching.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    form.add_argument("--markdown", action="store_true", help="the tables of docs/performance.md")
    faults.add_parser(commands)
    soak.add_parser(commands)
    profile.add_parser(commands)
    options = parser.parse_args(arguments)
    machine.confine(options.cores)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started is stopped and removed
    try:
        match options.command:
            case "faults":
                return faults.run_command(options)
            case "soak":
                return soak.run_command(options)
            case "profile":
                return profile.run_command(options)
            case _:
                return _bench(options)
    except _FAILURES as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        print(f"loadtest: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("loadtest: stopped before its end, nothing is judged", file=sys.stderr)
        return 130


def _bench(options: argparse.Namespace) -> int:
    chosen = {
        field.name: value for field in fields(Settings) if (value := getattr(options, field.name, None)) is not None
    }
    if options.quiet_only and (reason := busy_before()):
        print(f"loadtest: the machine is busy: {reason}", file=sys.stderr)
        return 1
    names = [*(FIGURES if options.figures else ()), *(options.scenario or ())] or ["cycle"]
    gc.disable()  # the history is millions of objects without cycles: walking them would only steal the server's cores
    report = uvloop.run(bench(names, chosen, options.url))
    if options.json:
        print(json.dumps(report, separators=(",", ":")))
    elif options.markdown:
        print(markdown(report))
    else:
        console = Console()
        show(report, console if console.is_terminal else Console(width=160))
    return 0 if report["ok"] else 1


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(part) for part in text.split(","))
    if any(count < 0 for count in counts) or list(counts) != sorted(counts):
        raise argparse.ArgumentTypeError("must be rising counts, separated by commas")
    return counts


if __name__ == "__main__":
    sys.exit(main())
