"""One process that `mailboxd up` runs: started until it is ready, kept alive, stopped in its time."""

from __future__ import annotations

import asyncio
import collections
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from mailboxd.ports import answers_ready
from mailboxd.terminal import CommandError
from runtime.clock import Clock

logger = structlog.get_logger(__name__)

READY_TIMEOUT_S: Final = 60.0
READY_POLL_S: Final = 0.05
BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
FAILURES_MAX: Final = 10  # in a row, without staying up for STEADY_S in between
STEADY_S: Final = 60.0
LAST_LINES: Final = 20
_LINE_BYTES_MAX: Final = 2_000
_OUTPUT_END_S: Final = 1.0  # its end of the pipe is closed, unless something inherited it


class ChildSpec(NamedTuple):
    """What to run, and where it says that it is ready."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    ready_host: str
    ready_port: int


class ChildFailed(CommandError):
    """A process ended that should run; its own last lines follow the reason."""

    def __init__(self, name: str, reason: str, last_lines: Iterable[str]) -> None:
        super().__init__(f"{name} {reason}", *(f"  {line}" for line in last_lines))


class ChildProcess:
    """Runs one process at a time for its spec.

    `on_started` is told after every start that became ready, `tell` gets a line for a person when one ended by itself.
    """

    def __init__(
        self,
        spec: ChildSpec,
        clock: Clock,
        on_started: Callable[[], object],
        tell: Callable[[str], object] = lambda _line: None,
    ) -> None:
        self._spec = spec
        self._clock = clock
        self._on_started = on_started
        self._tell = tell
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_ready = False
        self._hang_up_due = False
        self._last_lines: collections.deque[str] = collections.deque(maxlen=LAST_LINES)

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        """Return once it answers that it is ready; ChildFailed when it ends or does not get there in its time."""
        self._last_lines.clear()
        self._is_ready = False
        # A session of its own: Ctrl-C at the terminal reaches `up` alone, which stops its processes in order.
        self._process = await asyncio.create_subprocess_exec(
            *self._spec.arguments,
            env=self._spec.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reading = asyncio.create_task(self._read_output(self._process), name=f"{self.name}-output")
        deadline = self._clock.monotonic() + READY_TIMEOUT_S
        while not await answers_ready(self._spec.ready_host, self._spec.ready_port):
            if self._process.returncode is not None:
                raise await self._failed(f"ended with {_status(self._process.returncode)} before it was ready")
            if self._clock.monotonic() >= deadline:
                raise await self._failed(f"was not ready after {READY_TIMEOUT_S:.0f} s")
            await self._clock.sleep(READY_POLL_S)
        self._is_ready = True
        if self._hang_up_due:
            self.hang_up()
        self._on_started()

    def hang_up(self) -> None:
        """SIGHUP, now or as soon as it is ready: before, it would end a process that has not got to its handler."""
        self._hang_up_due = not self._is_ready
        if self._is_ready and self._process is not None and self._process.returncode is None:
            self._signal(self._process, signal.SIGHUP)

    async def keep(self) -> None:
        """Start it again, with growing pauses, whenever it ends; ChildFailed after too many failures in a row."""
        failures = 0
        while True:
            began = self._clock.monotonic()
            reason = "is not started"
            if self._process is not None:
                reason = f"ended with {_status(await self._process.wait())}"
            if self._clock.monotonic() - began >= STEADY_S:
                failures = 0
            failures += 1
            if failures > FAILURES_MAX:
                raise await self._failed(f"{reason}, {failures} times in a row")
            pause = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** (failures - 1))
            logger.warning("process ended; starting it again", child=self.name, reason=reason, pause_s=pause)
            self._tell(f"{self.name} {reason}; starting it again")
            await self._clock.sleep(pause)
            try:
                await self.start()
            except ChildFailed as error:
                logger.warning("process did not start", child=self.name, reason=error.lines[0], last=error.lines[1:])
                await self.stop(grace_s=0)

    async def stop(self, *, grace_s: float) -> None:
        """SIGTERM, and SIGKILL when it still runs after `grace_s`. Returns when it is gone; cancelled, it kills."""
        process, reading = self._process, self._reading
        if process is None:
            return
        try:
            if process.returncode is None and grace_s > 0:
                self._signal(process, signal.SIGTERM)
                async with asyncio.timeout(grace_s):
                    await process.wait()
        except TimeoutError:
            logger.warning("process did not stop in time; killing it", child=self.name, grace_s=grace_s)
        finally:
            if process.returncode is None:
                self._signal(process, signal.SIGKILL)
        await process.wait()
        if reading is not None:
            await asyncio.wait((reading,), timeout=_OUTPUT_END_S)

    def _signal(self, process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        try:
            process.send_signal(number)
        except ProcessLookupError:
            pass  # it ended meanwhile

    async def _failed(self, reason: str) -> ChildFailed:
        await self.stop(grace_s=0)
        return ChildFailed(self.name, reason, self._last_lines)

    async def _read_output(self, process: asyncio.subprocess.Process) -> None:
        """Keep the last lines: its log goes to a file of its own, this is what it says before or beside that."""
        assert process.stdout is not None  # noqa: S101 - asked for with PIPE
        pending = b""
        while chunk := await process.stdout.read(65_536):
            *lines, pending = (pending + chunk).split(b"\n")
            pending = pending[-_LINE_BYTES_MAX:]
            self._last_lines.extend(
                line[-_LINE_BYTES_MAX:].decode("utf-8", "replace") for line in lines if line.strip()
            )
        if pending.strip():
            self._last_lines.append(pending.decode("utf-8", "replace"))


def _status(returncode: int) -> str:
    if returncode < 0:
        return f"signal {signal.Signals(-returncode).name}"
    return f"exit code {returncode}"
