"""What every file of the project keeps to."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("gateway", "loadtest", "mailbox_client", "mailboxd", "migrations", "protocol", "runtime", "store", "worker")
THIS = Path(__file__).relative_to(ROOT)


def project_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [Path(name) for name in listed if (ROOT / name).is_file()]


FILES = project_files()
TEXTS = [
    path for path in FILES if path.suffix not in {".lock", ".png", ".bin"} and path != THIS and path.name != "LICENSE"
]
PYTHON = [path for path in FILES if path.suffix == ".py"]


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(), str(path))


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("a path of one machine", r"(?<![\w.])/(work|root|home/\w+|Users/\w+)/"),
        ("an unfinished place", r"\b(TODO|FIXME|XXX|HACK)\b"),
        ("a conflict marker", r"^(<<<<<<<|>>>>>>>) "),
    ],
)
def test_no_file_holds(what: str, pattern: str) -> None:
    expression = re.compile(pattern, re.MULTILINE)
    found = [
        f"{path}: {match[0]}"
        for path in TEXTS
        for match in expression.finditer((ROOT / path).read_text(errors="replace"))
    ]
    assert found == [], f"{what}: {found}"


def test_no_test_sleeps() -> None:
    """Waiting is `tests.support.waiting.eventually` or the fake clock; `asyncio.sleep(0)` only gives others a turn."""
    allowed = {Path("tests/support/waiting.py"), Path("tests/support/clock.py")}
    found = [
        f"{path}:{node.lineno}"
        for path in PYTHON
        if path.parts[0] == "tests" and path not in allowed
        for name, node in calls(path)
        if name in ("time.sleep", "asyncio.sleep") and not (node.args and ast.unparse(node.args[0]) == "0")
    ]
    assert not found, "\n".join(found)


def functions_of(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def called_in(function: ast.AST) -> set[str]:
    """The last part of every call's name."""
    names = (ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call))
    return {name.rpartition(".")[2] for name in names}


def test_every_test_asserts_something() -> None:
    """By itself or through a function of tests/ that does."""
    functions = [(path, function) for path in PYTHON if path.parts[0] == "tests" for function in functions_of(path)]
    asserting = {"fail", "raises", "run_state_machine_as_test", "validate"}
    asserting |= {
        function.name
        for _, function in functions
        if any(isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(function))
    }
    while more := {function.name for _, function in functions if called_in(function) & asserting} - asserting:
        asserting |= more
    found = [
        f"{path}:{function.lineno} {function.name}"
        for path, function in functions
        if path.name.startswith("test_") and function.name.startswith("test_") and function.name not in asserting
    ]
    assert not found, "\n".join(found)


def test_the_protocol_has_no_await_no_clock_no_socket_no_chance() -> None:
    forbidden = {
        "asyncio",
        "time",
        "datetime",
        "socket",
        "ssl",
        "random",
        "secrets",
        "os",
        "threading",
        "logging",
        "structlog",
    }
    found = []
    for path in PYTHON:
        if path.parts[0] != "protocol" or "vectors" in path.parts:
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.AsyncFunctionDef | ast.Await):
                found.append(f"{path}:{node.lineno} awaits")
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{path}:{node.lineno} {name}" for name in names if name.partition(".")[0] in forbidden]
    assert not found, "\n".join(found)


def test_fault_points_that_tests_arm_exist_and_only_tests_arm_them() -> None:
    marked = {
        ast.literal_eval(node.args[0])
        for path in PYTHON
        if path.parts[0] in ROOMS
        for name, node in calls(path)
        if name.endswith(("faultpoints.reach", "faultpoints.reach_now")) and isinstance(node.args[0], ast.Constant)
    }
    unknown = []
    for path in PYTHON:
        for name, node in calls(path):
            if not name.endswith("faultpoints.armed"):
                continue
            assert path.parts[0] == "tests", f"{path} arms a fault point"
            if path.parts[:3] == ("tests", "unit", "runtime") or not isinstance(node.args[0], ast.Constant):
                continue
            if node.args[0].value not in marked:
                unknown.append(f"{path}:{node.lineno} {node.args[0].value}")
    assert not unknown, "\n".join(unknown)


def test_every_room_is_held_by_the_import_contracts() -> None:
    packages = {path.parts[0] for path in PYTHON if len(path.parts) > 1 and path.parts[0] != "tests"}
    assert packages - {"docs", "examples"} == set(ROOMS)


def test_docstrings_of_modules_say_what_they_are_for() -> None:
    empty = [str(path) for path in PYTHON if path.parts[0] in ROOMS and not ast.get_docstring(tree(path))]
    assert not empty, "\n".join(empty)
