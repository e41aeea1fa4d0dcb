"""The public client: five lines to send, five to receive (docs/client-guide.md)."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from mailbox_client.account import Account
from mailbox_client.delivery import Delivery
from mailbox_client.driver import Driver
from mailbox_client.engine_io import (
    Confirm,
    DeferMessages,
    Forget,
    Prefer,
    Resend,
    RetryDeferred,
    Start,
    Submit,
    TakeMessages,
    Woke,
)
from mailbox_client.errors import IdNotUsable, IdsUnavailable, StopReason
from mailbox_client.events import Event, Transport
from mailbox_client.lifetime import Lifetime
from mailbox_client.local_store import LocalStore, SendState, StoredSend
from mailbox_client.receipts import Receipt
from mailbox_client.sends import checked, outcome_of
from mailbox_client.settings import ClientSettings
from mailbox_client.transport_http import MailboxHttp
from protocol.frames import SendEnvelope
from protocol.ids import ClientMessageId, DeviceId, MessageId, is_id


class MailboxClient:
    """One device's mailbox: sends that are never lost or doubled, messages that come once.

        async with MailboxClient(url, "device.sqlite") as client:
            receipt = await client.send({friend: sealed})
            async for delivery in client.messages():
                keep(delivery.body)
                await delivery.confirm()

    It connects by itself and keeps trying; entering and sending work without a network, and what is pending goes out
    later, also by a later process. One client per store object at a time, entered once. `on_event` is called in the
    event loop and must not block. Entering raises NotRegistered, StoreFault, CorruptHighWater, and ClientError while
    another client uses the store object.
    """

    def __init__(
        self,
        url: str,
        store: LocalStore | str | Path,
        *,
        settings: ClientSettings | None = None,
        on_event: Callable[[Event], None] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings or ClientSettings()
        self._life = Lifetime(url, store, self._settings, on_event, tls)
        self._sends = self._life.sends
        self._handed_over = self._life.handed_over

    # -- life

    async def __aenter__(self) -> Self:
        await self._life.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # An error of the app while it holds a message is what "crashed on it" means; a cancel is not.
        await self._life.close(clean=kind is None or not issubclass(kind, Exception))

    async def close(self) -> None:
        """Leave in good order. Messages in hand that were not confirmed are delivered again by the next client."""
        await self._life.close(clean=True)

    @property
    def _driver(self) -> Driver:
        return self._life.driver

    @property
    def account(self) -> Account:
        return self._life.account

    @property
    def device_id(self) -> DeviceId:
        return self.account.device_id

    @property
    def http(self) -> MailboxHttp:
        """The HTTP door with this device's token, fetched where needed: prekeys, push route, devices, status."""
        return self._driver.http

    @property
    def connected(self) -> Transport | None:
        """The transport in use, None while there is none."""
        return self._life.connected

    @property
    def stopped(self) -> StopReason | None:
        return self._life.stopped

    async def caught_up(self) -> None:
        """Return once the mailbox was read up to what it held when the present connection began."""
        await self._life.caught_up()

    # -- sending

    def next_client_message_id(self) -> ClientMessageId:
        """Issue an id for one later send, without waiting; all zero if none can be issued now (seed 003)."""
        self._life.check_open()
        return self._driver.ids.issue()

    async def send(
        self,
        bodies: Mapping[DeviceId, bytes],
        *,
        protocol_version: int = 1,
        ttl_s: int | None = None,
        pad: int | None = None,
        echo: bool = True,
        client_message_id: ClientMessageId | None = None,
    ) -> Receipt:
        """Send sealed bodies, one a recipient device, and return when the server stored them durably.

        All are stored in one transaction, or those that are refused are named in `receipt.refused` and the rest is.
        Raises SendRefused if every recipient was refused, SendUnknown if after 24 h without a connection nothing can be
        said, ClientStopped, StoreFault, IdNotUsable, IdsUnavailable, TypeError, ValueError. Cancelling does not take it
        back: once it is in the store it goes out, and `outcome` tells of it.
        """
        envelopes = [
            SendEnvelope(to, MessageId(secrets.token_bytes(16)), protocol_version, body, ttl_s, pad)
            for to, body in bodies.items()
        ]
        return await self.send_envelopes(envelopes, echo=echo, client_message_id=client_message_id)

    async def send_envelopes(
        self,
        envelopes: Sequence[SendEnvelope],
        *,
        echo: bool = True,
        client_message_id: ClientMessageId | None = None,
    ) -> Receipt:
        """The same for envelopes that the app made whole, message ids included."""
        return await self.outcome(await self.post(envelopes, echo=echo, client_message_id=client_message_id))

    async def post(
        self,
        envelopes: Sequence[SendEnvelope],
        *,
        echo: bool = True,
        client_message_id: ClientMessageId | None = None,
    ) -> ClientMessageId:
        """Take over a send and return its id once it is durable here; `outcome` waits for the server's answer.

        Waits while as much is pending as may be.
        """
        whole = checked(envelopes)
        await self._sends.room_for(whole, lambda: self._life.stopped)
        self._life.check_running()
        ids = self._driver.ids
        cmid = client_message_id
        if cmid is None:
            cmid = ids.issue()
            if not is_id(cmid):
                raise IdsUnavailable("no client message id can be issued now")
        ids.consume(cmid)
        self._sends.add(cmid, whole)
        try:
            await self._driver.give_durably(Submit(cmid, whole, echo))
        except Exception:
            self._sends.remove(cmid)
            raise
        return cmid

    async def outcome(self, cmid: ClientMessageId) -> Receipt:
        """Wait for what becomes of a send, also of one that an earlier process posted. Raises as `send` does."""
        if cmid not in self._sends:
            return outcome_of(cmid, await self._driver.store_calls.transacted(lambda: self._life.store.send(cmid)))
        self._life.check_running()
        return await self._sends.outcome(cmid)

    async def unknown_sends(self) -> list[StoredSend]:
        """Sends whose outcome nobody can tell any more (seed 002): `resend` or `forget` each."""
        return await self._driver.store_calls.transacted(lambda: self._life.store.sends(SendState.UNKNOWN))

    async def resend(self, cmid: ClientMessageId) -> None:
        """Try a send whose outcome is unknown again, under its id. Raises IdNotUsable for any other."""
        stored = await self._driver.store_calls.transacted(lambda: self._life.store.send(cmid))
        if stored is None or stored.state is not SendState.UNKNOWN:
            raise IdNotUsable("no send whose outcome is unknown has this id")
        self._sends.add(cmid, stored.envelopes)
        await self._driver.give_durably(Resend(cmid))

    async def forget(self, cmid: ClientMessageId) -> None:
        """Leave a send whose outcome is unknown as it is."""
        await self._driver.give_durably(Forget(cmid))

    @property
    def pending_sends(self) -> int:
        """Sends without an outcome."""
        return len(self._sends)

    # -- receiving

    async def messages(self) -> AsyncIterator[Delivery]:
        """Messages in the order of the mailbox, without end. Ends when the client is closed.

        Raises ClientStopped when it stopped for another reason. Several loops at once share the messages.
        """
        while True:
            while (message := self._handed_over.take()) is not None:
                yield Delivery(self, message)
            if self._life.stopped is StopReason.CLOSED:
                return
            self._life.check_running()
            if self._handed_over.ask():
                self._driver.give(TakeMessages(self._settings.hand_over_batch))
            await self._handed_over.pulse.wait()

    async def confirm(self, *deliveries: Delivery) -> None:
        """Confirm messages together: one durable write for all."""
        mids = tuple(delivery.message_id for delivery in deliveries)
        await self._driver.give_durably(Confirm(mids))
        self._handed_over.settled(mids)

    async def defer(self, *deliveries: Delivery) -> None:
        """Put messages aside together."""
        mids = tuple(delivery.message_id for delivery in deliveries)
        await self._driver.give_durably(DeferMessages(mids))
        self._handed_over.settled(mids)

    async def retry_deferred(self) -> None:
        """Deliver all deferred messages again, for example after a key change."""
        await self._driver.give_durably(RetryDeferred())

    # -- the connection

    def on_wake(self) -> None:
        """Call it when a wake push came or the device woke up: the connection is proven within 3 s or replaced."""
        self._driver.give(Woke())

    def reconnect(self) -> None:
        """Start again after a stop, because the user acted."""
        self._life.stopped = None
        self._driver.give(Start())

    def prefer(self, transport: Transport | None) -> None:
        """Use only this transport from now on; None: a WebSocket where possible, else HTTP."""
        self._driver.give(Prefer(Transport(transport) if transport is not None else None))

    def cut_connection(self) -> None:
        """Lose the connection without closing it, as a dead network would. For tests and demonstrations."""
        self._driver.cut()

    def events(self) -> AsyncGenerator[Event, None]:
        """What happens from now on, until the client stops. A reader that falls 1,024 behind loses the oldest."""
        return self._life.events.read()
