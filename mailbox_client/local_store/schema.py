"""The SQLite schema of the local store: version 2, the way from version 1, and the safe way from a newer one.

Version 1 is the schema without the high water of the client message ids (seed 003, DESIGN "The client SDK").
"""

from __future__ import annotations

import sqlite3
from typing import Final

SCHEMA_VERSION: Final = 2

_VERSION_1: Final = """
CREATE TABLE local_account (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    url TEXT NOT NULL,
    instance_id BLOB NOT NULL,
    identity_id BLOB NOT NULL,
    device_id BLOB NOT NULL,
    device_seed BLOB NOT NULL,
    identity_bundle BLOB NOT NULL
);
CREATE TABLE local_cursor (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), cursor TEXT);
CREATE TABLE local_instant (name TEXT PRIMARY KEY, instant_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE local_pending (
    send_order INTEGER PRIMARY KEY AUTOINCREMENT,
    client_message_id BLOB NOT NULL UNIQUE,
    envelopes BLOB NOT NULL,
    echo INTEGER NOT NULL,
    state INTEGER NOT NULL,
    created_at INTEGER,
    refused BLOB NOT NULL,
    accepted_at INTEGER
);
CREATE INDEX local_pending_state ON local_pending (state, send_order);
CREATE TABLE local_message (
    arrival INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id BLOB NOT NULL UNIQUE,
    state INTEGER NOT NULL,
    crashes INTEGER NOT NULL DEFAULT 0,
    seen_at INTEGER NOT NULL,
    protocol_version INTEGER NOT NULL,
    body BLOB,
    accepted_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    pad INTEGER,
    client_message_id BLOB
);
CREATE INDEX local_message_state ON local_message (state, arrival);
CREATE INDEX local_message_seen ON local_message (seen_at) WHERE state = 4;
CREATE TABLE local_ack_owed (message_id BLOB PRIMARY KEY) WITHOUT ROWID;
"""

# Apart from everything that can be fetched again: a reset never touches it, since it is the identity of what was sent.
_HIGH_WATER: Final = """
CREATE TABLE IF NOT EXISTS local_client_message_id (device_id BLOB PRIMARY KEY, high_water BLOB NOT NULL) WITHOUT ROWID;
"""

# What a reset may take: all of it can be fetched again from the mailbox.
REFETCHABLE: Final = ("local_cursor", "local_instant", "local_message", "local_ack_owed")
_KEPT: Final = ("local_account", "local_pending")


def create_version_1(connection: sqlite3.Connection) -> None:
    """Make the oldest schema; the tests of the way forward start from it."""
    _run(connection, _VERSION_1)
    connection.execute("PRAGMA user_version = 1")


def bring_up(connection: sqlite3.Connection) -> bool:
    """Make or migrate the schema inside the caller's transaction; True if a newer one had to be reset.

    A newer schema, written by a later SDK: what can be fetched again is dropped and made anew, the account and pending
    sends stay if their columns are those known here, the high water always stays.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    was_reset: bool = version > SCHEMA_VERSION
    if version == 0:
        create_version_1(connection)
    elif was_reset:
        _reset_newer(connection)
    if version != SCHEMA_VERSION:
        _run(connection, _HIGH_WATER)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    return was_reset


def _reset_newer(connection: sqlite3.Connection) -> None:
    present = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    known = sqlite3.connect(":memory:")
    try:
        create_version_1(known)
        for table in (*REFETCHABLE, *_KEPT):
            if table in present and (table in REFETCHABLE or not _columns(known, table) <= _columns(connection, table)):
                connection.execute(f"DROP TABLE {table}")
                present.discard(table)
        for kind, name, table, sql in known.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema"):
            if sql is None or name.startswith("sqlite_") or table in present:
                continue
            if kind == "index":
                connection.execute(f"DROP INDEX IF EXISTS {name}")
            connection.execute(sql)
    finally:
        known.close()


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def _run(connection: sqlite3.Connection, script: str) -> None:
    # Not executescript(): it would commit the transaction that this belongs to.
    for statement in script.split(";"):
        if statement.strip():
            connection.execute(statement)
