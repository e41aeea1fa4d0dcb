"""Runs one engine in asyncio: gathers inputs, steps, and only then carries out what the step said.

All inputs that wait are taken in one step, hence one store transaction: a hundred sends or confirmations at once cost
one sync to disk. Stores that block run in a thread of their own, one call at a time.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import time
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, Final

from mailbox_client.account import Account
from mailbox_client.client_message_ids import ClientMessageIds
from mailbox_client.engine import Engine
from mailbox_client.engine_io import (
    Abandon,
    CloseSocket,
    FetchToken,
    GetPage,
    HandOver,
    Input,
    MessagesWaiting,
    Notify,
    OpenSocket,
    Output,
    PostAck,
    PostSend,
    PutFrame,
    ServerTimeKnown,
    Start,
    Stop,
    Tick,
    Woke,
)
from mailbox_client.errors import ClientStopped, StopReason
from mailbox_client.events import Event, Stopped
from mailbox_client.http_requests import Requests
from mailbox_client.inbox import Inbox
from mailbox_client.lease_keeper import LeaseKeeper
from mailbox_client.local_store import LocalStore, StoredMessage, StoreFault
from mailbox_client.settings import ClientSettings
from mailbox_client.sleep_watch import SleepWatch
from mailbox_client.store_calls import StoreCalls
from mailbox_client.transport_http import MailboxHttp
from mailbox_client.transport_ws import SocketAdapter

logger = logging.getLogger("mailbox_client")

STORE_FAILURES_MAX: Final = 5
CLOSE_TIMEOUT_S: Final = 10.0
SLEEP_CHECK_S: Final = 2.0


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Driver:
    """The engine's hands: clock, randomness, socket, HTTP, store thread. `on_event` and `on_messages` run in the loop.

    A store that fails costs the engine and the connection, not the process: an engine is made anew from what the store
    holds; after five failures in a row it stops with StopReason.STORE.
    """

    def __init__(
        self,
        url: str,
        store: LocalStore,
        account: Account,
        settings: ClientSettings,
        *,
        tls: ssl.SSLContext | None,
        on_event: Callable[[Event], None],
        on_messages: Callable[[tuple[StoredMessage, ...]], None],
        on_messages_waiting: Callable[[], None],
    ) -> None:
        self.http = MailboxHttp(url, tls=tls)
        self.http.token_source = lambda: account.fetch_token(self.http)
        self._url = url
        self._tls = tls
        self._store = store
        self._account = account
        self._settings = settings
        self._on_event = on_event
        self._on_messages = on_messages
        self._on_messages_waiting = on_messages_waiting
        self._instance = secrets.token_bytes(16)
        self._numbers = count(1)
        self._random = secrets.SystemRandom().random
        self.store_calls = StoreCalls(store)
        self._leases = LeaseKeeper(store, self.store_calls, account.device_id, settings)
        self._inbox = Inbox()
        self._socket: SocketAdapter | None = None
        self._requests = Requests(self.http, account, settings, self.give)
        self._closing: set[asyncio.Task[None]] = set()
        self._engine: Engine | None = None
        self._ids: ClientMessageIds | None = None
        self._ending = False
        self._store_failures = 0
        self._sleep = SleepWatch()
        self._pump: asyncio.Task[None] | None = None

    # -- life

    async def open(self) -> None:
        """Load the engine and take the first lease of client message ids. Raises StoreFault, CorruptHighWater, …"""
        self._ids = await self._leases.first()
        self._engine = await self.store_calls.run(lambda: self._make_engine(after_crash=True))
        self._pump = asyncio.create_task(self._run(), name="mailbox-client")
        self.give(Start())

    async def close(self, leave_store: Callable[[], None]) -> None:
        """Stop the engine in good order, then everything that it started. Safe to cancel and to call again.

        `leave_store` is the last call that the store's thread makes, however this ends. On return it was made, unless
        the disk hangs; then it is made when the disk goes on.
        """
        try:
            await self._stop()
        finally:
            await self.store_calls.leave(leave_store)

    async def _stop(self) -> None:
        pump = self._pump
        if pump is not None:
            self._ending = True
            self.give(Stop())
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await asyncio.shield(pump)
                    # The socket's own close comes first: it carries the last ACKs.
                    await asyncio.gather(*self._closing, return_exceptions=True)
            except TimeoutError:
                logger.warning("the client did not close in time; what it had not done is done by the next one")
            finally:
                pump.cancel()
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, self._requests.close(), return_exceptions=True)
        if self._socket is not None:
            await self._socket.drop()
            self._socket = None
        await self.http.close()

    @property
    def ids(self) -> ClientMessageIds:
        assert self._ids is not None  # noqa: S101 - open() came first
        return self._ids

    @property
    def engine(self) -> Engine:
        assert self._engine is not None  # noqa: S101 - open() came first
        return self._engine

    # -- inputs

    def give(self, one: Input) -> None:
        """Tell the engine; it hears it in the next step."""
        self._inbox.put(one)

    async def give_durably(self, one: Input) -> None:
        """Tell the engine and return once the step that heard it is durable. Cancelling does not take it back.

        Raises StoreFault if the store failed: then nothing of it was kept; ClientStopped if the client was closed.
        """
        if self._pump is None or self._pump.done():
            raise ClientStopped(StopReason.CLOSED)
        await self._inbox.put_and_await(one)

    def cut(self) -> None:
        """Lose the connection without a word, as a dead network would."""
        if self._socket is not None:
            self._socket.cut()

    # -- the pump

    async def _run(self) -> None:
        try:
            await self._steps()
        except Exception:
            logger.exception("the client failed on a bug of its own and has stopped")
            self._on_event(Stopped(StopReason.FAULT))
        finally:
            self._inbox.close(ClientStopped(StopReason.CLOSED))

    async def _steps(self) -> None:
        while True:
            await self._wait_for_work()
            inputs = self._inbox.take()
            if self._sleep.slept():
                inputs.append(Woke())
            inputs.append(Tick())
            engine = self.engine
            try:
                outputs = await self.store_calls.run(lambda: engine.step(monotonic_ms(), inputs))  # noqa: B023
            except StoreFault as fault:
                self._inbox.answer(fault)
                self._on_messages(())  # a TakeMessages among them gave nothing
                if not await self._start_again():
                    return
                continue
            self._store_failures = 0
            self._inbox.answer(None)
            for output in outputs:
                self._carry_out(output)
            if self._ending and any(isinstance(one, Stop) for one in inputs):
                return
            await self._renew_leases(outputs)

    async def _wait_for_work(self) -> None:
        now = monotonic_ms()
        due = self.engine.next_due(now)
        if self._inbox or (due is not None and due <= now):
            await asyncio.sleep(0)  # let others add to the batch
            return
        # The pause is bounded so that a machine's sleep is noticed soon after it: timers stand still meanwhile.
        pause_s = SLEEP_CHECK_S if due is None else min(SLEEP_CHECK_S, (due - now) / 1000)
        await self._inbox.wait(pause_s)

    async def _start_again(self) -> bool:
        """After a store failure: drop everything in flight and make an engine from what the store holds."""
        self._requests.abandon_all()
        if self._socket is not None:
            self._later(self._socket.drop())
            self._socket = None
        while True:
            self._store_failures += 1
            if self._store_failures >= STORE_FAILURES_MAX or self._ending:
                self._on_event(Stopped(StopReason.STORE))
                return False
            await asyncio.sleep(0.1 * 2**self._store_failures)
            try:
                self._engine = await self.store_calls.run(lambda: self._make_engine(after_crash=False))
            except StoreFault:
                continue
            self.give(Start())
            return True

    def _make_engine(self, *, after_crash: bool) -> Engine:
        return Engine(
            self._store,
            self._settings,
            random=self._random,
            instance=self._instance,
            numbers=self._numbers,
            after_crash=after_crash,
        )

    async def _renew_leases(self, outputs: list[Output]) -> None:
        learned = next((output.server_now_ms for output in outputs if isinstance(output, ServerTimeKnown)), None)
        now = self.engine.server_now(monotonic_ms())
        await self._leases.renew(self.ids, learned_ms=learned, server_now_ms=now)

    # -- outputs

    def _carry_out(self, output: Output) -> None:
        match output:
            case PutFrame(_, frame):
                if self._socket is not None:
                    self._socket.put(frame)
            case Notify(event):
                self._on_event(event)
            case HandOver(messages):
                self._on_messages(messages)
            case MessagesWaiting():
                self._on_messages_waiting()
            case OpenSocket(socket):
                self._socket = SocketAdapter(
                    socket,
                    self._url,
                    self._inbox.put_when_there_is_room,
                    tls=self._tls,
                    open_timeout_s=self._settings.open_ms / 1000,
                )
            case CloseSocket(_, at_once):
                if self._socket is not None:
                    self._later(self._socket.drop() if at_once else self._socket.close())
                    self._socket = None
            case FetchToken() | GetPage() | PostSend() | PostAck():
                self._requests.start(output)
            case Abandon(request):
                self._requests.abandon(request)
            case ServerTimeKnown():
                pass  # _renew_leases reads it

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
