"""What the demo shows while it runs: live on a terminal, plain lines elsewhere, JSON lines on demand."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from time import perf_counter
from types import TracebackType
from typing import Any, Final, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

COUNTERS: Final = ("sent", "delivered", "opened", "acked")


class Display(Protocol):
    """Told what happens; shows it in its way."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def say(self, text: str) -> None:
        """One step of the story."""

    def expect(self, total: int) -> None:
        """So many envelopes will go their way."""

    def count(self, counter: str, value: int) -> None:
        """A counter of COUNTERS stands at `value` now."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """The end: the figures, and `ok`."""


def choose_display(*, as_json: bool) -> Display:
    """The display for where standard output goes."""
    if as_json:
        return JsonDisplay()
    console = Console()
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


class PlainDisplay:
    """Steps as lines; counters are not shown, the table at the end has them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def say(self, text: str) -> None:
        self._console.print(
            f"[{perf_counter() - self._started:6.2f} s] {text}", markup=False, highlight=False, soft_wrap=True
        )

    def expect(self, total: int) -> None:
        pass

    def count(self, counter: str, value: int) -> None:
        pass

    def finish(self, result: Mapping[str, Any]) -> None:
        table = Table(title="demo")
        table.add_column("what")
        table.add_column("figure", justify="right")
        for key, value in result.items():
            if isinstance(value, Mapping):
                for part, figure in value.items():
                    table.add_row(f"{key} {part}", _figure(figure))
            elif key not in ("ok", "problem"):
                table.add_row(key, _figure(value))
        self._console.print(table)
        if result["ok"]:
            self._console.print("Every envelope arrived once, opened, and left both mailboxes empty.", style="green")
        else:
            self._console.print(f"The demo failed: {result['problem']}", style="red", markup=False)


class LiveDisplay(PlainDisplay):
    """The same with a bar for each counter below the lines."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._progress = Progress(
            TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), console=console
        )
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def expect(self, total: int) -> None:
        self._bars = {counter: self._progress.add_task(counter, total=total) for counter in COUNTERS}

    def count(self, counter: str, value: int) -> None:
        self._progress.update(self._bars[counter], completed=value)

    def finish(self, result: Mapping[str, Any]) -> None:
        self._progress.stop()
        super().finish(result)


class JsonDisplay:
    """One JSON object a line; the last one is the result."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def say(self, text: str) -> None:
        self._line({"step": text})

    def expect(self, total: int) -> None:
        self._line({"envelopes": total})

    def count(self, counter: str, value: int) -> None:
        pass

    def finish(self, result: Mapping[str, Any]) -> None:
        self._line(result)

    def _line(self, value: Mapping[str, Any]) -> None:
        print(json.dumps(value, separators=(",", ":")), file=sys.stdout, flush=True)


def _figure(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
