"""The exchange that the demo plays between two devices, over networks that break on purpose. It knows no server part:
it talks to a URL through the client library, as an app does.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TypeVar

from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox

from mailbox_client.account import Account
from mailbox_client.client import MailboxClient
from mailbox_client.delivery import Delivery
from mailbox_client.events import Connected, Event, Reconciled, SendConfirmed, Transport
from mailbox_client.http_answers import OneTimeKey
from mailbox_client.padding import pad, unpad
from mailbox_client.settings import ClientSettings
from mailbox_client.transport_http import MailboxHttp
from mailboxd.demo.display import Display
from mailboxd.demo.files import SEAL_BYTES, Outgoing, Rebuilder, pieces_of
from mailboxd.demo.network import Relay
from mailboxd.demo.push import PushEndpoint
from protocol.frames import SendEnvelope
from protocol.ids import ClientMessageId, DeviceId, MessageId

WAKE_S_MAX: Final = 60.0
STEP_S_MAX: Final = 60.0
EMPTY_S_MAX: Final = 30.0


E = TypeVar("E", bound=Event)


class DemoFailed(Exception):
    """Something that the demo shows did not come true; the message says what."""


@dataclass(slots=True)
class Tally:
    """What has happened so far. Latencies in seconds from the app's send to the server's confirmation."""

    sent: int = 0
    delivered: int = 0
    opened: int = 0
    acked: int = 0
    woken: int = 0
    reconciled: int = 0
    wake_s: float = 0.0
    latencies: list[float] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        ordered = sorted(self.latencies)
        return {
            "sent": self.sent,
            "delivered": self.delivered,
            "opened": self.opened,
            "acked": self.acked,
            "woken": self.woken,
            "reconciled": self.reconciled,
            "wake_ms": round(self.wake_s * 1_000, 1),
            "latency_ms": {
                "p50": _milliseconds(ordered, 0.50),
                "p99": _milliseconds(ordered, 0.99),
                "max": _milliseconds(ordered, 1.0),
            },
        }


class Play:
    """One exchange. `tally` is right at any moment, also after a failure."""

    def __init__(
        self, server_url: str, push: PushEndpoint, files: Sequence[Outgoing], workspace: Path, display: Display
    ) -> None:
        self.tally = Tally()
        self._server_url = server_url
        self._push = push
        self._pieces = list(pieces_of(files))
        self._files = files
        self._first_store = workspace / "first.sqlite"
        self._second_store = workspace / "second.sqlite"
        self._display = display
        self._posted_at: dict[ClientMessageId, float] = {}

    async def run(self) -> None:
        """Play it to its end; raises DemoFailed, or what the client library raises."""
        total = len(self._pieces)
        self._display.expect(total)
        async with Relay(self._server_url) as first_network, Relay(self._server_url) as second_network:
            private_key = PrivateKey.generate()
            await Account.register(first_network.url, self._first_store)
            second = await Account.register(second_network.url, self._second_store)
            self._display.say("two devices registered with their Ed25519 keys")
            await self._prepare_second(second_network, private_key)
            self._display.say("the second device uploaded a key and a push route, went offline")
            await self._send_all(first_network, second)
            await self._wait_for_wake()
            await self._receive_all(second_network, SealedBox(private_key))

    # -- the second device, before

    async def _prepare_second(self, network: Relay, private_key: PrivateKey) -> None:
        async with MailboxClient(network.url, self._second_store) as client:
            async with asyncio.timeout(STEP_S_MAX):
                await client.caught_up()
                await client.http.upload_prekeys([OneTimeKey(1, bytes(private_key.public_key))])
                await client.http.set_push_route("gateway", url=self._push.url)

    # -- the first device

    async def _send_all(self, network: Relay, second: Account) -> None:
        """Seal and send every piece. The answer to the last one is lost on the way, to be found in the mailbox."""
        events = _Events()
        client = MailboxClient(
            network.url, self._first_store, on_event=events.note_and(self._confirmed), settings=_impatient()
        )
        async with client:
            async with asyncio.timeout(STEP_S_MAX):
                await client.caught_up()
                claim = await client.http.claim_prekeys(second.identity_id)
            to, key = _device_and_key(claim.devices)
            self._display.say("the first device claimed the key and seals: 64 KiB at most a piece")
            box = SealedBox(PublicKey(key))
            *all_but_last, last = self._pieces
            outcomes = [await self._post(client, to, box, piece) for piece in all_but_last]
            await asyncio.gather(*(client.outcome(cmid) for cmid in outcomes))
            self._display.say(f"{self.tally.sent} envelopes sent, each confirmed after its commit")
            network.lose_answers()
            cmid = await self._post(client, to, box, last)
            await self._stored(second, len(self._pieces))
            self._display.say("the last one's answer was lost on the way, and the connection too")
            network.cut()
            async with asyncio.timeout(STEP_S_MAX):
                receipt = await client.outcome(cmid)
                reconciled = await events.of(Reconciled, lambda event: event.matched > 0)
            if not receipt.reconciled or reconciled.resent:
                raise DemoFailed("the send whose answer was lost was not reconciled from the mailbox")
            self.tally.reconciled = reconciled.matched
            self._display.say("back online, it found its own echo entry: sent once, not resent")
            await self._emptied(client.account, "first")

    async def _post(
        self, client: MailboxClient, to: DeviceId, box: SealedBox[PublicKey], piece: bytes
    ) -> ClientMessageId:
        plaintext, padding_class = pad(piece, SEAL_BYTES)
        sealed = box.encrypt(plaintext)
        started = perf_counter()
        cmid = await client.post([SendEnvelope(to, MessageId(secrets.token_bytes(16)), 1, sealed, None, padding_class)])
        self._posted_at[cmid] = started
        return cmid

    def _confirmed(self, event: Event) -> None:
        if isinstance(event, SendConfirmed):
            posted_at = self._posted_at.get(event.receipt.client_message_id)
            if posted_at is not None and not event.receipt.reconciled:
                self.tally.latencies.append(perf_counter() - posted_at)
            self.tally.sent += len(event.receipt.accepted)
            self._display.count("sent", self.tally.sent)

    async def _stored(self, second: Account, entries: int) -> None:
        """Ask over a network that works, as the owner of the mailbox, until that many envelopes wait in it."""
        async with MailboxHttp(self._server_url) as http, asyncio.timeout(STEP_S_MAX):
            await second.fetch_token(http)
            while (await http.mailbox_status()).pending_entries < entries:
                await asyncio.sleep(0.02)

    # -- the second device, after

    async def _wait_for_wake(self) -> None:
        try:
            await self._push.woken(WAKE_S_MAX)
        except TimeoutError:
            raise DemoFailed(f"no wake push within {WAKE_S_MAX:.0f} s") from None
        self.tally.woken = self._push.wakes
        self.tally.wake_s = max(0.0, (self._push.first_wake_at or 0.0) - min(self._posted_at.values()))
        self._display.say("the wake push came: the second device goes online")

    async def _receive_all(self, network: Relay, box: SealedBox[PrivateKey]) -> None:
        """Half over a WebSocket that is then cut, a part by HTTP pull with the cursor, the rest over a WebSocket."""
        total = len(self._pieces)
        share = max(1, total // 8)  # what may be on its way unconfirmed: the rest must come over the next transport
        settings = ClientSettings(window_entries=share, page_limit=share, unconfirmed_max=share, backoff_base_ms=50)
        events = _Events()
        rebuilder = Rebuilder()
        client = MailboxClient(network.url, self._second_store, on_event=events.note, settings=settings)
        async with client:
            client.on_wake()
            messages = client.messages()
            await self._take(messages, box, rebuilder, until=total // 2)
            self._display.say(f"{self.tally.acked} received by WebSocket and acknowledged; now the line is cut")
            network.cut()
            client.prefer(Transport.HTTP)
            async with asyncio.timeout(STEP_S_MAX):
                await events.of(Connected, lambda event: event.transport is Transport.HTTP)
            await self._take(messages, box, rebuilder, until=max(total // 2 + 1, 3 * total // 4))
            self._display.say(f"{self.tally.acked} acknowledged: it went on by HTTP pull from its cursor")
            events.forget()
            client.prefer(None)
            async with asyncio.timeout(STEP_S_MAX):
                await events.of(Connected, lambda event: event.transport is Transport.WEBSOCKET)
            await self._take(messages, box, rebuilder, until=total)
            self._display.say("back on the WebSocket, it received and acknowledged the rest")
            self._compare(rebuilder)
            await self._emptied(client.account, "second")

    async def _take(
        self, messages: AsyncIterator[Delivery], box: SealedBox[PrivateKey], rebuilder: Rebuilder, *, until: int
    ) -> None:
        """Open and confirm messages until `until` of them are done."""
        tally, display = self.tally, self._display
        while tally.acked < until:
            async with asyncio.timeout(STEP_S_MAX):
                delivery = await anext(messages)
            tally.delivered += 1
            display.count("delivered", tally.delivered)
            try:
                rebuilder.add(unpad(box.decrypt(delivery.body)))
            except (CryptoError, ValueError) as error:
                raise DemoFailed("an envelope could not be opened") from error
            tally.opened += 1
            display.count("opened", tally.opened)
            await delivery.confirm()
            tally.acked += 1
            display.count("acked", tally.acked)

    def _compare(self, rebuilder: Rebuilder) -> None:
        rebuilt = rebuilder.files()
        for sent, came in zip(self._files, rebuilt, strict=False):
            if not came.intact or came.content != sent.content:
                raise DemoFailed(f"{came.name} is not what was sent")
        if len(rebuilt) != len(self._files):
            raise DemoFailed(f"{len(self._files)} files were sent and {len(rebuilt)} came")
        self._display.say(f"{len(rebuilt)} file{'s' * (len(rebuilt) != 1)} opened and rebuilt; the hashes are equal")

    async def _emptied(self, account: Account, name: str) -> None:
        """Wait, while its client acknowledges, until nothing is left in a mailbox, echo entries included."""
        try:
            async with MailboxHttp(self._server_url) as http, asyncio.timeout(EMPTY_S_MAX):
                await account.fetch_token(http)
                while (await http.pull_mailbox(limit=1)).entries:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise DemoFailed(f"the {name} device's mailbox is not empty after {EMPTY_S_MAX:.0f} s") from None
        self._display.say(f"the {name} device's mailbox is empty")


class _Events:
    """Events of one client, to wait for."""

    def __init__(self) -> None:
        self._seen: list[Event] = []
        self._bell = asyncio.Event()

    def note(self, event: Event) -> None:
        self._seen.append(event)
        self._bell.set()

    def note_and(self, also: Callable[[Event], None]) -> Callable[[Event], None]:
        def both(event: Event) -> None:
            also(event)
            self.note(event)

        return both

    def forget(self) -> None:
        self._seen.clear()

    async def of(self, kind: type[E], matching: Callable[[E], bool]) -> E:
        """The first event of this kind that matches, seen already or to come."""
        while True:
            for event in self._seen:
                if isinstance(event, kind) and matching(event):
                    return event
            self._bell.clear()
            await self._bell.wait()


def _impatient() -> ClientSettings:
    return ClientSettings(backoff_base_ms=50)


def _device_and_key(devices: Sequence[Any]) -> tuple[DeviceId, bytes]:
    if len(devices) != 1 or devices[0].one_time is None:
        raise DemoFailed("the claim gave no one-time key")
    return devices[0].device_id, devices[0].one_time.public_key


def _milliseconds(ordered: Sequence[float], share: float) -> float:
    """The latency that `share` of them stayed at or below."""
    if not ordered:
        return 0.0
    return round(ordered[math.ceil(len(ordered) * share) - 1] * 1_000, 2)
