"""A report says the same as a document, a table for the terminal, and tables for the documentation."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from loadtest.bench import ratios
from loadtest.goals import judge
from loadtest.report import markdown, peers_form, show


def a_report() -> dict[str, Any]:
    used = {
        "gateway": {"cores": 0.5, "cpu_s_per_1000": 0.066, "resident_bytes": 64 * 2**20},
        "postgres": {"cores": 0.4, "cpu_s_per_1000": 0.048, "resident_bytes": 400 * 2**20},
        "load_generator": {"cores": 0.9, "cpu_s_per_1000": 0.02, "resident_bytes": 100 * 2**20},
    }
    good = {
        "name": "cycle",
        "ok": True,
        "devices": 200,
        "payload": 1_024,
        "conditions": {"others_cores": 0.02, "steal_cores": 0.3, "disturbed": ["the host took 0.30 cores"]},
        "warnings": ["the host took 0.30 cores"],
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
        "conditions": {"others_cores": None, "steal_cores": 0.0, "disturbed": []},
        "resident_bytes_per_connection": 2_918,
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
            "policy": {"submit_rate_per_pair": "0"},
            "postgres": {"fsync": "on"},
        },
        "scenarios": scenarios,
        "ratios": ratios(scenarios),
        "goals": judge(scenarios, ratios(scenarios)),
    }


def test_the_tables_hold_machine_figures_costs_ratios_and_what_went_wrong() -> None:
    text = markdown(a_report())
    assert "2 cores (a processor), 16 GiB" in text
    assert "| cycle | 5,215 | 5,215 | 5,200 | 3.50 | 9.00 | 12.00 | 3.00 / 8.00 | 0.02, 0.30 | ok |" in text
    assert "| idle | - | - | - | - | - | - | - / - | ?, 0.00 | FAILED lost=3 |" in text
    assert "- cycle: **the host took 0.30 cores**" in text
    assert "| cycle | confirmed/s | ≥ 15000 | 5,214.8 | not met |" in text
    assert "| idle | bytes resident a connection | ≤ 10240 | 2,918 | met |" in text
    assert "- idle: bytes resident per connection: 2918" in text
    assert "| cycle | 66 (0.50 cores) | - | 48 (0.40 cores) | - | 20 (0.90 cores) | 564 |" in text
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
        "WARNING cycle: the host took 0.30 cores",
        "idle: bytes resident a connection 2,918, met",
    ):
        assert part in shown.getvalue()


def test_only_rates_of_one_kind_are_compared() -> None:
    rates = [{"name": name, "confirmed_per_s": 10.0} for name in ("cycle", "paced", "db-ceiling", "pgbench-single")]
    assert set(ratios(rates)) == {"cycle / pgbench-single", "db-ceiling / pgbench-single", "cycle / db-ceiling"}
    echo = [*rates, {"name": "cycle-echo", "confirmed_per_s": 6.0}]
    assert ratios(echo)["cycle-echo / cycle"] == 0.6


def test_two_runs_and_what_peers_are_measured_by_make_one_row_in_their_form() -> None:
    report = a_report()
    first, idle = report["scenarios"][:2]
    second = {**first, "confirmed_per_s": 6_000.0}
    rows = list(peers_form([first, second, idle, {"name": "backlog-one", "drain_s": 0.412}]))
    assert rows[-1] == (
        "| mailboxd (200 devices, 1024 bytes) | 5,215 / 6,000 | 4 / 9, 4 / 9 | 0.90 / 0.90, 0.90 / 0.90 "
        "| yes (group commit) | 0.41 | 2.9 |"
    )
    assert list(peers_form([idle])) == []
