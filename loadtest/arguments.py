"""What the command line's values must be, so that a slip is told at once instead of ending a run."""

from __future__ import annotations

import argparse
import math
from urllib.parse import urlsplit


def positive(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def seconds(text: str) -> float:
    """A time above zero; half a second is one, `nan` and `inf` are none."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be above 0 and finite")
    return value


def seconds_or_none(text: str) -> float:
    """A time that may be zero."""
    return 0.0 if float(text) == 0 else seconds(text)


def server(text: str) -> str:
    """A server's URL as clients take it: `http` or `https` with a host."""
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise argparse.ArgumentTypeError("must be a URL such as http://127.0.0.1:8080")
    return text
