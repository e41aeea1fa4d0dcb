"""Ends this process together with the one that started it, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with(parent_pid: int) -> None:
    """Die by SIGKILL when the parent, which must be `parent_pid`, is gone; at once if it is gone already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)
