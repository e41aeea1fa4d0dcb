"""What the SDK keeps on the device, and the promises that both stores keep (one contract test suite for both).

Everything that must outlive the process is here: the device's keys, the durable cursor, pending sends, received
messages with their two states "handed over" and "confirmed" (seed 002, DESIGN "The client SDK"), the ACKs still owed,
and the high water of the client message ids (seed 003). Calls are synchronous and short; a store is used by one
engine at a time, its ordinals by any number of processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from mailbox_client.receipts import Refusal
from protocol.client_message_id import LEASE_ORDINALS, OrdinalLease
from protocol.frames import Entry, SendEnvelope
from protocol.ids import ClientMessageId, DeviceId, IdentityId, InstanceId, MessageId

CRASHES_MAX: Final = 3  # after so many crashes with a message in the app's hands it is deferred


class StoreFault(Exception):
    """The local store cannot do what it must: disk full, damaged file, another process holding it too long.

    Nothing of the failed transaction is kept. The engine that met it is thrown away, as after a crash.
    """


class StoredAccount(NamedTuple):
    """Who this device is. `device_seed` is its Ed25519 private seed: the store's file is as secret as that key."""

    url: str
    instance_id: InstanceId
    identity_id: IdentityId
    device_id: DeviceId
    device_seed: bytes
    identity_bundle: bytes


class SendState(IntEnum):
    """Stored numbers: they never change their meaning."""

    PENDING = 1
    CONFIRMED = 2
    REFUSED = 3
    UNKNOWN = 4  # older than client_pending_max_age and not found in the mailbox: the app decides


FINISHED: Final = frozenset({SendState.CONFIRMED, SendState.REFUSED})


class StoredSend(NamedTuple):
    """One send from the app's call to its outcome. `order` rises; `envelopes` are those not refused."""

    cmid: ClientMessageId
    order: int
    envelopes: tuple[SendEnvelope, ...]
    echo: bool
    state: SendState
    created_at: int | None  # server time in ms; None: no server time was known yet, so no byte of it left the device
    refused: tuple[Refusal, ...] = ()
    accepted_at: int | None = None  # of a pending one: its echo came, so it is accepted whatever happens


class MessageState(IntEnum):
    """Stored numbers: they never change their meaning."""

    HELD = 1  # durably here, not given to the app
    HANDED_OVER = 2  # the app has it and has not confirmed: handed over again after a crash
    DEFERRED = 3  # the app could not finish it, or crashed on it three times
    CONFIRMED = 4  # done; the body is gone, the id stays as dedup memory


class StoredMessage(NamedTuple):
    """One received message with its place in the order of arrival."""

    arrival: int
    entry: Entry
    state: MessageState
    crashes: int


class LocalStore(Protocol):
    """The promises of a store. All methods but `close` and `reserve_ordinals` are called inside `transaction()`.

    What a transaction wrote is durable when its block ends (SQLite: WAL with full sync), and undone if it raises.
    """

    @property
    def blocks(self) -> bool:
        """True if calls wait for a disk, so that an event loop should make them in a thread."""
        ...

    def transaction(self) -> AbstractContextManager[None]: ...

    def close(self) -> None: ...

    @property
    def was_reset(self) -> bool:
        """True if opening met a newer schema and dropped messages and cursors (never the ordinals' high water)."""
        ...

    def reset(self) -> None:
        """Forget messages, cursors and what is owed; keep the account, pending sends and the high water."""
        ...

    # -- account, cursor, server time

    def account(self) -> StoredAccount | None: ...

    def save_account(self, account: StoredAccount) -> None: ...

    def cursor(self) -> str | None: ...

    def set_cursor(self, cursor: str | None) -> None: ...

    def noted_ms(self, name: str) -> int | None:
        """An instant that the SDK noted under this name, in server time."""
        ...

    def note_ms(self, name: str, instant_ms: int) -> None: ...

    # -- client message ids (seed 003)

    def reserve_ordinals(
        self, device: DeviceId, *, server_now_ms: int | None = None, ordinals: int = LEASE_ORDINALS, skip: int = 0
    ) -> OrdinalLease:
        """Reserve ordinals as `protocol.client_message_id.next_lease` places them above the stored high water.

        A transaction of its own, atomic against every other process on the same store; on return it is durable.
        Raises OrdinalsExhausted, CorruptHighWater (fail closed) or StoreFault, and then nothing was reserved.
        """
        ...

    # -- sends

    def add_send(self, send: StoredSend) -> None: ...

    def save_send(self, send: StoredSend) -> None:
        """Write all of an existing send but its order. Once confirmed or refused it loses its bodies."""
        ...

    def send(self, cmid: ClientMessageId) -> StoredSend | None: ...

    def sends(self, *states: SendState) -> list[StoredSend]:
        """Those in one of these states, in order."""
        ...

    def last_send_order(self) -> int:
        """The highest order ever given, also of sends that were pruned; 0 if there was none."""
        ...

    # -- messages

    def message_state(self, mid: MessageId) -> MessageState | None: ...

    def hold(self, entry: Entry, seen_at: int) -> None:
        """Keep a new message as HELD. Its id must be new to the store."""
        ...

    def held(self, limit: int) -> list[StoredMessage]:
        """The oldest HELD messages in order of arrival."""
        ...

    def in_state(self, state: MessageState) -> list[MessageId]:
        """The ids in a state, in order of arrival."""
        ...

    def set_state(self, mids: Iterable[MessageId], state: MessageState) -> None:
        """Move messages to a state; CONFIRMED drops their bodies and clears their crashes. Unknown ids are passed."""
        ...

    def count_crash(self, crashes_max: int) -> list[MessageId]:
        """After a crash: what was handed over is HELD again with one crash more, or DEFERRED at `crashes_max`.

        Returns those that were deferred.
        """
        ...

    # -- ACKs owed

    def owe_ack(self, mids: Iterable[MessageId]) -> None: ...

    def acks_owed(self) -> list[MessageId]: ...

    def ack_paid(self, mids: Sequence[MessageId]) -> None: ...

    # -- dedup memory

    def prune(self, before_ms: int) -> None:
        """Forget confirmed messages seen, and finished sends created, before this server time."""
        ...
