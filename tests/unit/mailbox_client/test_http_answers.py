"""What the HTTP door may answer, and what a proxy may answer instead."""

from __future__ import annotations

import asyncio
import json

import pytest

from mailbox_client.errors import NoAnswer, ServerNotUnderstood
from mailbox_client.http_answers import (
    ClaimedDevice,
    LastResortKey,
    MailboxStatus,
    OneTimeKey,
    read_claim,
    read_page,
    read_status,
    read_token,
)
from mailbox_client.http_refusals import understood
from mailbox_client.transport_http import MailboxHttp
from protocol import http_answers
from protocol.errors import ErrorCode, MailboxError, Outcome
from protocol.http_values import BodyFormat, render_body
from tests.support.client_values import cmid, device, echo, entry
from tests.support.http_stub import answering


def packed(value: object) -> bytes:
    return render_body(value, BodyFormat.MSGPACK)


def test_a_page_comes_out_as_the_server_put_it_in() -> None:
    entries = (entry(1, sent_as=cmid(1))._replace(pad=1), echo(2, cmid(2)), entry(3, body=b""))
    answer = understood(200, packed(http_answers.mailbox(entries, "cursor", True, "watermark", False)), "")
    assert read_page(answer) == (entries, "cursor", True, "watermark", False)


def test_a_page_as_large_as_may_be_is_understood() -> None:
    entries = [entry(number, sent_as=cmid(1))._replace(pad=1) for number in range(1, 257)]
    answer = understood(200, packed(http_answers.mailbox(entries, "cursor", True, "watermark", False)), "")
    assert len(read_page(answer).entries) == 256


def test_a_token_tells_the_servers_time() -> None:
    token = read_token(understood(201, packed(http_answers.token("t", 1_000_900_000, 900, 1_000_840_000)), ""))
    assert token.server_now_ms == 1_000_000_000


def test_a_claim_says_where_only_the_last_resort_is_left() -> None:
    keys = ({"key_id": 9, "public_key": b"l", "signature": b"s"}, {"key_id": 1, "public_key": b"o"})
    claimed = [
        http_answers.ClaimedDevice(device(1), b"k" * 32, *keys),
        http_answers.ClaimedDevice(device(2), b"k" * 32, None, None),
    ]
    assert read_claim(understood(201, packed(http_answers.prekey_claim(b"bundle", claimed)), "")).devices == (
        ClaimedDevice(device(1), b"k" * 32, LastResortKey(9, b"l", b"s"), OneTimeKey(1, b"o")),
        ClaimedDevice(device(2), b"k" * 32, None, None),
    )


def test_an_empty_mailbox_has_no_oldest_entry() -> None:
    assert read_status(understood(200, packed(http_answers.mailbox_status(0, 0, None)), "")) == MailboxStatus(
        0, 0, None
    )


def test_a_refusal_comes_out_as_it_was_made() -> None:
    error = MailboxError(ErrorCode.MAILBOX_FULL, at=(0, 2), retry_after_ms=60_000, outcome=Outcome.NOT_COMMITTED)
    with pytest.raises(MailboxError) as raised:
        understood(429, packed(http_answers.problem(error, "request")), "60")
    assert raised.value.code is ErrorCode.MAILBOX_FULL
    assert raised.value.at == (0, 2)
    assert raised.value.retry_after_ms == 60_000
    assert raised.value.outcome is Outcome.NOT_COMMITTED


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_an_overload_page_of_a_proxy_asks_for_patience_and_leaves_the_outcome_open(status: int) -> None:
    with pytest.raises(MailboxError) as raised:
        understood(status, b"<html>Bad Gateway</html>", "7")
    assert raised.value.code is ErrorCode.UNAVAILABLE
    assert raised.value.retry_after_ms == 7_000
    assert raised.value.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>Welcome to the hotel's network</html>"),
        (200, b"\x93\x01\x02\x03"),
        (302, b""),
        (404, json.dumps({"code": "NOT_FOUND"}).encode()),
        (400, packed({"code": "FROM_THE_FUTURE"})),
        (200, packed({"a": 1})[:-1]),
    ],
)
def test_what_is_not_of_the_contract_is_said_to_be_so(status: int, body: bytes) -> None:
    with pytest.raises(ServerNotUnderstood):
        understood(status, body, "")


@pytest.mark.parametrize(
    "page",
    [
        {},
        {"entries": [{}], "cursor": "c", "more": False, "watermark": "w", "caught_up": True},
        {"entries": 5, "cursor": "c", "more": False, "watermark": "w", "caught_up": True},
        {"entries": [], "cursor": 5, "more": False, "watermark": "w", "caught_up": True},
        {"entries": [], "cursor": "c", "more": 0, "watermark": "w", "caught_up": True},
    ],
)
def test_a_page_with_something_missing_or_wrong_is_not_taken(page: dict[str, object]) -> None:
    with pytest.raises(ServerNotUnderstood):
        read_page(understood(200, packed(page), ""))


# -- the call itself


def http_answer(status: str, body: bytes, headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{headers}\r\n".encode() + body


async def test_no_server_is_no_answer() -> None:
    async with answering(b"") as port:
        pass
    async with MailboxHttp(f"http://127.0.0.1:{port}") as http:
        with pytest.raises(NoAnswer):
            await http.instance()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200", b"SSH-2.0-OpenSSH\r\n\r\n"])
async def test_half_an_answer_is_no_answer(answer: bytes) -> None:
    async with answering(answer) as port, MailboxHttp(f"http://127.0.0.1:{port}") as http:
        with pytest.raises(NoAnswer):
            await http.instance()


async def test_a_redirect_is_not_followed() -> None:
    moved = http_answer("302 Found", b"", "Location: http://127.0.0.1:1/\r\n")
    async with answering(moved) as port, MailboxHttp(f"http://127.0.0.1:{port}") as http:
        with pytest.raises(ServerNotUnderstood):
            await http.instance()


async def test_an_answer_without_end_is_cut_off() -> None:
    async with (
        answering(http_answer("200 OK", bytes(9 * 1024 * 1024))) as port,
        MailboxHttp(f"http://127.0.0.1:{port}") as http,
    ):
        with pytest.raises(ServerNotUnderstood, match="larger"):
            await http.instance()


async def test_a_token_is_fetched_once_for_many_calls_and_again_when_it_is_refused() -> None:
    expired = MailboxError(ErrorCode.TOKEN_EXPIRED)
    refusal = http_answer("401 Unauthorized", packed(http_answers.problem(expired, "request")))
    async with answering(refusal) as port, MailboxHttp(f"http://127.0.0.1:{port}") as http:
        fetched = 0

        async def source() -> None:
            nonlocal fetched
            fetched += 1
            await asyncio.sleep(0)
            http.token = f"token {fetched}"

        http.token_source = source
        calls = await asyncio.gather(*[http.mailbox_status() for _ in range(5)], return_exceptions=True)
        assert [type(one) for one in calls] == [MailboxError] * 5
        assert fetched == 2
