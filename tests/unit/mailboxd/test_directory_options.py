"""An option that names a directory and is empty, as of a variable that is not set, is a mistake and not `.`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mailboxd.cli import main
from mailboxd.terminal import EXIT_USAGE

COMMANDS = [
    ("up",),
    ("demo",),
    ("gateway",),
    ("worker",),
    ("init",),
    ("config",),
    ("doctor",),
    ("send", "AAAAAAAAAAAAAAAAAAAAAQ", "text"),
    ("listen",),
    ("migrate", "status"),
    ("admin", "policy", "show"),
    ("admin", "status"),
]


@pytest.mark.parametrize("empty", ["", "  "])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_empty_data_dir_is_refused(
    command: tuple[str, ...],
    empty: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--data-dir", empty]) == EXIT_USAGE
    assert "it is empty" in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_the_current_directory_is_fine_where_it_is_meant(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["admin", "status", "--data-dir", str(tmp_path)]) == 1
    assert "nothing runs on" in capsys.readouterr().err
    assert main(["admin", "status", "--data-dir", "."]) != EXIT_USAGE
