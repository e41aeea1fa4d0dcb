"""One process of a world: started, hit, started again, and gone with its world however that ends."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from loadtest.processes import ends_with_us, tree

START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 45.0
_POLL_S: Final = 0.02
_LAST_BYTES: Final = 3_000
_PORTS_FROM: Final = 15_000
_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


class WorldFailed(Exception):
    """A part of the world did not do in its time what it should; the message holds its last words."""


class Process:
    """One program under a name. It may be started again after it ended; its output goes to `log`, appended."""

    def __init__(self, name: str, log: Path, *, stop_signal: signal.Signals = signal.SIGTERM) -> None:
        self.name = name
        self.log = log
        self.starts = 0
        self._stop_signal = stop_signal
        self._popen: subprocess.Popen[bytes] | None = None
        self._stopped: list[int] = []

    def spawn(
        self, arguments: Sequence[str], environment: Mapping[str, str], *, stdin: Any = subprocess.DEVNULL, **how: Any
    ) -> subprocess.Popen[bytes]:
        """Run it; the kernel stops it when this process dies."""
        if self.is_running:
            raise WorldFailed(f"{self.name} runs already")
        with self.log.open("ab") as output:
            self._popen = subprocess.Popen(
                arguments,
                env=dict(environment),
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=ends_with_us(),
                **how,
            )
        self.starts += 1
        self._stopped = []
        return self._popen

    @property
    def pid(self) -> int:
        """0 before the first start."""
        return self._popen.pid if self._popen is not None else 0

    @property
    def is_running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def is_stopped(self) -> bool:
        """Whether a SIGSTOP holds it."""
        return self.is_running and _state(self.pid) == "T"

    @property
    def returncode(self) -> int | None:
        return self._popen.poll() if self._popen is not None else None

    async def until(
        self, holds: Callable[[], Awaitable[bool]], *, what: str = "was not ready", within_s: float = START_S_MAX
    ) -> None:
        """Return when it holds; WorldFailed when the process ends first or it takes too long."""
        try:
            async with asyncio.timeout(within_s):
                while not await holds():
                    if not self.is_running:
                        raise WorldFailed(f"{self.name} ended with {self.returncode}:\n{self.last_words()}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise WorldFailed(f"{self.name} {what} within {within_s:.0f} s:\n{self.last_words()}") from None

    def send(self, number: signal.Signals) -> None:
        """Signal the process alone, if it runs."""
        if self.is_running:
            os.kill(self.pid, number)

    async def kill(self) -> None:
        """SIGKILL; return when it and everything it had started are gone."""
        await self._end(signal.SIGKILL)

    async def _end(self, number: signal.Signals, within_s: float = STOP_S_MAX) -> None:
        family = tree(self.pid) if self.is_running else []
        self.send(number)
        if number is not signal.SIGKILL:
            self.cont()  # a frozen process could not obey
        await self.ended(within_s)
        async with asyncio.timeout(within_s):
            while any(_lives(pid) for pid in family):
                await asyncio.sleep(_POLL_S)

    async def ended(self, within_s: float = STOP_S_MAX) -> int:
        """Wait until it has ended, for whatever reason, and return its status (negative: a signal)."""
        try:
            async with asyncio.timeout(within_s):
                while self.is_running:
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise WorldFailed(f"{self.name} did not end within {within_s:.0f} s:\n{self.last_words()}") from None
        return self.returncode or 0

    def freeze(self) -> None:
        """SIGSTOP to it and all its descendants, as if its host stood still."""
        self._stopped = tree(self.pid) if self.is_running else []
        for pid in self._stopped:
            _signal(pid, signal.SIGSTOP)

    def cont(self) -> None:
        """SIGCONT to everything that is stopped; harmless when nothing is."""
        for pid in {self.pid, *self._stopped} if self.is_running else ():
            _signal(pid, signal.SIGCONT)
        self._stopped = []

    async def stop(self, within_s: float = STOP_S_MAX) -> int | None:
        """Ask it to end and return its status. WorldFailed, after a SIGKILL, when it does not obey in time."""
        if self._popen is None:
            return None
        try:
            if self.is_running:
                await self._end(self._stop_signal, within_s)
        finally:
            if self.is_running:
                self.send(signal.SIGKILL)
                self._popen.wait()
        return self.returncode

    def last_words(self) -> str:
        text = self.log.read_bytes()[-_LAST_BYTES:] if self.log.exists() else b""
        return text.decode("utf-8", "replace").strip()


def unused_port(chance: random.Random | None = None) -> int:
    """A loopback port outside of the range that outgoing connections take: free again when its owner was killed."""
    ends = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else 32_768
    drawn = chance or random.SystemRandom()
    for _ in range(200):
        port = drawn.randrange(_PORTS_FROM, max(ends, _PORTS_FROM + 1_000))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise WorldFailed("no free port found")


def _lives(pid: int) -> bool:
    return _state(pid) not in "ZX"


def _state(pid: int) -> str:
    """The letter of /proc/PID/stat; X when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "X"
    return text[text.rindex(")") + 2]


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
