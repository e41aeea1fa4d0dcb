"""What tests of the whole system share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A directory that is not there yet, at a place that the embedded servers' user can reach."""
    parent = Path(tempfile.mkdtemp(prefix="mailboxd-acceptance-"))
    parent.chmod(0o711)
    yield parent / "data"
    shutil.rmtree(parent, ignore_errors=True)
