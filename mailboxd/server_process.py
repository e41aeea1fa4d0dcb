"""One embedded server as a child of this process: it never outlives it, and never sees the terminal's Ctrl-C."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from mailboxd.unprivileged import EmbeddedError, ServerUser

_PR_SET_PDEATHSIG: Final = 1
_POLL_SECONDS: Final = 0.02
_LAST_BYTES: Final = 2_000


class ServerProcess:
    """Start it from a thread that lives on, such as the main one: to the kernel that thread is the parent."""

    def __init__(
        self, name: str, arguments: Sequence[str], user: ServerUser, log: Path, *, stop_signal: signal.Signals
    ) -> None:
        self._name = name
        self._log = log
        self._stop_signal = stop_signal
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=_environment(),
                start_new_session=True,
                preexec_fn=_stops_with_parent(stop_signal),  # one system call, nothing that takes a lock
                **user.popen_arguments(),
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        return self._popen.poll()

    async def until(self, is_ready: Callable[[], bool], *, at_most_seconds: float) -> None:
        """Return when it is ready; EmbeddedError with its last words when it ends or takes too long."""
        try:
            async with asyncio.timeout(at_most_seconds):
                while not is_ready():
                    if self.returncode is not None:
                        raise EmbeddedError(f"{self._name} ended while starting:\n{self._last_words()}")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise EmbeddedError(
                f"{self._name} did not start in {at_most_seconds:.0f} s:\n{self._last_words()}"
            ) from None

    async def stop(self, *, grace_seconds: float) -> None:
        """Return when it is gone: asked first, killed after the grace time or when this is cancelled."""
        try:
            if self.returncode is None:
                self._popen.send_signal(self._stop_signal)
            async with asyncio.timeout(grace_seconds):
                while self.returncode is None:
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            pass
        finally:
            if self.returncode is None:
                self._popen.kill()
                self._popen.wait()

    def _last_words(self) -> str:
        with self._log.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _LAST_BYTES))
            return log.read().decode("utf-8", "replace").strip() + f"\n(more in {self._log})"


def _environment() -> Mapping[str, str]:
    """Nothing of ours gets in: libpq and PostgreSQL read variables, and secrets have no business there."""
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def _stops_with_parent(stop_signal: signal.Signals) -> Callable[[], None]:
    """Called between fork and exec, after the user is changed (which would undo it)."""
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, int(stop_signal), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arrange
