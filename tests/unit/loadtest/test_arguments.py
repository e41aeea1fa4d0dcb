"""A slip on the load tests' command line ends them at once, with a message and without a traceback."""

from __future__ import annotations

import gc
import socket
from pathlib import Path

import pytest

from loadtest.__main__ import main


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "--scenario", "nope"),
        ("bench", "--seconds", "-1"),
        ("bench", "--seconds", "0"),
        ("bench", "--seconds", "nan"),
        ("bench", "--warmup", "inf"),
        ("bench", "--devices", "0"),
        ("bench", "--url", "localhost"),
        ("faults", "--only", "nope"),
        ("faults", "--worlds", "0"),
        ("faults", "--messages", "-3"),
        ("faults", "--url", "ftp://localhost"),
        ("soak", "--minutes", "nan"),
        ("soak", "--minutes", "0.5"),
        ("soak", "--users", "0"),
        ("soak", "--workers", "0"),
        ("profile", "--seconds", "0"),
        ("profile", "--devices", "0"),
    ],
)
def test_a_value_that_makes_no_run_is_refused_before_anything_starts(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        ended: object = main(list(arguments))
    except SystemExit as exit_:
        ended = exit_.code
    told = capsys.readouterr()
    assert ended == 2
    assert told.out == ""
    assert arguments[-1] in told.err or "must be" in told.err


def test_a_server_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    try:
        assert main(["bench", "--seconds", "1", "--devices", "2", "--url", f"http://127.0.0.1:{port}"]) == 1
    finally:
        gc.enable()  # the bench switches it off for its own process
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("loadtest: ")
    assert str(port) in told.err
    assert told.err.count("\n") == 1


def test_who_stops_a_run_gets_a_line_and_the_exit_code_of_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("loadtest.soak.command.run_command", interrupted)
    assert main(["soak"]) == 130
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "loadtest: stopped before its end, nothing is judged\n")


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["profile", "--out", str(tmp_path / "file" / "below")]) == 1
    assert capsys.readouterr().err == f"loadtest: {tmp_path}/file/below: Not a directory\n"
