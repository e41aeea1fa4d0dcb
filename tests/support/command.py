"""Runs the real `mailboxd` command as a person would, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

TREE = Path(__file__).resolve().parents[2]


class Finished(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document that it printed."""
        return json.loads(self.out)


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mailboxd", *arguments]


def environment(settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without any setting of mailboxd but `settings`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAILBOXD_")}
    return {**kept, "PYTHONPATH": str(TREE), **(settings or {})}


def run(*arguments: str, settings: Mapping[str, str] | None = None, cwd: Path | None = None) -> Finished:
    """Run one command to its end, which a busy machine may put off."""
    done = subprocess.run(
        command_line(*arguments),
        env=environment(settings),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)
