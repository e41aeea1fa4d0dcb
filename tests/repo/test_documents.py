"""Documents that promise something about the code are held against it."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from pathlib import Path

from loadtest.faults.run import load_faults

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
REQUIREMENTS = ROOT / "docs" / "requirements.md"
TEST_NAME = re.compile(r"`(?:[\w/.]+::)?(test_\w+)`")
TEST_PATH = re.compile(r"`([\w/.]+)::(test_\w+)`")
NOT_YET = re.compile(r"\| not yet: issue \d+ \|$")  # said plainly, with the issue that will hold it


def names_of_tests() -> set[str]:
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                names.add(node.name)
            elif isinstance(node, ast.Assign):  # hypothesis: test_x = Machine.TestCase
                names.update(target.id for target in node.targets if isinstance(target, ast.Name))
            elif isinstance(node, ast.ClassDef):
                names.add(node.name)
    return names


NAMES = names_of_tests()


def requirements(text: str) -> list[str]:
    """The rows of all tables whose last column is "held by"."""
    found, inside = [], False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
        elif line.rstrip(" |").endswith("held by"):
            inside = True
        elif inside and not re.fullmatch(r"[|:\s-]+", line):
            found.append(line)
    return found


def test_every_requirement_names_a_test_that_exists() -> None:
    rows = requirements(REQUIREMENTS.read_text())
    assert len(rows) > 100
    missing = [f"no test: {row}" for row in rows if not TEST_NAME.search(row) and not NOT_YET.search(row)]
    missing += [f"no such test: {name}" for row in rows for name in TEST_NAME.findall(row) if name not in NAMES]
    missing += [
        f"not in that file: {path}::{name}"
        for row in rows
        for path, name in TEST_PATH.findall(row)
        if not (ROOT / path).is_file() or f"def {name}(" not in (ROOT / path).read_text()
    ]
    assert not missing, "\n".join(missing)


def test_every_test_that_a_document_names_exists() -> None:
    missing = [
        f"{path.name}: {name}"
        for path in DOCUMENTS
        for name in TEST_NAME.findall(path.read_text())
        if name not in NAMES
    ]
    assert not missing, "\n".join(missing)


def test_make_targets_that_documents_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))
    for path in DOCUMENTS:
        for target in re.findall(r"(?:`|^|\$ )make ([a-z][\w-]*)", path.read_text(), re.MULTILINE):
            assert target in targets, f"{path.name} says make {target}"


def test_links_to_files_lead_somewhere() -> None:
    link = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
    broken = [
        f"{path.name}: {target}"
        for path in [*DOCUMENTS, *sorted((ROOT / "docs" / "adr").glob("*.md"))]
        for target in link.findall(path.read_text())
        if not (path.parent / target).exists()
    ]
    assert not broken, "\n".join(broken)


def test_decisions_are_numbered_once() -> None:
    numbers = [path.name[:4] for path in sorted((ROOT / "docs" / "adr").glob("*.md"))]
    assert len(numbers) == len(set(numbers))
    assert all(number.isdigit() for number in numbers)


def test_every_fault_run_has_its_paragraph_for_operators_and_every_paragraph_its_run() -> None:
    """A paragraph of "Fault by fault" begins with the names of its runs; `die-at-*` stands for all that begin so."""
    chapter = (ROOT / "docs" / "operations.md").read_text().partition("## Fault by fault\n")[2].partition("\n## ")[0]
    paragraphs = [" ".join(block.split()) for block in chapter.split("\n\n")]
    heads = [
        match[0] for paragraph in paragraphs if (match := re.match(r"(?:\*\*[^*]*(?:\*`[^*]*)*\*\*,? ?)+", paragraph))
    ]
    named = [name for head in heads for name in re.findall(r"`([^`]+)`", head)]
    assert len(named) == len(set(named)), "a fault has two paragraphs"
    runs = list(load_faults())
    without = [run for run in runs if not any(fnmatch(run, name) for name in named)]
    assert not without, f"not in docs/operations.md: {without}"
    idle = [name for name in named if not any(fnmatch(run, name) for run in runs)]
    assert not idle, f"no such fault run: {idle}"


def test_fault_runs_that_requirements_name_exist() -> None:
    rows = re.findall(r"fault runs? ((?:`[^`]+`(?:, )?)+)", REQUIREMENTS.read_text())
    named = [name for row in rows for name in re.findall(r"`([^`:]+)`", row)]
    assert len(named) > 10
    assert not [name for name in named if name not in load_faults()]
