"""Ids, envelopes and entries for tests of the client."""

from __future__ import annotations

from protocol.frames import Entry, SendEnvelope
from protocol.ids import ClientMessageId, DeviceId, MessageId

NOW_MS = 1_800_000_000_000
WEEK_MS = 7 * 86_400_000


def device(number: int = 1) -> DeviceId:
    return DeviceId(b"device" + number.to_bytes(10, "big"))


def mid(number: int = 1) -> MessageId:
    return MessageId(b"message" + number.to_bytes(9, "big"))


def cmid(number: int = 1) -> ClientMessageId:
    return ClientMessageId(b"cmid" + number.to_bytes(12, "big"))


def envelope(number: int = 1, *, to: DeviceId | None = None, body: bytes = b"sealed") -> SendEnvelope:
    return SendEnvelope(to if to is not None else device(9), mid(number), 1, body)


def entry(
    number: int = 1, *, body: bytes = b"sealed", sent_as: ClientMessageId | None = None, accepted_at: int = NOW_MS
) -> Entry:
    return Entry(mid(number), 1, body, accepted_at, accepted_at + WEEK_MS, cmid=sent_as)


def echo(number: int, sent_as: ClientMessageId, *, accepted_at: int = NOW_MS) -> Entry:
    return Entry(mid(number), 0, None, accepted_at, accepted_at + WEEK_MS, cmid=sent_as, echo=True)
