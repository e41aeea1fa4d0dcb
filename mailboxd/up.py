"""`mailboxd up`: the whole server on this machine, on an embedded PostgreSQL and Valkey in one data directory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import structlog

from mailboxd.borrowed_policy import give_back, is_borrowed
from mailboxd.child_process import ChildProcess
from mailboxd.embedded import EmbeddedError, EmbeddedServices
from mailboxd.init import initialise
from mailboxd.log_keeping import AppendedLogs, keep_logs
from mailboxd.running import LOGS_DIR, SECRETS_DIR, holding, remove_runtime_file, write_runtime_file
from mailboxd.terminal import EXIT_OK, CommandError, complain
from mailboxd.up_plan import Plan, UpOptions, make_plan, report_of
from migrations import runner
from runtime import logs
from runtime.clock import SystemClock
from runtime.keyring import Keyring
from store.audit import AuditStore
from store.policy import PolicyStore
from store.policy_rules import Policy
from store.postgres import Postgres

logger = structlog.get_logger(__name__)

KILL_AFTER_DRAIN_S: Final = 10.0  # what a process gets beyond its own drain deadline
SERVICES_LOOK_S: Final = 0.5
SERVICES_PAUSE_MAX_S: Final = 15.0
FAILURES_COUNTED_MAX: Final = 10


class Stop:
    """SIGINT or SIGTERM asks to stop; a second one asks to hurry.

    SIGHUP means two things: where there is a certificate to read again it asks for that; from a terminal that is gone,
    and where there is none, it asks to stop.
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.urgent = asyncio.Event()
        self.reload = asyncio.Event()
        self.may_reload = False
        self._terminals: list[int] = []
        self._outlives_terminal = False

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        self._terminals = [descriptor for descriptor in (0, 1, 2) if os.isatty(descriptor)]
        self._outlives_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup
        handlers = {signal.SIGINT: self._ask, signal.SIGTERM: self._ask, signal.SIGHUP: self._hang_up}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def _ask(self) -> None:
        (self.urgent if self.requested.is_set() else self.requested).set()

    def _hang_up(self) -> None:
        terminal_is_gone = not all(map(os.isatty, self._terminals))
        if self.may_reload and (self._outlives_terminal or not terminal_is_gone):
            self.reload.set()
        elif not self._outlives_terminal:
            self._ask()


async def run_up(options: UpOptions, environ: Mapping[str, str], on_ready: Callable[[dict[str, Any]], None]) -> int:
    """Run until SIGINT or SIGTERM, then stop everything in order and return 0.

    `on_ready` gets the report (the `--json` line) once every process answers that it is ready. Raises CommandError,
    ConfigError or EmbeddedError when it cannot start or a process cannot be kept alive; then nothing runs any more.
    """
    stop = Stop()
    with stop.on_signals():
        running = asyncio.create_task(_run(options, environ, on_ready, stop, _tell), name="up")
        asked = asyncio.create_task(stop.requested.wait(), name="stop-asked")
        await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        running.cancel()
        try:
            await running
        except asyncio.CancelledError:
            pass
    return EXIT_OK


@contextlib.asynccontextmanager
async def serving(options: UpOptions, environ: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
    """The same server for the length of a block, which gets the report; stopped in order however the block ends.

    A part that cannot be kept alive ends the block: its error is raised here.
    """
    ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(_run(options, environ, ready.set_result, Stop(), lambda _line: None), name="up")
    block = asyncio.current_task()
    failed = False

    def ended(_task: asyncio.Task[NoReturn]) -> None:
        nonlocal failed
        if not leaving and block is not None:
            failed = True
            block.cancel()

    leaving = False
    try:
        await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            running.add_done_callback(ended)
            yield ready.result()
    except asyncio.CancelledError:
        if not failed or block is None:
            raise
        block.uncancel()
    finally:
        leaving = True
        running.cancel()
        await asyncio.wait((running,))
    if not running.cancelled():
        running.result()


def _tell(line: str) -> None:
    """What happened while it runs, to whoever sits at the terminal; the whole story is in the log."""
    with contextlib.suppress(OSError):  # the terminal may be gone
        complain([line])


async def _run(
    options: UpOptions,
    environ: Mapping[str, str],
    on_ready: Callable[[dict[str, Any]], None],
    stop: Stop,
    tell: Callable[[str], None],
) -> NoReturn:
    _make_directory(options.data_dir)
    with holding(options.data_dir):
        remove_runtime_file(options.data_dir)  # a killed predecessor's
        plan = make_plan(options, environ)
        stop.may_reload = plan.has_tls
        async with EmbeddedServices(options.data_dir) as services:
            logs.configure("up", directory=options.data_dir / LOGS_DIR)
            plan = plan.with_services(services.postgres_dsn, services.redis_url)
            await runner.apply(services.postgres_dsn)
            await initialise(services.postgres_dsn, options.data_dir / SECRETS_DIR, Policy(registration="open"))
            if is_borrowed(options.data_dir):  # by a demo that was killed
                async with _policy_of(options.data_dir, services.postgres_dsn) as policy_store:
                    await give_back(options.data_dir, policy_store, request_id=secrets.token_hex(8))
            await _keep_all(plan, options.data_dir, services, on_ready, stop, tell)


async def _keep_all(
    plan: Plan,
    data_dir: Path,
    services: EmbeddedServices,
    on_ready: Callable[[dict[str, Any]], None],
    stop: Stop,
    tell: Callable[[str], None],
) -> NoReturn:
    """Run the processes until cancelled; gateways stop first, then the worker, each within its time."""
    clock = SystemClock()

    def write_report() -> dict[str, Any]:
        pids = {"gateways": [child.pid for child in gateways], "worker": worker.pid, **services.pids}
        report = report_of(plan, data_dir, services.postgres_dsn, services.redis_url, pids)
        write_runtime_file(data_dir, report)
        return report

    gateways = [ChildProcess(spec, clock, write_report, tell) for spec in plan.gateways]
    worker = ChildProcess(plan.worker, clock, write_report, tell)
    try:
        async with asyncio.TaskGroup() as starting:
            for child in (*gateways, worker):
                starting.create_task(child.start(), name=f"start-{child.name}")
        on_ready(write_report())
        async with asyncio.TaskGroup() as keeping, _policy_of(data_dir, services.postgres_dsn) as policy_store:
            for child in (*gateways, worker):
                keeping.create_task(child.keep(), name=f"keep-{child.name}")
            keeping.create_task(_pass_on_reloads(gateways, stop), name="reloads")
            keeping.create_task(_keep_services(services, clock, write_report, tell), name="keep-services")
            own_logs = [f"{spec.name}.log" for spec in (*plan.gateways, plan.worker)]
            appended = AppendedLogs(data_dir / LOGS_DIR, [*own_logs, "up.log"])
            await keep_logs(appended, policy_store.load, clock)
    finally:
        remove_runtime_file(data_dir)  # nobody shall find what is about to end
        await _stop_all(gateways, plan.drain_deadline_s + KILL_AFTER_DRAIN_S, stop)
        await _stop_all([worker], plan.drain_deadline_s + KILL_AFTER_DRAIN_S, stop)


async def _pass_on_reloads(gateways: Sequence[ChildProcess], stop: Stop) -> NoReturn:
    while True:
        await stop.reload.wait()
        stop.reload.clear()
        logger.info("the gateways read their TLS certificate again")
        for gateway in gateways:
            gateway.hang_up()


async def _keep_services(
    services: EmbeddedServices, clock: SystemClock, on_started: Callable[[], Any], tell: Callable[[str], None]
) -> NoReturn:
    """Start PostgreSQL or Valkey again when one has ended: both come back at their old address.

    It tries for ever, with growing pauses: what a killed PostgreSQL left needs a moment to go away, and a full disk
    needs whoever makes room. Meanwhile gateways answer UNAVAILABLE, and no hands are needed afterwards.
    """
    failures = 0
    while True:
        await clock.sleep(min(SERVICES_PAUSE_MAX_S, SERVICES_LOOK_S * 2.0**failures))
        failed = False
        for name in services.ended():
            logger.warning("service ended; starting it again", service=name)
            if not failures:
                tell(f"{name} ended; starting it again")
            try:
                await services.start_again(name)
            except EmbeddedError as error:
                failed = True
                logger.warning("service did not start", service=name, error=str(error), failures=failures + 1)
            else:
                on_started()
        failures = min(failures + 1, FAILURES_COUNTED_MAX) if failed else 0


async def _stop_all(children: Sequence[ChildProcess], grace_s: float, stop: Stop) -> None:
    """Stop them together. A second signal, seen before or meanwhile, kills what still runs."""
    stopping = [asyncio.create_task(child.stop(grace_s=grace_s), name=f"stop-{child.name}") for child in children]
    hurried = asyncio.create_task(stop.urgent.wait(), name="stop-urgent")
    ended = asyncio.gather(*stopping)
    ended.add_done_callback(lambda done: done.cancelled() or done.exception())  # a cancelled stop has no other reader
    await asyncio.wait((ended, hurried), return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if not ended.done():
        await asyncio.gather(*(child.stop(grace_s=0) for child in children))
    await ended


@contextlib.asynccontextmanager
async def _policy_of(data_dir: Path, postgres_dsn: str) -> AsyncIterator[PolicyStore]:
    postgres = Postgres(postgres_dsn, pool_min=0, pool_max=1, application_name="mailboxd up")
    await postgres.open()
    try:
        clock = SystemClock()
        tags = logs.DeviceTags(Keyring.load(data_dir / SECRETS_DIR).log_key, clock)
        yield PolicyStore(postgres, AuditStore(postgres, tags, clock))
    finally:
        await postgres.close()


def _make_directory(data_dir: Path) -> None:
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"{data_dir} cannot be created: {error.strerror}; take another --data-dir") from None
