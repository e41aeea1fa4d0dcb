"""What became of a send, recipient by recipient."""

from __future__ import annotations

from typing import NamedTuple

from protocol.errors import ERRORS, ErrorCode
from protocol.ids import ClientMessageId, DeviceId, MessageId


class Accepted(NamedTuple):
    """One envelope that the server stored durably. `expires_at` is None where only the echo told of it."""

    to: DeviceId
    message_id: MessageId
    accepted_at: int
    expires_at: int | None


class Refusal(NamedTuple):
    """One envelope that the server refused: nothing of it is stored. `code` is a code of WIRE's table."""

    to: DeviceId
    message_id: MessageId
    code: str
    retry_after_ms: int | None

    @property
    def retryable(self) -> bool:
        """True if the same envelope may be accepted later, as a new send."""
        known = ErrorCode.__members__.get(self.code)
        return known is not None and ERRORS[known].retryable


class Receipt(NamedTuple):
    """A send whose outcome is certain: `accepted` is stored for its recipients, `refused` is not.

    `reconciled` says that no SEND_ACK came and that the mailbox's own entry proved it after a reconnect (seed 002).
    """

    client_message_id: ClientMessageId
    accepted: tuple[Accepted, ...]
    refused: tuple[Refusal, ...] = ()
    duplicate: bool = False
    reconciled: bool = False
