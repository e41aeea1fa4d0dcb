"""One client from its entering to its end: the store in use, the driver, and what it told so far."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from mailbox_client import sole_use
from mailbox_client.account import Account, open_store
from mailbox_client.addresses import http_url
from mailbox_client.driver import Driver
from mailbox_client.engine_io import ReturnMessages
from mailbox_client.errors import ClientError, ClientStopped, SendRefused, SendUnknown, StopReason
from mailbox_client.event_stream import EventStream
from mailbox_client.events import (
    CaughtUp,
    Connected,
    Disconnected,
    Event,
    SendConfirmed,
    SendOutcomeUnknown,
    SendsRefused,
    Stopped,
    Transport,
)
from mailbox_client.hand_over import HandedOver
from mailbox_client.local_store import LocalStore, SendState
from mailbox_client.open_sends import OpenSends
from mailbox_client.pulse import Pulse
from mailbox_client.settings import ClientSettings

logger = logging.getLogger("mailbox_client")


class Lifetime:
    """Opened once and closed once. Before and after, whatever needs the store or the driver raises ClientStopped."""

    def __init__(
        self,
        url: str,
        store: LocalStore | str | Path,
        settings: ClientSettings,
        on_event: Callable[[Event], None] | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._url = http_url(url)
        self._given_store = store
        self._settings = settings
        self._on_event = on_event
        self._tls = tls
        self._store: LocalStore | None = None
        self._driver: Driver | None = None
        self._account: Account | None = None
        self.sends = OpenSends(settings)
        self.handed_over = HandedOver()
        self.events = EventStream()
        self.stopped: StopReason | None = None
        self.connected: Transport | None = None
        self._caught_up = asyncio.Event()
        self._changed = Pulse()

    # -- from entering to leaving

    async def open(self) -> None:
        """Claim the store, load what is pending, and connect.

        Raises NotRegistered, StoreFault, CorruptHighWater, and ClientError if it was open before or the store is in
        use.
        """
        if self._driver is not None:
            raise ClientError("this client was entered before: make a new one")
        store = open_store(self._given_store)
        sole_use.take(store, self)
        self._store = store
        try:
            self._account = Account.load(store)
            with store.transaction():
                for send in store.sends(SendState.PENDING):
                    self.sends.add(send.cmid, send.envelopes)
            self._driver = Driver(
                self._url,
                store,
                self._account,
                self._settings,
                tls=self._tls,
                on_event=self._event,
                on_messages=self.handed_over.came,
                on_messages_waiting=self.handed_over.pulse.ring,
            )
            await self._driver.open()
        except BaseException:
            await self.close(clean=True)
            raise

    async def close(self, *, clean: bool) -> None:
        """Leave in good order, also after an `open` that failed, and again. Unless `clean`, the app crashed.

        What was in its hands then counts one crash more, and at three is deferred.
        """
        driver = self._driver
        if driver is not None:
            back = self.handed_over.give_up(clean=clean)
            if back and self.stopped is not StopReason.STORE:
                driver.give(ReturnMessages(back))
            await driver.close(self._leave_store)
        else:
            self._leave_store()

    def _leave_store(self) -> None:
        store = self._store
        if store is None:
            return
        sole_use.leave(store, self)
        if store is not self._given_store:
            self._store = None
            store.close()

    # -- what there is only while it is open

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            raise ClientStopped(StopReason.CLOSED)
        return self._driver

    @property
    def store(self) -> LocalStore:
        if self._store is None:
            raise ClientStopped(StopReason.CLOSED)
        return self._store

    @property
    def account(self) -> Account:
        if self._account is None:
            raise ClientStopped(StopReason.CLOSED)
        return self._account

    def check_open(self) -> None:
        if self.stopped is StopReason.CLOSED:
            raise ClientStopped(StopReason.CLOSED)

    def check_running(self) -> None:
        if self.stopped is not None:
            raise ClientStopped(self.stopped)

    async def caught_up(self) -> None:
        """Return once the mailbox was read up to what it held when the present connection began."""
        while not self._caught_up.is_set():
            self.check_running()
            await self._changed.wait()

    # -- what the driver tells

    def _event(self, event: Event) -> None:
        match event:
            case SendConfirmed(receipt):
                self.sends.settle(receipt.client_message_id, receipt)
            case SendsRefused(cmid, refused, True):
                self.sends.settle(cmid, SendRefused(cmid, refused))
            case SendOutcomeUnknown(cmid):
                self.sends.settle(cmid, SendUnknown(cmid))
            case Connected(transport, _):
                self.connected = transport
            case CaughtUp():
                self._caught_up.set()
            case Disconnected():
                self.connected = None
                self._caught_up.clear()
            case Stopped(reason):
                self._stop(reason)
            case _:
                pass
        self._changed.ring()
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                logger.exception("on_event raised; the client goes on")
        self.events.publish(event)

    def _stop(self, reason: StopReason) -> None:
        self.stopped = reason
        self.connected = None
        self._caught_up.clear()
        self.handed_over.pulse.ring()
        self.sends.stop(ClientStopped(reason))
