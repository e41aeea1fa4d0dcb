"""A process's own log files follow the policy's retention as it is now, also when nothing is written."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.clock import SystemClock
from runtime.log_files import RetainedLogFile
from runtime.logs import keep_files, sweep_files


@pytest.fixture
def old_part(tmp_path: Path) -> Iterator[Path]:
    """A part of two hours ago, of a log whose handler keeps lines for a day."""
    handler = RetainedLogFile(tmp_path / "gateway.log", retention_s=86_400)
    logging.getLogger().addHandler(handler)
    part = tmp_path / "gateway.log.00000000000000000001"
    part.write_text("a line\n")
    os.utime(part, (time.time() - 7_200,) * 2)
    yield part
    logging.getLogger().removeHandler(handler)
    handler.close()


def test_a_shorter_retention_takes_effect_with_the_next_sweep(old_part: Path) -> None:
    sweep_files(86_400)
    assert old_part.exists()
    sweep_files(3_600)
    assert not old_part.exists()


async def test_the_loop_sweeps_with_what_the_policy_says_and_makes_progress(old_part: Path) -> None:
    turned = asyncio.Event()
    keeping = asyncio.create_task(keep_files(lambda: 3_600, SystemClock(), turned.set))
    await asyncio.wait_for(turned.wait(), 5)
    assert not old_part.exists()
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping
