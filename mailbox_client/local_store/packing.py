"""Envelopes and entries as one column each. The shapes are stored: a number never changes its meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mailbox_client.receipts import Refusal
from protocol.frames import SendEnvelope
from protocol.ids import DeviceId, MessageId
from protocol.packing import pack, unpack


def pack_envelopes(envelopes: Sequence[SendEnvelope]) -> bytes:
    return pack([list(envelope) for envelope in envelopes])


def unpack_envelopes(packed: bytes) -> tuple[SendEnvelope, ...]:
    rows: list[list[Any]] = unpack(packed)
    return tuple(SendEnvelope(*row) for row in rows)


def pack_refusals(refusals: Sequence[Refusal]) -> bytes:
    return pack([list(refusal) for refusal in refusals])


def unpack_refusals(packed: bytes) -> tuple[Refusal, ...]:
    rows: list[list[Any]] = unpack(packed)
    return tuple(Refusal(DeviceId(to), MessageId(mid), code, after) for to, mid, code, after in rows)
