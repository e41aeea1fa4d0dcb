"""A report says the same as a document, a table for the terminal, and tables for the documentation."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from loadtest.bench import ratios
from loadtest.report import markdown, show


def a_report() -> dict[str, Any]:
    used = {"gateway": {"cores": 0.5, "cpu_s_per_1000": 0.066, "resident_bytes": 64 * 2**20}}
    good = {
        "name": "cycle",
        "ok": True,
        "confirmed_per_s": 5_214.8,
        "delivered_per_s": 5_214.8,
        "acked_per_s": 5_200.0,
        "latency_ms": {"p50": 3.5, "p99": 9.0, "max": 12.0},
        "send_ack_ms": {"p50": 3.0, "p99": 8.0, "max": 11.0},
        "cpu": used,
        "verdict": {"lost": 0},
    }
    bad = {
        "name": "idle",
        "ok": False,
        "verdict": {"lost": 3, "duplicated": 0},
        "disconnects": {},
        "facts": {"bytes resident per connection:": 2_918},
    }
    single = {"name": "pgbench-single", "ok": True, "confirmed_per_s": 2_140.4}
    scenarios = [good, bad, single]
    return {
        "machine": {
            "cpu": "a processor",
            "cores": 2,
            "memory_bytes": 2**34,
            "kernel": "6.1",
            "python": "3.11",
            "load_average": [0.1, 0.2, 0.3],
        },
        "versions": {"uvloop": "1", "postgres": "18"},
        "settings": {
            "seconds": 8.0,
            "warmup_s": 3.0,
            "policy": {"submit_rate_per_pair": "0"},
            "postgres": {"fsync": "on"},
        },
        "scenarios": scenarios,
        "ratios": ratios(scenarios),
    }


def test_the_tables_hold_machine_figures_costs_ratios_and_what_went_wrong() -> None:
    text = markdown(a_report())
    assert "2 cores (a processor), 16 GiB" in text
    assert "| cycle | 5,215 | 5,215 | 5,200 | 3.50 | 9.00 | 12.00 | 3.00 / 8.00 | ok |" in text
    assert "| idle | - | - | - | - | - | - | - / - | FAILED lost=3 |" in text
    assert "- idle: bytes resident per connection: 2918" in text
    assert "| cycle | gateway | 0.50 | 66 | 64 |" in text
    assert "| cycle / pgbench-single | 2.44 |" in text


def test_the_terminal_shows_the_same() -> None:
    shown = io.StringIO()
    show(a_report(), Console(file=shown, width=160))
    for part in (
        "5,215",
        "FAILED lost=3",
        "cycle / pgbench-single: 2.44",
        "submit_rate_per_pair=0",
        "fsync=on",
        "66 us/message",
    ):
        assert part in shown.getvalue()


def test_only_rates_of_one_kind_are_compared() -> None:
    rates = [{"name": name, "confirmed_per_s": 10.0} for name in ("cycle", "paced", "db-ceiling", "pgbench-single")]
    assert set(ratios(rates)) == {"cycle / pgbench-single", "db-ceiling / pgbench-single", "cycle / db-ceiling"}
