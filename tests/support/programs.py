"""Programs of Debian that some tests need. Without one the test is skipped with the name of its package.

Under MAILBOXD_TEST_REQUIRE_ALL=1 every skip is a failure (see conftest.py).
"""

from __future__ import annotations

import glob
import os
import shutil
from pathlib import Path
from typing import Final

import pytest

# Where Debian keeps what is not on everybody's PATH.
_DIRECTORIES: Final = ("/usr/sbin", "/sbin", "/usr/lib/postgresql/15/bin")


def require_program(name: str, package: str) -> Path:
    """The program's path, or a skip that names the Debian package."""
    found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *_DIRECTORIES)))
    if found is None:
        pytest.skip(f"{name} is missing: apt-get install {package}")
    return Path(found)


def require_file(pattern: str, package: str) -> Path:
    """The first file that matches, or a skip that names the Debian package (for libraries: libfaketime)."""
    found = sorted(glob.glob(pattern))
    if not found:
        pytest.skip(f"{pattern} is missing: apt-get install {package}")
    return Path(found[0])
