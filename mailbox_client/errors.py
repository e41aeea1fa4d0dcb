"""What an app may have to handle. What else goes wrong the client handles itself, by waiting and retrying."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from mailbox_client.receipts import Refusal
from protocol.errors import ErrorCode
from protocol.ids import ClientMessageId


class StopReason(StrEnum):
    """Why a client stopped for good until the app acts (WIRE, the table of close codes)."""

    CLOSED = "closed"  # the app closed it
    REVOKED = "revoked"  # 4403: log out, never reconnect
    REPLACED = "replaced"  # 4409: another process of this device took over; reconnect only when the user acts
    FAULT = "fault"  # 1009, 4400: a bug on this side; looping would not help
    NOT_KNOWN = "not_known"  # the server does not accept this device's key, or is not the instance it registered with
    STORE = "store"  # the local store failed again and again


_WHY: Final = {
    StopReason.CLOSED: "it was closed or never entered; use it inside `async with`",
    StopReason.REVOKED: "this device was revoked; log out",
    StopReason.REPLACED: "another process of this device took over; reconnect() when the user wants it back here",
    StopReason.FAULT: "the server refused what it sent as malformed, or it met a bug of its own; see the log",
    StopReason.NOT_KNOWN: "the server does not know this device's key, or is another instance",
    StopReason.STORE: "the local store failed again and again",
}


class ClientError(Exception):
    """Base of what this package raises by itself; answers of the server that stand alone are `MailboxError`."""


class ClientStopped(ClientError):
    """The client does nothing any more. Pending sends stay in the store and are settled after the next start."""

    def __init__(self, reason: StopReason) -> None:
        self.reason = reason
        super().__init__(f"the client has stopped: {_WHY[reason]}")


class NotRegistered(ClientError):
    """The store holds no account: register one first."""


class IdNotUsable(ClientError):
    """A client message id that is zero, was never issued here, or was used before (seed 003). Nothing was written."""


class IdsUnavailable(ClientError):
    """No client message id can be issued now: 256 are issued and unused, or the device's ordinals are exhausted."""


class TooMuchPending(ClientError):
    """The bound of pending sends is reached; some must be answered first."""


class SendRefused(ClientError):
    """Every recipient was refused; `refused` says why for each. Nothing of this send is or will be stored."""

    def __init__(self, cmid: ClientMessageId, refused: tuple[Refusal, ...]) -> None:
        self.client_message_id = cmid
        self.refused = refused
        codes = sorted({refusal.code for refusal in refused})
        super().__init__(f"refused: {', '.join(codes)}")


class SendUnknown(ClientError):
    """The send is older than 24 h and the mailbox shows no trace of it: it may have arrived or not. The app decides."""

    def __init__(self, cmid: ClientMessageId) -> None:
        self.client_message_id = cmid
        super().__init__("not known whether this send was accepted; resend() or forget() it")


class ServerNotUnderstood(ClientError):
    """An answer that is not as the contract says: a proxy's page, another service, a newer version."""


class InstanceChanged(ClientError):
    """The server is another instance than the one this device registered with: nothing was signed for it."""


class NoAnswer(ClientError):
    """The server could not be reached or did not answer in time. Of a write it is not known whether it happened."""


def is_final(code: ErrorCode) -> StopReason | None:
    """The reason to stop that an error code on the way in means, if it means one."""
    if code is ErrorCode.DEVICE_REVOKED:
        return StopReason.REVOKED
    return None
