"""The client of mailboxd for Python apps: five lines to send, five to receive (docs/client-guide.md)."""

from mailbox_client.account import Account, parse_address
from mailbox_client.client import MailboxClient
from mailbox_client.delivery import Delivery
from mailbox_client.errors import (
    ClientError,
    ClientStopped,
    IdNotUsable,
    IdsUnavailable,
    InstanceChanged,
    NoAnswer,
    NotRegistered,
    SendRefused,
    SendUnknown,
    ServerNotUnderstood,
    StopReason,
)
from mailbox_client.events import (
    CaughtUp,
    Connected,
    Disconnected,
    Event,
    MessagesDeferred,
    Reconciled,
    SendConfirmed,
    SendOutcomeUnknown,
    SendsRefused,
    SendWaiting,
    ServerNotice,
    Stopped,
    StoreWasReset,
    Transport,
)
from mailbox_client.http_answers import LastResortKey, OneTimeKey
from mailbox_client.local_store import LocalStore, StoreFault
from mailbox_client.local_store.memory import MemoryStore
from mailbox_client.local_store.sqlite import SqliteStore
from mailbox_client.receipts import Accepted, Receipt, Refusal
from mailbox_client.settings import ClientSettings
from mailbox_client.transport_http import MailboxHttp
from protocol.errors import ErrorCode, MailboxError
from protocol.frames import SendEnvelope
from protocol.ids import ClientMessageId, DeviceId, IdentityId, MessageId

__all__ = [
    "Accepted",
    "Account",
    "CaughtUp",
    "ClientError",
    "ClientMessageId",
    "ClientSettings",
    "ClientStopped",
    "Connected",
    "Delivery",
    "DeviceId",
    "Disconnected",
    "ErrorCode",
    "Event",
    "IdNotUsable",
    "IdentityId",
    "IdsUnavailable",
    "InstanceChanged",
    "LastResortKey",
    "LocalStore",
    "MailboxClient",
    "MailboxError",
    "MailboxHttp",
    "MemoryStore",
    "MessageId",
    "MessagesDeferred",
    "NoAnswer",
    "NotRegistered",
    "OneTimeKey",
    "Receipt",
    "Reconciled",
    "Refusal",
    "SendConfirmed",
    "SendEnvelope",
    "SendOutcomeUnknown",
    "SendRefused",
    "SendUnknown",
    "SendWaiting",
    "SendsRefused",
    "ServerNotUnderstood",
    "ServerNotice",
    "SqliteStore",
    "StopReason",
    "Stopped",
    "StoreFault",
    "StoreWasReset",
    "Transport",
    "parse_address",
]
