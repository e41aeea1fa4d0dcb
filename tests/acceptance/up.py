"""A real `mailboxd up` for tests that use it from outside."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.command import command_line, environment


@contextmanager
def running_up(
    data_dir: Path, *, settings: Mapping[str, str] | None = None, gateways: int = 1
) -> Iterator[dict[str, Any]]:
    """Run it on free ports for the block, which gets the `--json` report; stopped in good order afterwards."""
    arguments = [
        "up",
        "--json",
        "--data-dir",
        str(data_dir),
        "--port",
        "0",
        "--ops-port",
        "0",
        "--gateways",
        str(gateways),
    ]
    with subprocess.Popen(
        command_line(*arguments), env=environment(settings), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                _, complaints = process.communicate(timeout=60)
                raise AssertionError(f"mailboxd up did not start: {complaints}")
            yield json.loads(line)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=90)
