"""One `mailboxd up` a directory, found by the other commands as long as it runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mailboxd.running import RUNTIME_FILE, find_running, holding, remove_runtime_file, write_runtime_file
from mailboxd.terminal import CommandError

DOCUMENT = {
    "urls": ["http://h:1"],
    "ops_urls": ["http://h:2"],
    "postgres_dsn": "postgresql://x",
    "redis_url": "redis://x",
}
HOLD = f"""
import sys, time
from pathlib import Path
from mailboxd.running import holding, write_runtime_file
with holding(Path(sys.argv[1])):
    write_runtime_file(Path(sys.argv[1]), {DOCUMENT})
    print("held", flush=True)
    sys.stdin.read()
"""


def hold_in_another_process(data_dir: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(data_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_what_runs_is_found_with_its_services(tmp_path: Path) -> None:
    with holding(tmp_path):
        write_runtime_file(tmp_path, DOCUMENT)
        running = find_running(tmp_path)
    assert (running.postgres_dsn, running.redis_url) == ("postgresql://x", "redis://x")
    assert running.secrets_dir == tmp_path / "secrets"


def test_the_runtime_file_is_closed_to_others(tmp_path: Path) -> None:
    write_runtime_file(tmp_path, DOCUMENT)
    assert (tmp_path / RUNTIME_FILE).stat().st_mode & 0o777 == 0o600
    assert json.loads((tmp_path / RUNTIME_FILE).read_text()) == DOCUMENT


def test_a_second_owner_is_told_who_the_first_is(tmp_path: Path) -> None:
    first = hold_in_another_process(tmp_path)
    try:
        with pytest.raises(CommandError, match=rf"\(pid {first.pid}\) runs on .* already"), holding(tmp_path):
            pytest.fail("two owners of one directory")
        assert find_running(tmp_path).postgres_dsn == "postgresql://x"
    finally:
        first.communicate()


def test_a_killed_owner_leaves_nothing_that_blocks_or_misleads(tmp_path: Path) -> None:
    first = hold_in_another_process(tmp_path)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert (tmp_path / RUNTIME_FILE).exists()
    with pytest.raises(CommandError, match="nothing runs on"):
        find_running(tmp_path)
    with holding(tmp_path):
        remove_runtime_file(tmp_path)


def test_a_directory_without_an_owner_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=f"mailboxd up --data-dir {tmp_path}"):
        find_running(tmp_path)
    with pytest.raises(CommandError, match="nothing runs on"):
        find_running(tmp_path / "missing")


def test_a_directory_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match="take another --data-dir"), holding(tmp_path / "file"):
        pytest.fail("a file is no directory")


def test_an_owner_that_is_still_starting_is_no_error_of_the_directory(tmp_path: Path) -> None:
    with holding(tmp_path), pytest.raises(CommandError, match="still starting"):
        find_running(tmp_path)


def test_the_command_that_it_suggests_can_be_pasted_whatever_the_directory_is_called(tmp_path: Path) -> None:
    with pytest.raises(CommandError) as caught:
        find_running(tmp_path / "da ta")
    assert str(caught.value).endswith(f"--data-dir '{tmp_path}/da ta'")
