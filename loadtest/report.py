"""A bench report for a person: at a terminal, or as the tables of docs/performance.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from rich.console import Console
from rich.table import Table

_FAULTS: Final = ("lost", "duplicated", "out_of_order", "unexpected", "corrupted", "refused_but_stored", "wrong_answer")
_SERVER_ROLES: Final = ("gateway", "worker", "postgres", "valkey")


def show(report: dict[str, Any], console: Console) -> None:
    """Print machine, settings and figures."""
    machine = report["machine"]
    console.print(f"{machine['cores']} cores, {machine['cpu']}, kernel {machine['kernel']}, Python {machine['python']}")
    console.print(f"load average before the run: {machine['load_average'][0]}")
    console.print(f"versions: {_pairs(report['versions'])}")
    console.print(f"policy raised for the run: {_pairs(report['settings'].get('policy', {})) or 'nothing'}")
    console.print(f"PostgreSQL: {_pairs(report['settings'].get('postgres', {})) or 'not known'}")
    table = Table(title="messages per second, latencies in ms (SEND to MAILBOX_BATCH, SEND to SEND_ACK)")
    headings = ("scenario", "confirmed", "delivered", "acked", "p50", "p99", "max", "ack p50", "ack p99", "others")
    for heading in (*headings, "verdict"):
        table.add_column(heading, justify="left" if heading in ("scenario", "verdict") else "right")
    for scenario in report["scenarios"]:
        latency, send_ack = scenario.get("latency_ms", {}), scenario.get("send_ack_ms", {})
        table.add_row(
            scenario["name"],
            *(_number(scenario.get(f"{what}_per_s")) for what in ("confirmed", "delivered", "acked")),
            *(_number(latency.get(which)) for which in ("p50", "p99", "max")),
            *(_number(send_ack.get(which)) for which in ("p50", "p99")),
            _others(scenario),
            _verdict(scenario),
        )
    console.print(table)
    for pair, ratio in report["ratios"].items():
        console.print(f"{pair}: {ratio:.2f}")
    for goal in report["goals"]:
        console.print(f"{goal['scenario']}: {goal['what']} {goal['measured']:,g}, {_met(goal)} {goal['bound']}")
    for scenario in report["scenarios"]:
        if scenario.get("cpu"):
            console.print(f"{scenario['name']}: {_usage(scenario['cpu'])}")
        for fact, value in scenario.get("facts", {}).items():
            console.print(f"{scenario['name']}: {fact} {value}")
    for line in peers_form(report["scenarios"]):
        console.print(line, markup=False)
    for scenario in report["scenarios"]:
        for warning in scenario.get("warnings", ()):
            console.print(f"WARNING {scenario['name']}: {warning}", style="bold red")


def markdown(report: dict[str, Any]) -> str:
    """The tables that docs/performance.md holds between its marks, with what they were measured on."""
    return "\n".join(_markdown(report))


def _markdown(report: dict[str, Any]) -> Iterator[str]:
    scenarios = report["scenarios"]
    yield _conditions(report["machine"], report["versions"])
    yield ""
    headings = ("confirmed/s", "delivered/s", "acked/s", "p50 ms", "p99 ms", "max ms", "SEND_ACK p50 / p99")
    yield from _table(
        ("scenario", *headings, "others, steal", "verdict"),
        (
            (
                scenario["name"],
                *(_number(scenario.get(f"{what}_per_s")) for what in ("confirmed", "delivered", "acked")),
                *(_number(scenario.get("latency_ms", {}).get(which)) for which in ("p50", "p99", "max")),
                " / ".join(_number(scenario.get("send_ack_ms", {}).get(which)) for which in ("p50", "p99")),
                _others(scenario),
                _verdict(scenario),
            )
            for scenario in scenarios
        ),
    )
    told = [f"- {s['name']}: {fact} {value}" for s in scenarios for fact, value in s.get("facts", {}).items()]
    told += [f"- {s['name']}: **{warning}**" for s in scenarios for warning in s.get("warnings", ())]
    if told:
        yield ""
        yield from told
    if report["goals"]:
        yield ""
        yield from _table(
            ("scenario", "goal", "bound", "measured", ""),
            ((g["scenario"], g["what"], g["bound"], f"{g['measured']:,g}", _met(g)) for g in report["goals"]),
        )
    if report["ratios"]:
        yield ""
        yield from _table(
            ("rates as ratios of this run", ""), ((pair, f"{ratio:.2f}") for pair, ratio in report["ratios"].items())
        )
    yield ""
    yield from _table(
        ("CPU µs a message", *(role.replace("_", " ") for role in (*_SERVER_ROLES, "load_generator")), "MiB, all"),
        (
            (
                scenario["name"],
                *(_cpu_cell(scenario["cpu"].get(role)) for role in (*_SERVER_ROLES, "load_generator")),
                f"{sum(used['resident_bytes'] for used in scenario['cpu'].values()) / 2**20:.0f}",
            )
            for scenario in scenarios
            if scenario.get("cpu")
        ),
    )
    form = list(peers_form(scenarios))
    if form:
        yield ""
        yield from form


def peers_form(scenarios: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The figures in the form of the table of peers: one row for all runs of `cycle`, nothing without one."""
    scenarios = list(scenarios)
    cycles = [one for one in scenarios if one["name"] == "cycle" and one.get("cpu")]
    if not cycles:
        return
    server = [sum(one["cpu"][role]["cores"] for role in _SERVER_ROLES if role in one["cpu"]) for one in cycles]
    generator = [one["cpu"]["load_generator"]["cores"] for one in cycles]
    drains = [f"{one['drain_s']:.2f}" for one in scenarios if one["name"] == "backlog-one"]
    idle = [f"{one['resident_bytes_per_connection'] / 1_000:.1f}" for one in scenarios if one["name"] == "idle"]
    yield from _table(
        (
            "peer", "confirmed/s", "p50 / p99", "server CPU / load generator CPU, cores",
            "on disk before the confirm?", "drain of 10,000, s", "KB per idle connection",
        ),
        [
            (
                f"mailboxd ({cycles[0]['devices']} devices, {cycles[0]['payload']} bytes)",
                " / ".join(f"{one['confirmed_per_s']:,.0f}" for one in cycles),
                ", ".join(f"{one['latency_ms']['p50']:.0f} / {one['latency_ms']['p99']:.0f}" for one in cycles),
                ", ".join(f"{cores:.2f} / {own:.2f}" for cores, own in zip(server, generator, strict=True)),
                "yes (group commit)",
                " / ".join(drains) or "-",
                " / ".join(idle) or "-",
            )
        ],
    )  # fmt: skip


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    headings = list(headings)
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _conditions(machine: dict[str, Any], versions: dict[str, str]) -> str:
    """What the figures were measured on."""
    return (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_bytes'] / 2**30:.0f} GiB, kernel "
        f"{machine['kernel']}, Python {machine['python']}, PostgreSQL {versions.get('postgres', 'not known')}, uvloop "
        f"{versions['uvloop']}; load average before the run {machine['load_average'][0]}."
    )


def _cpu_cell(used: dict[str, float] | None) -> str:
    if used is None:
        return "-"
    return f"{used['cpu_s_per_1000'] * 1_000:.0f} ({used['cores']:.2f} cores)"


def _usage(cpu: dict[str, dict[str, float]]) -> str:
    return ", ".join(
        f"{role} {used['cores']:.2f} cores ({used['cpu_s_per_1000'] * 1_000:.0f} us/message, "
        f"{used['resident_bytes'] / 2**20:.0f} MiB)"
        for role, used in cpu.items()
    )


def _others(scenario: dict[str, Any]) -> str:
    """Cores that other processes used and that the host took."""
    conditions = scenario.get("conditions")
    if not conditions:
        return "-"
    others = conditions["others_cores"]
    return f"{'?' if others is None else f'{others:.2f}'}, {conditions['steal_cores']:.2f}"


def _met(goal: dict[str, Any]) -> str:
    if goal["met"]:
        return "met"
    return "MISSED, and it must hold" if goal["must"] else "not met"


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
