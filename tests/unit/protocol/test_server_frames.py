"""What servers send: written from prepared pieces, read tolerantly."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.codec import (
    decode_server_frame,
    encode_ack_result,
    encode_entry,
    encode_error,
    encode_mailbox_batch,
    encode_send_ack,
    encode_server_frame,
)
from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.frames import AckResult, Entry, Error, MailboxBatch, SendAck, SendResult, Welcome
from protocol.ids import MessageId
from protocol.limits import MAX_FRAME_BYTES, WireLimits
from protocol.packing import pack, unpack

ID: Any = b"i" * 16
T = 1_767_225_600_000
ENTRY: Any = Entry(ID, 1, b"sealed", T, T + 1)


def test_a_full_batch_with_every_field_is_read() -> None:
    entry = Entry(ID, 300, bytes(256), T, T + 1, 0, ID)
    batch = MailboxBatch(None, (entry,) * 256, "c" * 76, True, False)
    assert decode_server_frame(encode_server_frame(batch)) == batch


def test_an_entry_packed_once_goes_into_any_batch() -> None:
    packed = encode_entry(ENTRY)
    for ref, count in ((None, 1), (7, 3), (-1, 16), (2**40, 256)):
        data = encode_mailbox_batch(ref, [packed] * count, "cursor", False, True)
        assert decode_server_frame(data) == MailboxBatch(ref, (ENTRY,) * count, "cursor", False, True)


def test_an_echo_has_a_cmid_and_no_body_key() -> None:
    echo = Entry(ID, 0, None, T, T + 1, None, ID, echo=True)
    assert unpack(encode_entry(echo)) == {
        "mid": ID,
        "pv": 0,
        "echo": True,
        "cmid": ID,
        "accepted_at": T,
        "expires_at": T + 1,
    }


def test_an_entry_holds_only_the_fields_that_it_has() -> None:
    assert unpack(encode_entry(ENTRY)) == {
        "mid": ID,
        "pv": 1,
        "body": b"sealed",
        "accepted_at": T,
        "expires_at": T + 1,
    }


@pytest.mark.parametrize("count", [1, 2, 15, 16, 64])
def test_send_ack_answers_each_envelope_in_order(count: int) -> None:
    results = tuple(SendResult(MessageId(bytes([n + 1]) * 16), T + n, T + 2 * n) for n in range(count))
    data = encode_send_ack(ID, count % 2 == 0, results)
    assert decode_server_frame(data) == SendAck(ID, count % 2 == 0, results)


@pytest.mark.parametrize("count", [1, 15, 16, 100])
def test_ack_result_says_acked_for_each(count: int) -> None:
    assert decode_server_frame(encode_ack_result(-9, count)) == AckResult(-9, ("acked",) * count)


def test_an_error_says_what_the_exception_says() -> None:
    error = MailboxError(ErrorCode.MAILBOX_FULL, at=[0, 2], retry_after_ms=60_000, outcome=Outcome.NOT_COMMITTED)
    assert decode_server_frame(encode_error(error, "r1", cmid=ID)) == Error(
        ErrorCode.MAILBOX_FULL,
        error.message,
        True,
        "r1",
        None,
        ID,
        60_000,
        (0, 2),
        Outcome.NOT_COMMITTED,
    )
    assert unpack(encode_error(MailboxError(ErrorCode.BAD_FRAME, "bad"), "r2")) == (
        72,
        {"code": "BAD_FRAME", "message": "bad", "retryable": False, "request_id": "r2"},
    )


def test_an_unknown_frame_type_is_passed_over() -> None:
    assert decode_server_frame(pack((99, {"new": 1}))) is None


def test_an_unknown_error_code_counts_as_internal_and_keeps_its_retryable() -> None:
    frame = decode_server_frame(pack((72, {"code": "NEW", "message": "m", "retryable": False, "request_id": "r"})))
    assert frame == Error(ErrorCode.INTERNAL, "m", False, "r")


def test_an_unknown_outcome_counts_as_not_known() -> None:
    body = {"code": "INTERNAL", "message": "m", "retryable": True, "request_id": "r", "outcome": "partly"}
    frame = decode_server_frame(pack((72, body)))
    assert isinstance(frame, Error)
    assert frame.outcome is Outcome.UNKNOWN


def test_limits_of_a_later_version_are_ignored_and_missing_ones_are_malformed() -> None:
    welcome = Welcome("s", T, 45, T, WireLimits(1, 2, 3, 4, 5), "w", False)
    body = {**welcome._asdict(), "limits": {**welcome.limits._asdict(), "later": "x"}, "later": 1}
    assert decode_server_frame(pack((65, body))) == welcome
    del body["limits"]["ttl_s_min"]
    with pytest.raises(MailboxError):
        decode_server_frame(pack((65, body)))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ref": None, "entries": [], "cursor": "c", "more": 0, "caught_up": True},
        {"ref": True, "entries": [], "cursor": "c", "more": False, "caught_up": True},
        {"ref": None, "entries": [{}], "cursor": "c", "more": False, "caught_up": True},
        {"ref": None, "entries": [1], "cursor": "c", "more": False, "caught_up": True},
        {"ref": None, "entries": {}, "cursor": "c", "more": False, "caught_up": True},
    ],
)
def test_a_malformed_batch_is_bad_frame(body: dict[str, Any]) -> None:
    with pytest.raises(MailboxError) as caught:
        decode_server_frame(pack((67, body)))
    assert caught.value.code is ErrorCode.BAD_FRAME


def test_the_largest_single_entry_fits_a_frame() -> None:
    entry = ENTRY._replace(body=bytes(1_048_576))
    assert len(encode_mailbox_batch(None, [encode_entry(entry)], "c" * 76, False, True)) < MAX_FRAME_BYTES
