"""What an app may send, checked before anything is written, and what the store says became of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from mailbox_client.errors import IdNotUsable, SendRefused, SendUnknown
from mailbox_client.local_store import SendState, StoredSend
from mailbox_client.receipts import Accepted, Receipt
from protocol.frames import SendEnvelope
from protocol.ids import ClientMessageId, is_id
from protocol.limits import MAX_FRAME_BYTES, PAD_MAX, SEND_ENVELOPES_MAX, padded_size
from protocol.packing import INT64_MAX, INT64_MIN

ENVELOPE_OVERHEAD_BYTES: Final = 96  # an upper bound of what a frame adds to one body


def wire_bytes(envelopes: Iterable[SendEnvelope]) -> int:
    """An upper bound of the size of a SEND with these envelopes."""
    return sum(len(envelope.body) + ENVELOPE_OVERHEAD_BYTES for envelope in envelopes) + ENVELOPE_OVERHEAD_BYTES


def checked(envelopes: Sequence[SendEnvelope]) -> tuple[SendEnvelope, ...]:
    """The envelopes, if WIRE calls them well-formed; TypeError or ValueError otherwise: they would cost the connection.

    Whatever gets past here is kept in the store, so anything that no frame can hold must not.
    """
    if isinstance(envelopes, Mapping) or not all(isinstance(envelope, SendEnvelope) for envelope in envelopes):
        raise TypeError("this takes a list of SendEnvelope; `send` takes {recipient device: body}")
    whole = tuple(envelopes)
    if not 1 <= len(whole) <= SEND_ENVELOPES_MAX:
        raise ValueError(f"a send has 1 to {SEND_ENVELOPES_MAX} envelopes")
    for envelope in whole:
        _check(envelope)
    if len({envelope[:2] for envelope in whole}) != len(whole):
        raise ValueError("one recipient and message id twice in one send")
    if wire_bytes(whole) > MAX_FRAME_BYTES:
        raise ValueError("the envelopes of one send do not fit one frame: send them apart")
    return whole


def _check(envelope: SendEnvelope) -> None:
    if not (is_id(envelope.to) and is_id(envelope.mid)):
        raise ValueError("recipients and message ids are 16 bytes, not all zero: a device's id, not its address")
    if type(envelope.body) is not bytes:
        raise TypeError(f"a body is bytes, sealed by the app, not {type(envelope.body).__name__}")
    for name, value in (("protocol_version", envelope.pv), ("ttl_s", envelope.ttl_s), ("pad", envelope.pad)):
        if value is None and name != "protocol_version":
            continue
        if type(value) is not int:
            raise TypeError(f"{name} is an int, not {type(value).__name__}")
        if not INT64_MIN <= value <= INT64_MAX:
            raise ValueError(f"{name} is beyond 64 bits")
    if envelope.pad is not None:
        if not 0 <= envelope.pad <= PAD_MAX:
            raise ValueError(f"pad is 0 to {PAD_MAX}")
        if len(envelope.body) != padded_size(envelope.pad):
            raise ValueError(f"with pad={envelope.pad} a body is {padded_size(envelope.pad)} bytes, sealed")


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
