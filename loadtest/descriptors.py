"""Room for many sockets in this process."""

from __future__ import annotations

import resource
from typing import Final

SPARE: Final = 200  # for everything that is no device


def allow_descriptors(sockets: int) -> None:
    """Raise the soft limit as far as needed; OSError names what is missing when the hard limit is too low."""
    needed = sockets + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise OSError(f"{needed} open files are needed and {hard} allowed: raise the hard limit (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
