"""The environment that `make` builds: made once, made again where it cannot be right, and what is missing is named."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Stands in for the interpreter: agrees to everything, writes down what it was asked, puts itself into what it makes.
PYTHON = """#!/bin/sh
echo "$*" >>"$ASKED"
case "$*" in
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit "${VENV_ENDS_WITH:-0}" ;;
  *ensurepip*) exit "${ENSUREPIP_ENDS_WITH:-0}" ;;
  *version_info*) exit "${VERSION_ENDS_WITH:-0}" ;;
esac
"""


class Clone:
    def __init__(self, path: Path, scratch: Path) -> None:
        self.path = path
        self._python = scratch / "python"
        self._asked = scratch / "asked"
        path.mkdir()
        for name in ("Makefile", "pyproject.toml", "requirements.lock", "requirements-dev.lock"):
            shutil.copy(ROOT / name, path)
        self._python.write_text(PYTHON)
        self._python.chmod(0o755)

    def make(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", f"PYTHON={self._python}", "run", *arguments],
            cwd=self.path,
            env=os.environ | {"ASKED": str(self._asked)} | environ,
            capture_output=True,
            text=True,
            timeout=30,
        )

    def environments_made(self) -> int:
        return self._asked.read_text().count("-m venv")

    def installations(self) -> int:
        return self._asked.read_text().count("pip install") // 2  # the lock, then the project itself


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return Clone(tmp_path / "a clone", scratch)


def test_a_second_call_changes_nothing(clone: Clone) -> None:
    assert clone.make().returncode == 0
    assert clone.make().returncode == 0
    assert (clone.environments_made(), clone.installations()) == (1, 1)


def test_a_clone_that_was_moved_gets_a_new_environment(clone: Clone) -> None:
    assert clone.make().returncode == 0
    clone.path = clone.path.rename(clone.path.with_name("moved"))
    assert clone.make().returncode == 0
    assert clone.make().returncode == 0
    assert (clone.environments_made(), clone.installations()) == (2, 2)


def test_an_environment_that_was_left_half_made_is_made_again(clone: Clone) -> None:
    assert clone.make(VENV_ENDS_WITH="1").returncode != 0
    assert (clone.path / ".venv/bin/python").exists()
    assert clone.make().returncode == 0
    assert (clone.environments_made(), clone.installations()) == (2, 1)


def test_where_nothing_can_be_written_nothing_is_tried(clone: Clone) -> None:
    """The lock comes first: without it an installation beside another one would damage both."""
    (clone.path / ".venv.lock").mkdir()
    assert clone.make().returncode != 0
    assert not (clone.path / ".venv").exists()


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ({"ENSUREPIP_ENDS_WITH": "1"}, "apt-get install python3-venv"),
        ({"VERSION_ENDS_WITH": "1"}, "Python 3.11 or newer"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_made(clone: Clone, missing: dict[str, str], told: str) -> None:
    done = clone.make(**missing)
    assert done.returncode != 0
    assert told in done.stderr
    assert not (clone.path / ".venv").exists()


@pytest.mark.parametrize(("program", "package"), [("git", "git"), ("python3", "python3")])
def test_a_missing_program_is_named_with_its_package(clone: Clone, tmp_path: Path, program: str, package: str) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in {"bash", "sh", "git", "make", "python3", "flock", "cat", "rm", "mkdir", "cp", "touch"} - {program}:
        found = shutil.which(name)
        assert found is not None, name
        (programs / name).symlink_to(found)
    done = clone.make("PYTHON=python3", PATH=str(programs))
    assert done.returncode != 0
    assert f"{program} is missing: apt-get install {package}" in done.stderr
