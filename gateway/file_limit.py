"""Every connection is an open file: all that the hard limit gives is taken, and connections stop short of it.

At the limit itself `accept` would fail, and a client would wait for nothing. Below it, one more connection is accepted,
hears 503 with a come-back time, and is let go.
"""

from __future__ import annotations

import resource
from typing import Final

OWN_FILES: Final = 200  # database, Redis, logs, listening sockets and what a library opens for a moment


def raise_file_limit() -> int | None:
    """Raise the soft limit of open files to the hard one and return it; None: there is no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return None if hard == resource.RLIM_INFINITY else hard


def connections_within(files: int | None, wanted: int) -> int:
    """How many connections the process may hold with so many open files, at most `wanted`, at least 1.

    Beyond that number come the refusals: a tenth of it, at least 100, is accepted to hear 503 (`ConnectionLimits`).
    """
    if files is None:
        return wanted
    room = files - OWN_FILES
    return max(1, min(wanted, room - 100 if room <= 1_100 else room * 10 // 11))
