"""One gateway process: started, told to read its certificate again, drained and stopped."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from typing import NoReturn

import structlog

from gateway.composition import Parts, compose
from gateway.file_limit import connections_within, raise_file_limit
from runtime import garbage
from runtime.clock import Clock, SystemClock
from runtime.config import GatewayConfig

log = structlog.get_logger(__name__)


async def serve(config: GatewayConfig) -> int:
    """Serve until SIGTERM or SIGINT, then drain; returns the exit code. SIGHUP reads the TLS certificate again.

    Raises MailboxError when the database cannot be reached at the start, KeyringError for its secrets, OSError for
    its ports.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    reload_asked = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, reload_asked.set)  # before anybody can take it for ready
    room = connections_within(raise_file_limit(), config.connections_max)
    if room < config.connections_max:
        log.info("fewer connections than configured: too few open files allowed", connections_max=room)
    async with AsyncExitStack() as stack:
        gateway = await Gateway.open(config.model_copy(update={"connections_max": room}), SystemClock(), stack)
        garbage.settle()
        reloading = asyncio.create_task(gateway.reload_when(reload_asked), name="reloads")
        stack.callback(reloading.cancel)
        await gateway.run(stopping)
    return 0


class Gateway:
    """One process's parts, and their life: until it is asked to stop, then the drain."""

    def __init__(self, parts: Parts) -> None:
        self.services = parts.services
        self.limits = parts.limits
        self.door = parts.door
        self.listener = parts.listener
        self.ports = parts.ports
        self._supervisor = parts.supervisor
        self._tls = parts.tls

    @classmethod
    async def open(cls, config: GatewayConfig, clock: Clock, stack: AsyncExitStack) -> Gateway:
        """Connect, compose, listen. `stack` closes it all, the newest first."""
        return cls(await compose(config, clock, stack))

    def reload(self) -> None:
        """What SIGHUP asks for: take the TLS certificate as it is on disk now. Settings are never read again."""
        if self._tls is None:
            log.info("nothing to reload: this gateway has no TLS certificate of its own")
        else:
            self._tls.reload()

    async def reload_when(self, asked: asyncio.Event) -> NoReturn:
        """Reload whenever `asked` is set; ends by cancellation."""
        while True:
            await asked.wait()
            asked.clear()
            self.reload()

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until `stopping`, then drain within the deadline. Raises LoopFailed when a loop is beyond restarting."""
        log.info("gateway ready", listen=str(self.ports[0]), ops_listen=str(self.ports[1]))
        stop_loops = asyncio.Event()
        # None of them ends by itself: waiting for that would only make every stop longer.
        loops = asyncio.create_task(self._supervisor.run(stop_loops, stop_seconds=0.0), name="loops")
        asked = asyncio.create_task(stopping.wait(), name="stopping")
        try:
            await asyncio.wait((loops, asked), return_when=asyncio.FIRST_COMPLETED)
            if not loops.done():
                log.info("gateway drains")
                # The port stays open: newcomers hear 503 and a come-back time, which is more than a refused connection.
                await self.services.drain.run(lambda: self.door.open_sockets)
        finally:
            asked.cancel()
            stop_loops.set()
            await loops
        log.info("gateway stopped")
