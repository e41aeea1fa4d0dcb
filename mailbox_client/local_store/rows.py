"""How sends and messages lie in the SQLite tables, column by column."""

from __future__ import annotations

from typing import Any, Final

from mailbox_client.local_store import MessageState, SendState, StoredMessage, StoredSend
from mailbox_client.local_store.packing import pack_envelopes, pack_refusals, unpack_envelopes, unpack_refusals
from protocol.frames import Entry
from protocol.ids import ClientMessageId, MessageId

SEND_COLUMNS: Final = "client_message_id, send_order, envelopes, echo, state, created_at, refused, accepted_at"
MESSAGE_COLUMNS: Final = (
    "arrival, message_id, protocol_version, body, accepted_at, expires_at, pad, client_message_id, state, crashes"
)


def row_of(send: StoredSend) -> tuple[Any, ...]:
    """In the order of SEND_COLUMNS."""
    return (
        send.cmid,
        send.order,
        pack_envelopes(send.envelopes),
        send.echo,
        send.state,
        send.created_at,
        pack_refusals(send.refused),
        send.accepted_at,
    )


def send_of(row: tuple[Any, ...]) -> StoredSend:
    cmid, order, envelopes, echo, state, created_at, refused, accepted_at = row
    return StoredSend(
        ClientMessageId(cmid),
        order,
        unpack_envelopes(envelopes),
        bool(echo),
        SendState(state),
        created_at,
        unpack_refusals(refused),
        accepted_at,
    )


def message_of(row: tuple[Any, ...]) -> StoredMessage:
    arrival, mid, pv, body, accepted_at, expires_at, pad, cmid, state, crashes = row
    entry = Entry(MessageId(mid), pv, body, accepted_at, expires_at, pad, cmid)
    return StoredMessage(arrival, entry, MessageState(state), crashes)
