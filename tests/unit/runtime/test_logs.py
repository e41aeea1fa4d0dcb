"""Log lines: one JSON object each, the libraries' too, and no secret on any way into them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from runtime import logs
from runtime.logs import DeviceTags
from tests.support.clock import FakeClock

DEVICE = bytes(range(16))
DAY_SECONDS = 86_400


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Any]:
    before, level = list(logging.getLogger().handlers), logging.getLogger().level
    structlog_before = structlog.get_config()
    logs.configure("gateway-0", directory=tmp_path)
    yield lambda: [json.loads(line) for line in (tmp_path / "gateway-0.log").read_text().splitlines()]
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    for handler in before:
        root.addHandler(handler)
    root.setLevel(level)
    structlog.configure(**structlog_before)


def test_a_line_says_what_who_and_when(lines: Any) -> None:
    structlog.get_logger("gateway.delivery").info("batch pushed", entries=3, device_tag="0011223344556677")
    [line] = lines()
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "batch pushed",
        "entries": 3,
        "device_tag": "0011223344556677",
        "level": "info",
        "logger": "gateway.delivery",
        "process": "gateway-0",
    }


def test_the_libraries_go_the_same_way(lines: Any) -> None:
    logging.getLogger("aiohttp.server").warning("bad request from %s", "203.0.113.7")
    [line] = lines()
    assert line["event"] == "bad request from [hidden]"
    assert line["level"] == "warning"


def test_an_exception_shows_places_and_no_values(lines: Any) -> None:
    secret = "8nNqPmTzQkKo2mKzq0mYdA"

    def fails() -> None:
        local = secret
        raise ValueError(f"no such device {local}")

    try:
        try:
            fails()
        except ValueError as error:
            raise RuntimeError("gave up") from error
    except RuntimeError:
        structlog.get_logger("x").exception("request failed")
    [line] = lines()
    assert secret not in json.dumps(line)
    assert [(error["type"], error["message"]) for error in line["error"]] == [
        ("RuntimeError", "gave up"),
        ("ValueError", "no such device [hidden]"),
    ]
    assert line["error"][1]["at"][-1].endswith(" fails")


def test_a_library_exception_is_scrubbed_too(lines: Any) -> None:
    try:
        raise OSError("connect to 203.0.113.7 failed")
    except OSError:
        logging.getLogger("asyncpg").exception("pool")
    [line] = lines()
    assert "203.0.113.7" not in json.dumps(line)
    assert line["error"][0]["type"] == "OSError"


def test_levels_below_the_chosen_one_are_not_written(lines: Any) -> None:
    structlog.get_logger("x").debug("detail")
    logging.getLogger("websockets.server").info("connection open")
    assert lines() == []


def test_a_device_has_one_tag_a_day_and_another_the_next(clock: FakeClock) -> None:
    tags = DeviceTags(b"k" * 32, clock)
    today = tags.tag(DEVICE)
    assert tags.tag(DEVICE) == today
    assert len(today) == 16
    assert DEVICE.hex()[:16] != today
    assert tags.tag(bytes(16)) != today
    clock.move(DAY_SECONDS)
    assert tags.tag(DEVICE) != today


def test_another_key_gives_other_tags(clock: FakeClock) -> None:
    assert DeviceTags(b"a" * 32, clock).tag(DEVICE) != DeviceTags(b"b" * 32, clock).tag(DEVICE)
