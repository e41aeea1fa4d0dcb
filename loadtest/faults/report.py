"""How results are shown: a line a fault as it ends, and the table of docs/faults.md."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Console
from rich.table import Table

_COLUMNS: Final = (
    ("accepted", "accepted"),
    ("delivered", "delivered"),
    ("opened_once", "opened once"),
    ("lost", "lost"),
    ("duplicated", "duplicated"),
    ("out_of_order", "out of order"),
    ("quota_breaches", "quota breaches"),
    ("recovered_s", "recovered in s"),
)


def line(result: dict[str, Any]) -> str:
    """One fault in a line, with what is wrong below it."""
    if "skipped" in result:
        return f"{result['name']}: skipped, {result['skipped']}"
    numbers = ", ".join(f"{heading} {result[key]}" for key, heading in _COLUMNS if result.get(key) is not None)
    text = f"{result['name']}: {'ok' if result['ok'] else 'BROKEN'}; {numbers}"
    if (seed := result.get("seed")) is not None:
        text += f", seed {seed}, {result['seconds']:.0f} s"
    for problem in result.get("problems", ()):
        text += f"\n    {problem}"
    for example in result.get("examples", ()):
        text += f"\n    {example}"
    return text


def show(report: dict[str, Any], console: Console) -> None:
    """The table for a person."""
    table = Table(title=f"faults, seed {report['seed']}")
    table.add_column("fault")
    for _, heading in _COLUMNS:
        table.add_column(heading, justify="right")
    table.add_column("handed again")
    table.add_column("verdict")
    for result in report["faults"]:
        cells = [_cell(result.get(key)) for key, _ in _COLUMNS]
        table.add_row(result["name"], *cells, _again(result), _verdict(result))
    total = report["total"]
    table.add_row("all", *(_cell(total.get(key)) for key, _ in _COLUMNS), "", "ok" if report["ok"] else "BROKEN")
    console.print(table)
    if not report["ok"]:
        broken = [result["name"] for result in report["faults"] if not result["ok"]]
        console.print(f"Again: python -m loadtest faults --seed {report['seed']} --only {' '.join(broken)}")


def markdown(report: dict[str, Any]) -> str:
    """The table that docs/faults.md holds between its marks."""
    computer = report["machine"]
    headings = ["fault", *(heading for _, heading in _COLUMNS), "handed again", "verdict"]
    lines = [
        (
            f"Seed {report['seed']}, {report['total']['accepted']:,} messages accepted; {computer['cores']} cores "
            f"({computer['cpu']}), kernel {computer['kernel']}, Python {computer['python']}."
        ),
        "",
        f"| {' | '.join(headings)} |",
        "|---" * len(headings) + "|",
    ]
    for result in report["faults"]:
        cells = [_cell(result.get(key)) for key, _ in _COLUMNS]
        lines.append(f"| {' | '.join([result['name'], *cells, _again(result), _verdict(result)])} |")
    return "\n".join(lines)


def _verdict(result: dict[str, Any]) -> str:
    if "skipped" in result:
        return "skipped"
    return "ok" if result["ok"] else "BROKEN"


def _again(result: dict[str, Any]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in result.get("handed_again", {}).items())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
