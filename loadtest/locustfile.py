"""Locust users over the client library: the numbers that an app sees, on Locust's own web page and in its CSV.

    locust -f loadtest/locustfile.py --host http://127.0.0.1:8080

Users of one process send to each other. Every one reconciles before it resends, since the library's engine does.
Besides `SEND_ACK` there are entries that are no requests: `delivery` (from a send to the other app's hands), `confirm`
(an app's durable confirmation; the ACK follows by itself) and `caught_up` (from connecting to an empty mailbox).
With Locust's master and workers start this file in each.

Locust switches greenlets inside blocking calls, the library is asyncio: one event loop runs in a greenlet of its own,
and all users' coroutines run there.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import struct
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from time import time
from typing import Any, ClassVar, Final, TypeVar

from locust import User, between, events, task
from locust.env import Environment

from mailbox_client import (
    Account,
    ClientSettings,
    MailboxClient,
    MemoryStore,
    Transport,
)
from protocol.ids import DeviceId

T = TypeVar("T")

PAYLOAD_BYTES: Final = int(os.environ.get("MAILBOX_LOAD_PAYLOAD", "1024"))
_HEAD: Final = struct.Struct(">d")  # the moment of the send, seconds since 1970: sender and recipient share a clock
_STEP_S_MAX: Final = 120.0


class _Loop:
    """The event loop that every user of this process shares."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="mailbox-loop", daemon=True).start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.start(work).result(timeout=_STEP_S_MAX)


_LOOPS: list[_Loop] = []  # the one of this process, once Locust has started
_DEVICES: list[DeviceId] = []  # everybody of this process who can be sent to


@events.init.add_listener  # type: ignore[untyped-decorator]
def _start_loop(environment: Environment, **_: Any) -> None:
    if not _LOOPS:
        _LOOPS.append(_Loop())


def _report(environment: Environment, kind: str, name: str, seconds: float, size: int, error: Exception | None) -> None:
    environment.events.request.fire(  # type: ignore[no-untyped-call]
        request_type=kind,
        name=name,
        response_time=seconds * 1_000,
        response_length=size,
        exception=error,
        context={},
    )


class MailboxUser(User):
    """A device. Subclasses say how it is connected."""

    abstract = True
    wait_time = between(0.5, 1.5)
    kind: ClassVar[str] = "WS"
    transport: ClassVar[Transport | None] = None
    client: MailboxClient | None = None
    device: DeviceId | None = None

    def on_start(self) -> None:
        self.store = MemoryStore()
        self.device = _LOOPS[0].run(Account.register(self.url, self.store)).device_id
        self.go_online()
        _DEVICES.append(self.device)

    def on_stop(self) -> None:
        if self.device in _DEVICES:
            _DEVICES.remove(self.device)
        self.go_offline()

    def go_online(self) -> None:
        """Connect, and receive from now on; returns when the mailbox has been read to its end."""
        started = time()
        self.client = _LOOPS[0].run(self._connected())
        _LOOPS[0].start(self._receive(self.client))
        _report(self.environment, self.kind, "caught_up", time() - started, 0, None)

    def go_offline(self) -> None:
        if self.client is not None:
            _LOOPS[0].run(self.client.close())
            self.client = None

    @property
    def url(self) -> str:
        if self.host is None:
            raise ValueError("say where the server is: --host http://127.0.0.1:8080")
        return self.host

    def send_one(self) -> None:
        """Send to anybody else and report how long the confirmation took."""
        others = [device for device in _DEVICES if device != self.device]
        if self.client is None or not others:
            return
        body = _HEAD.pack(time()) + secrets.token_bytes(PAYLOAD_BYTES - _HEAD.size)
        started, error = time(), None
        try:
            _LOOPS[0].run(self.client.send({random.choice(others): body}))
        except Exception as raised:
            error = raised
        _report(self.environment, self.kind, "SEND_ACK", time() - started, len(body), error)

    async def _connected(self) -> MailboxClient:
        client = MailboxClient(self.url, self.store, settings=ClientSettings(backoff_base_ms=100))
        await client.__aenter__()
        if self.transport is not None:
            client.prefer(self.transport)
        async with asyncio.timeout(_STEP_S_MAX):
            await client.caught_up()
        return client

    async def _receive(self, client: MailboxClient) -> None:
        async for delivery in client.messages():
            (sent_at,) = _HEAD.unpack_from(delivery.body)
            _report(self.environment, self.kind, "delivery", max(0.0, time() - sent_at), len(delivery.body), None)
            started = time()
            await delivery.confirm()
            _report(self.environment, self.kind, "confirm", time() - started, 0, None)


class PersistentSocketUser(MailboxUser):
    """Always connected; sends now and then."""

    weight = 6

    @task
    def send(self) -> None:
        self.send_one()


class HttpOnlyUser(MailboxUser):
    """Where WebSockets cannot live: submit, long poll and ACK over HTTP."""

    weight = 1
    kind = "HTTP"
    transport = Transport.HTTP

    @task
    def send(self) -> None:
        self.send_one()


class SleepingPhoneUser(MailboxUser):
    """Sleeps, is woken, reconnects, drains, acknowledges and sleeps again."""

    weight = 3
    kind = "PHONE"  # its deliveries count from the send, its sleep included
    wait_time = between(5, 15)

    @task
    def sleep_and_wake(self) -> None:
        self.go_offline()
        self.wait()  # type: ignore[no-untyped-call]
        self.go_online()
        self.send_one()


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def _forget_devices(environment: Environment, **_: Any) -> None:
    _DEVICES.clear()
