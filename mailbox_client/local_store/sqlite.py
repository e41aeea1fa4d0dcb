"""The store for real devices: one SQLite file, WAL and full sync, so that what committed survives power loss."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from mailbox_client.local_store import (
    FINISHED,
    MessageState,
    SendState,
    StoredAccount,
    StoredMessage,
    StoredSend,
    StoreFault,
)
from mailbox_client.local_store.rows import MESSAGE_COLUMNS, SEND_COLUMNS, message_of, row_of, send_of
from mailbox_client.local_store.schema import REFETCHABLE, bring_up
from protocol.client_message_id import (
    LEASE_ORDINALS,
    OrdinalLease,
    high_water_from_bytes,
    high_water_to_bytes,
    next_lease,
)
from protocol.frames import Entry
from protocol.ids import ClientMessageId, DeviceId, IdentityId, InstanceId, MessageId

BUSY_TIMEOUT_S: Final = 5.0

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _faults(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Driver errors leave the store as StoreFault, by name and without their text: it may name a path or a value."""

    @wraps(method)
    def guarded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return method(*args, **kwargs)
        except sqlite3.Error as error:
            raise _fault(error) from error

    return guarded


def _fault(error: sqlite3.Error) -> StoreFault:
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    return StoreFault(f"the local store failed: {name}")


class SqliteStore:
    """A LocalStore in one file, which is created readable by its owner only: it holds the device's key.

    Calls may come from any thread, one at a time; ordinals may be reserved by any number of processes at once.
    Raises StoreFault when the file cannot be opened or written.
    """

    blocks = True

    @_faults
    def __init__(self, path: str | Path) -> None:
        if str(path) != ":memory:":
            try:
                os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            except OSError as error:
                raise StoreFault(f"the local store cannot be opened: {error.strerror}") from error
        self._db = sqlite3.connect(
            str(path), timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        with self.transaction():
            self.was_reset = bring_up(self._db)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise _fault(error) from error
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise _fault(error) from error
            raise

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection in use, for an app that keeps its own tables here and writes them together with a confirm."""
        return self._db

    def close(self) -> None:
        self._db.close()

    @_faults
    def reset(self) -> None:
        for table in REFETCHABLE:
            self._db.execute(f"DELETE FROM {table}")  # noqa: S608 - a constant name

    # -- account, cursor, server time

    @_faults
    def account(self) -> StoredAccount | None:
        row = self._db.execute(
            "SELECT url, instance_id, identity_id, device_id, device_seed, identity_bundle FROM local_account"
        ).fetchone()
        if row is None:
            return None
        url, instance, identity, device, seed, bundle = row
        return StoredAccount(url, InstanceId(instance), IdentityId(identity), DeviceId(device), seed, bundle)

    @_faults
    def save_account(self, account: StoredAccount) -> None:
        self._db.execute("INSERT OR REPLACE INTO local_account VALUES (1, ?, ?, ?, ?, ?, ?)", account)

    @_faults
    def cursor(self) -> str | None:
        row = self._db.execute("SELECT cursor FROM local_cursor").fetchone()
        return row[0] if row is not None else None

    @_faults
    def set_cursor(self, cursor: str | None) -> None:
        self._db.execute("INSERT OR REPLACE INTO local_cursor VALUES (1, ?)", (cursor,))

    @_faults
    def noted_ms(self, name: str) -> int | None:
        row = self._db.execute("SELECT instant_ms FROM local_instant WHERE name = ?", (name,)).fetchone()
        return row[0] if row is not None else None

    @_faults
    def note_ms(self, name: str, instant_ms: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO local_instant VALUES (?, ?)", (name, instant_ms))

    # -- client message ids

    def reserve_ordinals(
        self, device: DeviceId, *, server_now_ms: int | None = None, ordinals: int = LEASE_ORDINALS, skip: int = 0
    ) -> OrdinalLease:
        # BEGIN IMMEDIATE takes the write lock before the read: no other process can choose from the same high water.
        with self.transaction():
            row = self._db.execute(
                "SELECT high_water FROM local_client_message_id WHERE device_id = ?", (device,)
            ).fetchone()
            high_water = high_water_from_bytes(row[0]) if row is not None else None
            lease = next_lease(high_water, server_now_ms=server_now_ms, ordinals=ordinals, skip=skip)
            self._db.execute(
                "INSERT OR REPLACE INTO local_client_message_id VALUES (?, ?)",
                (device, high_water_to_bytes(lease.last)),
            )
        return lease

    # -- sends

    @_faults
    def add_send(self, send: StoredSend) -> None:
        self._db.execute(
            f"INSERT INTO local_pending ({SEND_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - a constant list
            row_of(send),
        )

    @_faults
    def save_send(self, send: StoredSend) -> None:
        if send.state in FINISHED:
            send = send._replace(envelopes=tuple(envelope._replace(body=b"") for envelope in send.envelopes))
        cmid, _order, *columns = row_of(send)
        self._db.execute(
            "UPDATE local_pending SET envelopes = ?, echo = ?, state = ?, created_at = ?, refused = ?, accepted_at = ?"
            " WHERE client_message_id = ?",
            (*columns, cmid),
        )

    @_faults
    def send(self, cmid: ClientMessageId) -> StoredSend | None:
        row = self._db.execute(
            f"SELECT {SEND_COLUMNS} FROM local_pending WHERE client_message_id = ?",  # noqa: S608 - a constant list
            (cmid,),
        ).fetchone()
        return send_of(row) if row is not None else None

    @_faults
    def sends(self, *states: SendState) -> list[StoredSend]:
        marks = ", ".join("?" * len(states))
        rows = self._db.execute(
            f"SELECT {SEND_COLUMNS} FROM local_pending WHERE state IN ({marks}) ORDER BY send_order",  # noqa: S608 - constants
            states,
        )
        return [send_of(row) for row in rows]

    @_faults
    def last_send_order(self) -> int:
        # AUTOINCREMENT's own memory: it survives the pruning of the rows.
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'local_pending'").fetchone()
        return row[0] if row is not None else 0

    # -- messages

    @_faults
    def message_state(self, mid: MessageId) -> MessageState | None:
        row = self._db.execute("SELECT state FROM local_message WHERE message_id = ?", (mid,)).fetchone()
        return MessageState(row[0]) if row is not None else None

    @_faults
    def hold(self, entry: Entry, seen_at: int) -> None:
        self._db.execute(
            "INSERT INTO local_message (message_id, state, seen_at, protocol_version, body, accepted_at, expires_at,"
            " pad, client_message_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                entry.mid,
                MessageState.HELD,
                seen_at,
                entry.pv,
                entry.body,
                entry.accepted_at,
                entry.expires_at,
                entry.pad,
                entry.cmid,
            ),
        )

    @_faults
    def held(self, limit: int) -> list[StoredMessage]:
        rows = self._db.execute(
            f"SELECT {MESSAGE_COLUMNS} FROM local_message WHERE state = ? ORDER BY arrival LIMIT ?",  # noqa: S608 - constants
            (MessageState.HELD, limit),
        )
        return [message_of(row) for row in rows]

    @_faults
    def in_state(self, state: MessageState) -> list[MessageId]:
        rows = self._db.execute("SELECT message_id FROM local_message WHERE state = ? ORDER BY arrival", (state,))
        return [MessageId(mid) for (mid,) in rows]

    @_faults
    def set_state(self, mids: Iterable[MessageId], state: MessageState) -> None:
        if state is MessageState.CONFIRMED:
            sql = "UPDATE local_message SET state = ?, body = NULL, crashes = 0 WHERE message_id = ?"
        else:
            sql = "UPDATE local_message SET state = ? WHERE message_id = ?"
        self._db.executemany(sql, [(state, mid) for mid in mids])

    @_faults
    def count_crash(self, crashes_max: int) -> list[MessageId]:
        rows = self._db.execute(
            "SELECT message_id FROM local_message WHERE state = ? AND crashes + 1 >= ? ORDER BY arrival",
            (MessageState.HANDED_OVER, crashes_max),
        ).fetchall()
        self._db.execute(
            "UPDATE local_message SET crashes = crashes + 1, state = CASE WHEN crashes + 1 >= ? THEN ? ELSE ? END"
            " WHERE state = ?",
            (crashes_max, MessageState.DEFERRED, MessageState.HELD, MessageState.HANDED_OVER),
        )
        return [MessageId(mid) for (mid,) in rows]

    # -- ACKs owed

    @_faults
    def owe_ack(self, mids: Iterable[MessageId]) -> None:
        self._db.executemany("INSERT OR IGNORE INTO local_ack_owed VALUES (?)", [(mid,) for mid in mids])

    @_faults
    def acks_owed(self) -> list[MessageId]:
        return [MessageId(mid) for (mid,) in self._db.execute("SELECT message_id FROM local_ack_owed")]

    @_faults
    def ack_paid(self, mids: Sequence[MessageId]) -> None:
        self._db.executemany("DELETE FROM local_ack_owed WHERE message_id = ?", [(mid,) for mid in mids])

    # -- dedup memory

    @_faults
    def prune(self, before_ms: int) -> None:
        self._db.execute(
            "DELETE FROM local_message WHERE state = 4 AND seen_at < ?", (before_ms,)
        )  # the constant matches the partial index
        self._db.execute(
            "DELETE FROM local_pending WHERE state <> ? AND coalesce(created_at, 0) < ?", (SendState.PENDING, before_ms)
        )
