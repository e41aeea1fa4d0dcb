"""What a client tells its app about, besides messages and receipts. New kinds may come: pass over unknown ones."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from mailbox_client.errors import StopReason
from mailbox_client.receipts import Receipt, Refusal
from protocol.ids import ClientMessageId, MessageId


class Transport(StrEnum):
    """The way to the server in use."""

    WEBSOCKET = "websocket"
    HTTP = "http"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened; `kind` is its stable name."""

    kind: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Connected(Event):
    """The server took us in; the mailbox is not read to its end yet."""

    kind: ClassVar[str] = "connected"
    transport: Transport
    pending: bool


@dataclass(frozen=True, slots=True)
class CaughtUp(Event):
    """The mailbox was read up to what it held when we connected."""

    kind: ClassVar[str] = "caught_up"
    transport: Transport


@dataclass(frozen=True, slots=True)
class Reconciled(Event):
    """Pending sends were compared with the mailbox: `matched` had arrived, `resent` go out again now (seed 002)."""

    kind: ClassVar[str] = "reconciled"
    matched: int
    resent: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Disconnected(Event):
    """No way to the server at the moment; the next try is in `retry_in_ms`."""

    kind: ClassVar[str] = "disconnected"
    close_code: int | None
    retry_in_ms: int


@dataclass(frozen=True, slots=True)
class Stopped(Event):
    """Nothing more happens until the app acts."""

    kind: ClassVar[str] = "stopped"
    reason: StopReason


@dataclass(frozen=True, slots=True)
class SendConfirmed(Event):
    """A send's outcome is certain and something of it was accepted. Exactly one such event comes for a send."""

    kind: ClassVar[str] = "send_confirmed"
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class SendsRefused(Event):
    """Some recipients of a send were refused; the rest of it goes on, if there is a rest."""

    kind: ClassVar[str] = "refused"
    client_message_id: ClientMessageId
    refused: tuple[Refusal, ...]
    nothing_left: bool


@dataclass(frozen=True, slots=True)
class SendWaiting(Event):
    """The server asks for patience with a send (a rate limit, an outage); it is tried again by itself."""

    kind: ClassVar[str] = "send_waiting"
    client_message_id: ClientMessageId
    code: str
    retry_in_ms: int


@dataclass(frozen=True, slots=True)
class SendOutcomeUnknown(Event):
    """A pending send is older than 24 h and the mailbox shows no trace of it: the app decides (seed 002)."""

    kind: ClassVar[str] = "unknown"
    client_message_id: ClientMessageId


@dataclass(frozen=True, slots=True)
class MessagesDeferred(Event):
    """Messages were put aside: the app deferred them, or crashed on them three times. They come back within a day."""

    kind: ClassVar[str] = "deferred"
    message_ids: tuple[MessageId, ...]
    after_crashes: bool


@dataclass(frozen=True, slots=True)
class ServerNotice(Event):
    """A PUSH_EVENTS item for the app: `prekeys_low` (with `left`), `push_route_gone`, `mailbox_filling`."""

    kind: ClassVar[str] = "notice"
    name: str
    left: int | None = None


@dataclass(frozen=True, slots=True)
class StoreWasReset(Event):
    """The store was written by a newer version; messages and cursors were dropped and are fetched again."""

    kind: ClassVar[str] = "store_reset"
