"""A bench report for a person: one row a scenario."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Console
from rich.table import Table

_FAULTS: Final = ("lost", "duplicated", "out_of_order", "unexpected", "corrupted", "refused_but_stored", "wrong_answer")


def show(report: dict[str, Any], console: Console) -> None:
    """Print machine, settings and figures."""
    machine = report["machine"]
    console.print(f"{machine['cores']} cores, {machine['cpu']}, kernel {machine['kernel']}, Python {machine['python']}")
    console.print(f"versions: {_pairs(report['versions'])}")
    console.print(f"policy raised for the run: {_pairs(report['settings'].get('policy', {})) or 'nothing'}")
    console.print(f"PostgreSQL: {_pairs(report['settings'].get('postgres', {})) or 'not known'}")
    table = Table(title="messages per second, latencies in ms (SEND to MAILBOX_BATCH, SEND to SEND_ACK)")
    for heading in (
        "scenario",
        "confirmed",
        "delivered",
        "acked",
        "p50",
        "p99",
        "max",
        "ack p50",
        "ack p99",
        "verdict",
    ):
        table.add_column(heading, justify="left" if heading in ("scenario", "verdict") else "right")
    for scenario in report["scenarios"]:
        latency, send_ack = scenario.get("latency_ms", {}), scenario.get("send_ack_ms", {})
        table.add_row(
            scenario["name"],
            *(_number(scenario.get(f"{what}_per_s")) for what in ("confirmed", "delivered", "acked")),
            *(_number(latency.get(which)) for which in ("p50", "p99", "max")),
            *(_number(send_ack.get(which)) for which in ("p50", "p99")),
            _verdict(scenario),
        )
    console.print(table)
    for pair, ratio in report["ratios"].items():
        console.print(f"{pair}: {ratio:.2f}")
    for scenario in report["scenarios"]:
        if scenario.get("cpu"):
            console.print(f"{scenario['name']}: {_usage(scenario['cpu'])}")
        for fact, value in scenario.get("facts", {}).items():
            console.print(f"{scenario['name']}: {fact} {value}")


def _conditions(machine: dict[str, Any], versions: dict[str, str], settings: dict[str, Any]) -> str:
    """What the figures were measured on."""
    return (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_bytes'] / 2**30:.0f} GiB, kernel "
        f"{machine['kernel']}, Python {machine['python']}, PostgreSQL {versions.get('postgres', 'not known')}, uvloop "
        f"{versions['uvloop']}; load average before the run {machine['load_average'][0]}; {settings['seconds']:g} s "
        f"measured after {settings['warmup_s']:g} s."
    )


def _usage(cpu: dict[str, dict[str, float]]) -> str:
    return ", ".join(
        f"{role} {used['cores']:.2f} cores ({used['cpu_s_per_1000'] * 1_000:.0f} us/message, "
        f"{used['resident_bytes'] / 2**20:.0f} MiB)"
        for role, used in cpu.items()
    )


def _verdict(scenario: dict[str, Any]) -> str:
    if scenario["ok"]:
        return "ok"
    bad = {key: value for key, value in scenario.get("verdict", {}).items() if value and key in _FAULTS}
    others = {key: scenario[key] for key in ("refusals", "disconnects", "problems") if scenario.get(key)}
    return f"FAILED {_pairs({**bad, **others}) or 'not drained'}"


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def markdown(report: dict[str, Any]) -> str:
    """The tables that docs/performance.md holds between its marks, with what they were measured on."""
    machine, settings = report["machine"], report["settings"]
    headings = ("scenario", "confirmed/s", "delivered/s", "acked/s", "p50 ms", "p99 ms", "max ms", "SEND_ACK p50 / p99")
    lines = [
        _conditions(machine, report["versions"], settings),
        "",
        f"| {' | '.join(headings)} | verdict |",
        "|---" * (len(headings) + 1) + "|",
    ]
    for scenario in report["scenarios"]:
        latency, send_ack = scenario.get("latency_ms", {}), scenario.get("send_ack_ms", {})
        cells = [_number(scenario.get(f"{what}_per_s")) for what in ("confirmed", "delivered", "acked")]
        cells += [_number(latency.get(which)) for which in ("p50", "p99", "max")]
        cells.append(f"{_number(send_ack.get('p50'))} / {_number(send_ack.get('p99'))}")
        lines.append(f"| {' | '.join([scenario['name'], *cells, _verdict(scenario)])} |")
    facts = [
        f"- {scenario['name']}: {fact} {value}"
        for scenario in report["scenarios"]
        for fact, value in scenario.get("facts", {}).items()
    ]
    lines += ["", *facts] if facts else []
    lines += ["", "| scenario | role | cores | CPU µs a message | resident MiB |", "|---|---|---|---|---|"]
    lines += [
        f"| {scenario['name']} | {role.replace('_', ' ')} | {used['cores']:.2f} | "
        f"{used['cpu_s_per_1000'] * 1_000:.0f} | {used['resident_bytes'] / 2**20:.0f} |"
        for scenario in report["scenarios"]
        for role, used in scenario.get("cpu", {}).items()
    ]
    if report["ratios"]:
        lines += ["", "| rates as ratios of this run | |", "|---|---|"]
        lines += [f"| {pair} | {ratio:.2f} |" for pair, ratio in report["ratios"].items()]
    return "\n".join(lines)
