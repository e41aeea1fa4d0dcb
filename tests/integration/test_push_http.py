"""Real HTTP against local receivers: what each answer comes to, bounded in time and size, no way around the guard."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from aiohttp import web

from protocol.ids import WakeRouteId, to_text
from runtime.key_rings import p256_key
from tests.support.http_stub import answering
from tests.support.push_receiver import PushReceiver, push_receiver
from tests.support.wakes import LOOPBACK
from worker.push import http_post
from worker.push.address_guard import AddressGuard
from worker.push.gateway import GatewayProvider
from worker.push.http_post import Answer, HttpPoster
from worker.push.outcome import Accepted, Gone, Misconfigured, Outcome, Retry, Target
from worker.push.vapid import Vapid
from worker.push.webpush import WebPushProvider

ROUTE = WakeRouteId(bytes(range(16)))


@pytest.fixture
async def receiver() -> AsyncIterator[PushReceiver]:
    async with push_receiver() as made:
        yield made


@pytest.fixture
async def poster() -> AsyncIterator[HttpPoster]:
    async with HttpPoster(AddressGuard(LOOPBACK)) as made:
        yield made


async def push(poster: HttpPoster, url: str) -> Outcome:
    return await GatewayProvider(poster).push(Target(ROUTE, {"url": url}, "background"))


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_any_2xx_is_accepted(receiver: PushReceiver, poster: HttpPoster, status: int) -> None:
    receiver.always(status)
    assert await push(poster, receiver.url) == Accepted()
    assert receiver.received[0].wake_route_id == to_text(ROUTE)


@pytest.mark.parametrize("status", [404, 410])
async def test_gone(receiver: PushReceiver, poster: HttpPoster, status: int) -> None:
    receiver.always(status)
    assert await push(poster, receiver.url) == Gone()


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
async def test_trouble_is_tried_again(receiver: PushReceiver, poster: HttpPoster, status: int) -> None:
    receiver.always(status)
    assert isinstance(await push(poster, receiver.url), Retry)


@pytest.mark.parametrize("status", [400, 401, 403, 405, 413])
async def test_a_refusal_is_a_misconfiguration(receiver: PushReceiver, poster: HttpPoster, status: int) -> None:
    receiver.always(status)
    assert await push(poster, receiver.url) == Misconfigured("refused")


async def test_no_redirect_is_followed(receiver: PushReceiver, poster: HttpPoster) -> None:
    async with push_receiver() as inner:
        receiver.always(307, {"Location": inner.url})
        assert await push(poster, receiver.url) == Misconfigured("redirect")
        assert inner.received == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120),
        ("in an hour", 3600),
        ("soon", None),
        ("-1", None),
    ],
)
async def test_retry_after_in_both_its_forms(
    receiver: PushReceiver, poster: HttpPoster, text: str, seconds: int | None
) -> None:
    if text == "in an hour":  # a date, made when the test runs
        text = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    receiver.always(503, {"Retry-After": text})
    outcome = await push(poster, receiver.url)
    assert isinstance(outcome, Retry)
    if seconds is None:
        assert outcome.after is None
    else:
        assert outcome.after is not None
        assert abs(outcome.after.total_seconds() - seconds) < 30


async def test_a_silent_receiver_is_a_timeout(receiver: PushReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_post, "POST_SECONDS_MAX", 0.2)
    receiver.hold = asyncio.Event()
    async with HttpPoster(AddressGuard(LOOPBACK)) as poster:
        assert await push(poster, receiver.url) == Retry("timeout")


async def test_nobody_there_is_trouble(poster: HttpPoster) -> None:
    assert await push(poster, "http://127.0.0.1:1/") == Retry("connection")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\xff\xfe garbage\r\n\r\n",
        b"HTTP/1.1 2xx ok\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx",
    ],
)
async def test_a_broken_answer_is_trouble(poster: HttpPoster, answer: bytes) -> None:
    async with answering(answer) as port:
        assert isinstance(await push(poster, f"http://127.0.0.1:{port}/"), Retry | Accepted)


async def test_an_endless_answer_is_not_read(receiver: PushReceiver, poster: HttpPoster) -> None:
    receiver.answer = lambda _push: web.Response(status=200, body=b"x" * 10_000_000)
    answer = await poster.post(receiver.url, headers={}, body=b"")
    assert isinstance(answer, Answer)
    assert len(answer.body) <= http_post.ANSWER_BYTES_MAX


async def test_an_unlisted_inner_address_is_refused_before_a_byte_is_sent(receiver: PushReceiver) -> None:
    async with HttpPoster(AddressGuard(())) as poster:
        assert await push(poster, receiver.url) == Misconfigured("address_refused")
        assert await push(poster, receiver.url.replace("http:", "https:")) == Misconfigured("address_refused")
    assert receiver.received == []


async def test_a_rebinding_resolver_is_asked_once_and_its_second_answer_reaches_nobody(receiver: PushReceiver) -> None:
    """First a listed address where nobody listens, then the one where the receiver is: the first must stand."""
    asked: list[str] = []

    async def rebinding(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.2"] if len(asked) == 1 else ["127.0.0.1"]

    async with HttpPoster(AddressGuard((ipaddress.ip_network("127.0.0.2/32"),), resolver=rebinding)) as poster:
        url = receiver.url.replace("127.0.0.1", "rebinding.example")
        assert await push(poster, url) == Retry("connection")
        assert asked == ["rebinding.example"]
        assert await push(poster, url) == Misconfigured("address_refused")
    assert receiver.received == []


async def test_the_connection_goes_to_the_judged_address_under_its_own_name(receiver: PushReceiver) -> None:
    async def resolver(_host: str, _port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    async with HttpPoster(AddressGuard(LOOPBACK, resolver=resolver)) as poster:
        assert await push(poster, receiver.url.replace("127.0.0.1", "push.example")) == Accepted()
    assert receiver.received[0].headers["Host"].startswith("push.example:")


async def test_no_proxy_of_the_environment_is_used(receiver: PushReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with HttpPoster(AddressGuard(LOOPBACK)) as poster:
        assert await push(poster, receiver.url) == Accepted()


async def test_two_readings_of_one_url_are_refused(poster: HttpPoster) -> None:
    for url in ("http://127.0.0.1:1#@127.0.0.2/", "http://127.0.0.1;127.0.0.2/", "http://127.0.0.1%2f@127.0.0.2/"):
        assert isinstance(await push(poster, url), Misconfigured | Retry)


def web_push(poster: HttpPoster) -> WebPushProvider:
    vapid = Vapid(p256_key(b"v" * 32), contact=None, wall_seconds=lambda: 1_800_000_000.0)
    return WebPushProvider(poster, vapid)


async def test_a_web_push_has_its_headers_and_a_body_only_with_keys(receiver: PushReceiver, poster: HttpPoster) -> None:
    p256dh = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
    receiver.always(201)
    for settings in (
        {"endpoint": receiver.url},
        {"endpoint": receiver.url, "p256dh": p256dh, "auth": "BTBZMqHH6r4Tts7J_aSIgg"},
    ):
        assert await web_push(poster).push(Target(ROUTE, settings, "background")) == Accepted()
    bare, sealed = receiver.received
    for push_ in (bare, sealed):
        assert (push_.headers["TTL"], push_.headers["Urgency"], push_.headers["Topic"]) == ("86400", "high", "wake")
        assert push_.headers["Authorization"].startswith("vapid t=")
    assert (bare.body, "Content-Encoding" in bare.headers) == (b"", False)
    assert (len(sealed.body), sealed.headers["Content-Encoding"]) == (104, "aes128gcm")
    assert to_text(ROUTE).encode() not in b"".join(p.body + str(p.headers).encode() for p in receiver.received)


async def test_keys_that_do_not_fit_the_curve_are_a_misconfiguration(
    receiver: PushReceiver, poster: HttpPoster
) -> None:
    settings = {"endpoint": receiver.url, "p256dh": to_text(b"\x04" + bytes(64)), "auth": to_text(bytes(16))}
    assert await web_push(poster).push(Target(ROUTE, settings, "background")) == Misconfigured("bad_keys")
    assert receiver.received == []
