"""Locust users over the client library: the numbers that an app sees, on Locust's own web page and in its CSV.

    locust -f loadtest/locustfile.py --host http://127.0.0.1:8080

Users of one process send to each other. Every one reconciles before it resends, since the library's engine does.
Besides `SEND_ACK` there are entries that are no requests:

* `delivery`: from a send to the other app's hands
* `ACK`: from an app's durable confirmation to the server's answer
* `caught_up`: from connecting to an empty mailbox
* `wake push`: from the first send to a sleeping phone to its push, where the server may push to this machine
  (MAILBOXD_PUSH_PRIVATE_NETWORKS_ALLOWED=127.0.0.0/8)

With Locust's master and workers start this file in each.

Every process keeps a history of what its users sent and their apps were given. When the test stops, sending ends, every
mailbox is drained, and the history is judged: a lost, doubled or disordered message makes the process fail, and the
verdict is logged (and written into the directory MAILBOX_LOAD_VERDICTS, if that is set).

Locust switches greenlets inside blocking calls, the library is asyncio: one event loop runs in a greenlet of its own,
and all users' coroutines run there.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import secrets
import struct
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from hashlib import blake2b
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, ClassVar, Final, TypeVar

from aiohttp import web
from locust import User, between, events, task
from locust.env import Environment

from loadtest.recorder import OfferedEnvelope, Recorder
from mailbox_client import (
    Account,
    ClientSettings,
    MailboxClient,
    MemoryStore,
    SendRefused,
    Transport,
)
from protocol.errors import MailboxError
from protocol.frames import SendEnvelope
from protocol.ids import DeviceId, MessageId

T = TypeVar("T")

PAYLOAD_BYTES: Final = int(os.environ.get("MAILBOX_LOAD_PAYLOAD", "1024"))
_HEAD: Final = struct.Struct(">d")  # the moment of the send, seconds since 1970: sender and recipient share a clock
_STEP_S_MAX: Final = 120.0
SLEEP_S_MAX: Final = 30.0
DRAIN_S_MAX: Final = 45.0
SETTLED_KEPT: Final = 100_000


logger = logging.getLogger(__name__)


class _Loop:
    """The event loop that every user of this process shares."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="mailbox-loop", daemon=True).start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.start(work).result(timeout=_STEP_S_MAX)


class _Process:
    """What all users of this process share: the loop, who can be sent to, the history, the phones that sleep."""

    def __init__(self) -> None:
        self.loop = _Loop()
        self.devices: list[DeviceId] = []
        self.recorder = Recorder(settled_kept=SETTLED_KEPT, app_view=True)
        self.stopping = False
        self.sends_open = 0
        self.asleep: dict[DeviceId, float] = {}  # 0, or the moment of the first send since it fell asleep
        self.phones: dict[str, Callable[[], None]] = {}  # by the last part of the push URL
        self.push_url = self.loop.run(self._listen())

    def drain(self) -> bool:
        """No new sends; wait until every accepted message is in its app's hands. False if time ran out."""
        self.stopping = True
        for wake in list(self.phones.values()):
            wake()
        end = monotonic() + DRAIN_S_MAX
        while self.sends_open or self.recorder.outstanding():
            if monotonic() > end:
                return False
            sleep(0.1)  # Locust's own: the other greenlets go on
        return True

    async def _listen(self) -> str:
        """Take wake pushes on a free loopback port, as a project's own push gateway would."""

        async def woken(request: web.Request) -> web.Response:
            wake = self.phones.get(request.match_info["phone"])
            if wake is not None:
                wake()
            return web.Response(status=204)

        app = web.Application()
        app.router.add_post("/{phone}", woken)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"


_HERE: list[_Process] = []  # the one of this process, once Locust has started


@events.init.add_listener  # type: ignore[untyped-decorator]
def _start(environment: Environment, **_: Any) -> None:
    if not _HERE:
        _HERE.append(_Process())


@events.test_stopping.add_listener  # type: ignore[untyped-decorator]
def _judge(environment: Environment, **_: Any) -> None:
    """The end of a test, before its users are stopped."""
    here = _HERE[0]
    if here.stopping or not here.recorder.offered_sends:
        return  # a master has no users
    drained = here.drain()
    verdict = {"drained": drained, **here.recorder.verdict()}
    verdict["ok"] = bool(verdict["ok"] and drained and verdict["accepted_entries"])
    logger.info("history: %s", json.dumps(verdict))
    if not verdict["ok"]:
        environment.process_exit_code = 1
    directory = os.environ.get("MAILBOX_LOAD_VERDICTS")
    if directory:
        Path(directory, f"verdict-{os.getpid()}.json").write_text(json.dumps(verdict))


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def _forget(environment: Environment, **_: Any) -> None:
    """A next test in this process, from the web page, begins anew."""
    here = _HERE[0]
    here.devices.clear()
    here.recorder = Recorder(settled_kept=SETTLED_KEPT, app_view=True)
    here.stopping = False


def _report(environment: Environment, kind: str, name: str, seconds: float, size: int, error: Exception | None) -> None:
    environment.events.request.fire(  # type: ignore[no-untyped-call]
        request_type=kind,
        name=name,
        response_time=seconds * 1_000,
        response_length=size,
        exception=error,
        context={},
    )


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()


class _Store(MemoryStore):
    """Tells when the server has answered ACKs."""

    def __init__(self, on_acked: Callable[[Sequence[MessageId]], None]) -> None:
        super().__init__()
        self._on_acked = on_acked

    def ack_paid(self, mids: Sequence[MessageId]) -> None:
        super().ack_paid(mids)
        self._on_acked(mids)


class MailboxUser(User):
    """A device. Subclasses say how it is connected."""

    abstract = True
    wait_time = between(0.5, 1.5)
    kind: ClassVar[str] = "WS"
    transport: ClassVar[Transport | None] = None
    client: MailboxClient | None = None
    device: DeviceId | None = None

    def on_start(self) -> None:
        self.here = _HERE[0]
        self.confirmed_at: dict[MessageId, float] = {}
        self.store = _Store(self._acked)
        self.device = self.here.loop.run(Account.register(self.url, self.store)).device_id
        self.go_online()
        self.here.devices.append(self.device)

    def on_stop(self) -> None:
        if self.device in self.here.devices:
            self.here.devices.remove(self.device)
        self.go_offline()

    def go_online(self) -> None:
        """Connect, and receive from now on; returns when the mailbox has been read to its end."""
        started = time()
        self.client = self.here.loop.run(self._connected())
        self.here.loop.start(self._receive(self.client, self.here.recorder))
        _report(self.environment, self.kind, "caught_up", time() - started, 0, None)

    def go_offline(self) -> None:
        if self.client is not None:
            self.here.loop.run(self.client.close())
            self.client = None

    @property
    def url(self) -> str:
        if self.host is None:
            raise ValueError("say where the server is: --host http://127.0.0.1:8080")
        return self.host

    def send_one(self) -> None:
        """Send to anybody else and report how long the confirmation took."""
        others = [device for device in self.here.devices if device != self.device]
        if self.client is None or self.device is None or not others or self.here.stopping:
            return
        to = random.choice(others)
        if self.here.asleep.get(to) == 0:
            self.here.asleep[to] = time()
        body = _HEAD.pack(time()) + secrets.token_bytes(PAYLOAD_BYTES - _HEAD.size)
        started, error = time(), None
        self.here.sends_open += 1
        try:
            self.here.loop.run(self._send(self.client, self.device, to, body))
        except Exception as raised:
            error = raised
        finally:
            self.here.sends_open -= 1
        _report(self.environment, self.kind, "SEND_ACK", time() - started, len(body), error)

    async def _send(self, client: MailboxClient, device: DeviceId, to: DeviceId, body: bytes) -> None:
        mid = MessageId(secrets.token_bytes(16))
        recorder = self.here.recorder
        attempt = recorder.offered(device, device, (OfferedEnvelope(to, mid, _digest(body)),))
        try:
            receipt = await client.send_envelopes((SendEnvelope(to, mid, 1, body),))
        except SendRefused:
            recorder.refused(attempt, not_committed=True)
            raise
        recorder.accepted(attempt, [(one.message_id, one.accepted_at, one.expires_at or 0) for one in receipt.accepted])

    async def _connected(self) -> MailboxClient:
        client = MailboxClient(self.url, self.store, settings=ClientSettings(backoff_base_ms=100))
        await client.__aenter__()
        if self.transport is not None:
            client.prefer(self.transport)
        async with asyncio.timeout(_STEP_S_MAX):
            await client.caught_up()
        return client

    async def _receive(self, client: MailboxClient, recorder: Recorder) -> None:
        device = client.device_id
        async for delivery in client.messages():
            recorder.handed_over(device, delivery.message_id, _digest(delivery.body))
            (sent_at,) = _HEAD.unpack_from(delivery.body)
            _report(self.environment, self.kind, "delivery", max(0.0, time() - sent_at), len(delivery.body), None)
            self.confirmed_at[delivery.message_id] = time()
            await delivery.confirm()
            recorder.confirmed(device, delivery.message_id)

    def _acked(self, mids: Sequence[MessageId]) -> None:
        now = time()
        for mid in mids:
            confirmed_at = self.confirmed_at.pop(mid, None)
            if confirmed_at is not None:
                _report(self.environment, self.kind, "ACK", now - confirmed_at, 0, None)
        if self.device is not None:
            self.here.recorder.acked(self.device, mids)


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
    """Sleeps until a push wakes it, reconnects, drains, acknowledges, sends, and sleeps again.

    Without a push it wakes by itself after `SLEEP_S_MAX`, as when its owner takes it up.
    """

    weight = 3
    kind = "PHONE"  # its deliveries count from the send, its sleep included
    wait_time = between(2, 5)

    def on_start(self) -> None:
        self.woken = threading.Event()
        super().on_start()
        phone = secrets.token_urlsafe(16)
        self.here.phones[phone] = self._wake
        if self.client is not None:
            try:
                self.here.loop.run(self.client.http.set_push_route("gateway", url=f"{self.here.push_url}/{phone}"))
            except MailboxError as error:  # the server may not push to this machine
                logger.warning("no wake pushes: %s", error)

    def on_stop(self) -> None:
        if self.device is not None:
            self.here.asleep.pop(self.device, None)
        super().on_stop()

    @task
    def sleep_and_wake(self) -> None:
        if self.here.stopping or self.device is None:
            return
        self.go_offline()
        self.woken.clear()
        self.here.asleep[self.device] = 0.0
        self.woken.wait(SLEEP_S_MAX)
        self.here.asleep.pop(self.device, None)
        self.go_online()
        self.send_one()

    def _wake(self) -> None:
        """A push came, or the test ends."""
        since = self.here.asleep.get(self.device) if self.device is not None else None
        if since and not self.woken.is_set() and not self.here.stopping:
            _report(self.environment, self.kind, "wake push", time() - since, 0, None)
        self.woken.set()
