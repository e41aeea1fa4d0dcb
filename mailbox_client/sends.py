"""What an app may send, checked before anything is written, and what the store says became of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from mailbox_client.errors import IdNotUsable, SendRefused, SendUnknown
from mailbox_client.local_store import SendState, StoredSend
from mailbox_client.receipts import Accepted, Receipt
from protocol.frames import SendEnvelope
from protocol.ids import ClientMessageId, is_id
from protocol.limits import MAX_FRAME_BYTES, PAD_MAX, SEND_ENVELOPES_MAX, padded_size

ENVELOPE_OVERHEAD_BYTES: Final = 96  # an upper bound of what a frame adds to one body


def wire_bytes(envelopes: Iterable[SendEnvelope]) -> int:
    """An upper bound of the size of a SEND with these envelopes."""
    return sum(len(envelope.body) + ENVELOPE_OVERHEAD_BYTES for envelope in envelopes) + ENVELOPE_OVERHEAD_BYTES


def checked(envelopes: Sequence[SendEnvelope]) -> tuple[SendEnvelope, ...]:
    """The envelopes, if WIRE calls them well-formed. A malformed SEND would cost the connection: ValueError instead."""
    whole = tuple(envelopes)
    if not 1 <= len(whole) <= SEND_ENVELOPES_MAX:
        raise ValueError(f"a send has 1 to {SEND_ENVELOPES_MAX} envelopes")
    if len({envelope[:2] for envelope in whole}) != len(whole):
        raise ValueError("one recipient and message id twice in one send")
    for envelope in whole:
        if not (is_id(envelope.to) and is_id(envelope.mid)):
            raise ValueError("recipients and message ids are 16 bytes, not all zero")
        if envelope.pad is not None and not (
            0 <= envelope.pad <= PAD_MAX and len(envelope.body) == padded_size(envelope.pad)
        ):
            raise ValueError("pad does not give the size of the body")
    if wire_bytes(whole) > MAX_FRAME_BYTES:
        raise ValueError("the envelopes of one send do not fit one frame: send them apart")
    return whole


def outcome_of(cmid: ClientMessageId, stored: StoredSend | None) -> Receipt:
    """The receipt of a finished send; raises what its `send` raised."""
    if stored is None or stored.state is SendState.PENDING:
        raise IdNotUsable("nothing was sent under this id, or it is forgotten")
    if stored.state is SendState.UNKNOWN:
        raise SendUnknown(cmid)
    if stored.state is SendState.REFUSED or stored.accepted_at is None:
        raise SendRefused(cmid, stored.refused)
    accepted = tuple(Accepted(envelope.to, envelope.mid, stored.accepted_at, None) for envelope in stored.envelopes)
    return Receipt(cmid, accepted, stored.refused)
