"""What the README says is so: its example runs as it stands, its links, commands and settings exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.config import known_settings
from tests.support.command import environment, run
from tests.support.up import running_up

TREE = Path(__file__).resolve().parents[2]
README = (TREE / "README.md").read_text()
DOCUMENTS = sorted([TREE / "README.md", *TREE.glob("docs/*.md")])


def block(language: str) -> str:
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL))


def test_the_client_example_runs_as_it_stands(data_dir: Path, tmp_path: Path) -> None:
    with running_up(data_dir) as server:
        example = tmp_path / "example.py"
        example.write_text(block("python").replace("http://127.0.0.1:8080", server.report["url"]))
        done = subprocess.run(
            [sys.executable, str(example)], env=environment(), capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert re.fullmatch(r"accepted at \d{13}", first)
    assert second == "hello"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)(?:#[^)]*)?\)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_every_command_of_the_readme_exists() -> None:
    commands = set(re.findall(r"mailboxd ((?:(?:admin|migrate) )?[a-z-]+(?: [a-z]+)?)", block("sh")))
    commands |= set(re.findall(r"`mailboxd ((?:admin |migrate )?[a-z-]+)`", README))
    assert commands
    for command in commands:
        words = command.split()[: 3 if command.startswith("admin") else 2 if command.startswith("migrate") else 1]
        assert run(*words, "--help").code == 0, command


def test_every_setting_of_the_readme_exists() -> None:
    named = set(re.findall(r"\bMAILBOXD_([A-Z_]+)\b", README)) - {"CONFIG"}
    assert named
    assert {name.lower() for name in named} <= known_settings()


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"\bmake ([a-z-]+)", README)) - {"and"}
    makefile = (TREE / "Makefile").read_text()
    assert {target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)} == set()


def test_deletion_is_promised_as_logical_only() -> None:
    """Seed 000, section 6: no claim of physical erasure, and copies in backups are told."""
    retention = (TREE / "docs" / "retention.md").read_text()
    for document in (README, retention):
        assert re.search(r"\blogical", document)
        assert re.search(r"backups?\b", document)
    everything = " ".join(path.read_text() for path in DOCUMENTS)
    assert not re.search(r"(securely|physically|irrecoverably) (delete|erase|destroy|wipe)", everything, re.IGNORECASE)
