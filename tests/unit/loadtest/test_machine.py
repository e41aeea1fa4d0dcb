"""A run has the processors that it says it has, and so has everything that it starts."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import os, subprocess, sys
from loadtest import machine
machine.confine(1)
child = [sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"]
print(machine.machine()["cores"], subprocess.run(child, capture_output=True, text=True, check=True).stdout.strip())
machine.confine(64)
print(machine.machine()["cores"])
"""


def test_a_run_is_confined_with_what_it_starts_and_is_never_given_more() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["1", "1", "1"]
