"""The answers of the HTTP door have the fields that the contract names, in both forms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol import http_answers
from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.frames import Entry, SendResult
from protocol.http_values import BodyFormat, render_body
from protocol.ids import to_text
from protocol.limits import WireLimits
from protocol.packing import unpack

ID: Any = b"i" * 16
CMID: Any = b"c" * 16
KEY = b"k" * 32


def test_a_problem_document_says_what_the_error_says() -> None:
    error = MailboxError(
        ErrorCode.MAILBOX_FULL, "full.", at=[1, 2], retry_after_ms=60_001, outcome=Outcome.NOT_COMMITTED
    )
    assert json.loads(render_body(http_answers.problem(error, "r1"), BodyFormat.JSON)) == {
        "title": "Too Many Requests",
        "status": 429,
        "detail": "full.",
        "code": "MAILBOX_FULL",
        "retryable": True,
        "request_id": "r1",
        "outcome": "not_committed",
        "at": [1, 2],
        "retry_after_ms": 60_001,
    }
    assert http_answers.retry_after_header(error) == "61"


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_makes_a_problem_document_without_absent_members(code: ErrorCode) -> None:
    document = http_answers.problem(MailboxError(code), "r1")
    assert set(document) == {"title", "status", "detail", "code", "retryable", "request_id"}
    assert http_answers.retry_after_header(MailboxError(code)) is None


@pytest.mark.parametrize(("retry_after_ms", "header"), [(0, "1"), (1, "1"), (1_000, "1"), (1_001, "2")])
def test_retry_after_is_whole_seconds_and_never_too_early(retry_after_ms: int, header: str) -> None:
    error = MailboxError(ErrorCode.RATE_LIMITED, retry_after_ms=retry_after_ms)
    assert http_answers.retry_after_header(error) == header


def test_a_mailbox_page_has_bodies_and_echoes_have_none() -> None:
    page = http_answers.mailbox(
        (Entry(ID, 1, b"sealed", 1, 2, 0, CMID), Entry(ID, 0, None, 1, 2, None, CMID, True), Entry(ID, 1, b"", 1, 2)),
        "cursor",
        False,
        "watermark",
        True,
    )
    rendered = json.loads(render_body(page, BodyFormat.JSON))
    assert rendered == {
        "entries": [
            {
                "message_id": to_text(ID),
                "protocol_version": 1,
                "body": to_text(b"sealed"),
                "accepted_at": 1,
                "expires_at": 2,
                "pad": 0,
                "client_message_id": to_text(CMID),
            },
            {
                "message_id": to_text(ID),
                "protocol_version": 0,
                "echo": True,
                "accepted_at": 1,
                "expires_at": 2,
                "client_message_id": to_text(CMID),
            },
            {"message_id": to_text(ID), "protocol_version": 1, "body": "", "accepted_at": 1, "expires_at": 2},
        ],
        "cursor": "cursor",
        "more": False,
        "watermark": "watermark",
        "caught_up": True,
    }
    assert unpack(render_body(page, BodyFormat.MSGPACK))["entries"][0]["body"] == b"sealed"


def test_the_instance_tells_its_limits_and_keys() -> None:
    answer = http_answers.instance(
        ID, [http_answers.SigningKey("k1", KEY)], 3, "open", (1, 2), WireLimits(1, 2, 3, 4, 5), b"\4" * 65
    )
    rendered = json.loads(render_body(answer, BodyFormat.JSON))
    assert rendered["signing_keys"] == [{"kid": "k1", "public_key": to_text(KEY)}]
    assert rendered["protocol_versions"] == [1, 2]
    assert rendered["vapid_public_key"] == to_text(b"\4" * 65)
    assert set(rendered["limits"]) == {
        "max_frame_bytes",
        "envelope_bytes_max",
        "ttl_s_min",
        "ttl_s_default",
        "ttl_s_max",
        "sends_in_flight",
        "bytes_in_flight",
        "batch_entries_max",
        "ack_max",
    }


def test_the_public_address_is_text_in_both_forms() -> None:
    answer = http_answers.registered(ID, CMID)
    assert answer["public_address"] == to_text(ID)
    assert unpack(render_body(answer, BodyFormat.MSGPACK))["identity_id"] == ID


def test_the_other_answers_have_their_fields() -> None:
    assert http_answers.challenge(KEY, "context", 5) == {"challenge": KEY, "context": "context", "expires_at": 5}
    assert set(http_answers.token("t", 1, 2, 3)) == {"token", "expires_at", "expires_in_s", "reauth_before"}
    device = http_answers.DeviceView(ID, KEY, "active", 5)
    assert http_answers.devices([device]) == {"devices": [device._asdict()]}
    assert http_answers.device_added(ID) == {"device_id": ID}
    assert http_answers.prekeys(7) == {"one_time_left": 7}
    claimed = http_answers.ClaimedDevice(ID, KEY, None, {"key_id": 1, "public_key": KEY})
    assert http_answers.prekey_claim(b"bundle", [claimed]) == {
        "identity_public_bundle": b"bundle",
        "devices": [claimed._asdict()],
    }
    assert http_answers.submitted(True, (SendResult(ID, 1, 2),)) == {
        "duplicate": True,
        "results": [{"message_id": ID, "accepted_at": 1, "expires_at": 2}],
    }
    assert http_answers.mailbox_status(0, 0, None) == {
        "pending_entries": 0,
        "pending_bytes": 0,
        "oldest_accepted_at": None,
    }
    assert http_answers.acked(2) == {"results": ["acked", "acked"]}
    assert http_answers.push_route("fcm", "active", ID, 5) == {
        "provider": "fcm",
        "status": "active",
        "wake_route_id": ID,
        "created_at": 5,
    }
