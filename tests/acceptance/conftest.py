"""What tests of the whole system share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.directories import servers_directory


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A directory that is not there yet, at a place that the embedded servers' user can reach."""
    parent = servers_directory()
    yield parent / "data"
    shutil.rmtree(parent, ignore_errors=True)
