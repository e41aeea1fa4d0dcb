"""APNs and FCM against local servers that speak their protocol: HTTP/2 with ALPN, signatures, headers, every answer."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from protocol.ids import WakeRouteId
from tests.support.http2_server import Http2Server, Reply, Request, http2_server
from worker.push import http2
from worker.push.apns import ApnsCredentials, ApnsProvider
from worker.push.credentials import CredentialsUnusable
from worker.push.fcm import FcmProvider, ServiceAccount
from worker.push.http2 import PlatformClient
from worker.push.outcome import Accepted, Gone, Misconfigured, Outcome, Retry, Target

NOW = 1_800_000_000.0
ROUTE = WakeRouteId(bytes(range(16)))
APNS_TOKEN = "ab" * 32
APNS_KEY = ec.generate_private_key(ec.SECP256R1())
RSA_KEY = rsa.generate_private_key(65537, 2048)


class Clock:
    def __init__(self) -> None:
        self.seconds = NOW

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def wall() -> Clock:
    return Clock()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Http2Server]:
    async with http2_server(tmp_path) as made:
        yield made


@pytest.fixture
async def client(server: Http2Server) -> AsyncIterator[PlatformClient]:
    async with PlatformClient(tls=server.client_tls) as made:
        yield made


@pytest.fixture
def apns(server: Http2Server, client: PlatformClient, wall: Clock) -> ApnsProvider:
    credentials = ApnsCredentials(APNS_KEY, "KEY1234567", "TEAM123456")
    return ApnsProvider(client, credentials, url=server.url, alert_text="New message", wall_seconds=wall)


async def push(apns: ApnsProvider, mode: str = "background", token: str = APNS_TOKEN) -> Outcome:
    return await apns.push(Target(ROUTE, {"token": token, "topic": "org.example.app"}, mode))


def refused(status: int, reason: str, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    return Reply(status, json.dumps({"reason": reason}).encode(), headers)


async def test_a_background_push_is_what_apple_asks_for(apns: ApnsProvider, server: Http2Server) -> None:
    assert await push(apns) == Accepted()
    [request] = server.requests
    assert (request.headers[":method"], request.path) == ("POST", f"/3/device/{APNS_TOKEN}")
    headers = {name: value for name, value in request.headers.items() if name.startswith("apns-")}
    assert headers == {
        "apns-topic": "org.example.app",
        "apns-push-type": "background",
        "apns-priority": "5",
        "apns-expiration": str(int(NOW) + 86_400),
        "apns-collapse-id": "wake",
    }
    assert json.loads(request.body) == {"aps": {"content-available": 1}}
    kind, _, token = request.headers["authorization"].partition(" ")
    assert (kind, jwt.get_unverified_header(token)["kid"]) == ("bearer", "KEY1234567")
    claims = jwt.decode(token, APNS_KEY.public_key(), algorithms=["ES256"], options={"verify_iat": False})
    assert claims == {"iss": "TEAM123456", "iat": int(NOW)}


async def test_an_alert_has_a_fixed_text_and_nothing_of_the_mail(apns: ApnsProvider, server: Http2Server) -> None:
    assert await push(apns, "alert") == Accepted()
    [request] = server.requests
    assert (request.headers["apns-push-type"], request.headers["apns-priority"]) == ("alert", "10")
    aps = json.loads(request.body)["aps"]
    assert (aps["alert"], aps["mutable-content"]) == ({"body": "New message"}, 1)


async def test_many_pushes_share_one_connection_and_one_token(apns: ApnsProvider, server: Http2Server) -> None:
    assert await push(apns) == Accepted()
    assert set(await asyncio.gather(*(push(apns) for _ in range(50)))) == {Accepted()}
    assert server.connections == 1
    assert len({request.headers["authorization"] for request in server.requests}) == 1


async def test_the_token_is_renewed_before_an_hour_and_not_every_20_minutes(
    apns: ApnsProvider, server: Http2Server, wall: Clock
) -> None:
    for _ in range(7):  # every 20 minutes for two hours
        await push(apns)
        wall.seconds += 20 * 60
    tokens = [request.headers["authorization"] for request in server.requests]
    assert len(set(tokens)) == 3
    for first, second in itertools.pairwise(tokens):
        age = _issued(second) - _issued(first)
        assert age == 0 or age >= 20 * 60


def _issued(header: str) -> int:
    return int(jwt.decode(header.partition(" ")[2], options={"verify_signature": False})["iat"])


@pytest.mark.parametrize(
    ("status", "reason", "outcome"),
    [
        (410, "Unregistered", Gone()),
        (410, "ExpiredToken", Gone()),
        (400, "BadDeviceToken", Gone()),  # or the wrong environment: the pruning rule tells them apart
        (400, "DeviceTokenNotForTopic", Misconfigured("refused")),
        (400, "BadTopic", Misconfigured("refused")),
        (403, "InvalidProviderToken", Misconfigured("refused")),
        (413, "PayloadTooLarge", Misconfigured("refused")),
        (403, "ExpiredProviderToken", Retry("token")),
        (429, "TooManyRequests", Retry("status_429")),
        (429, "TooManyProviderTokenUpdates", Retry("status_429")),
        (500, "InternalServerError", Retry("status_500")),
        (503, "ServiceUnavailable", Retry("status_503")),
        (503, "Shutdown", Retry("status_other")),
    ],
)
async def test_every_answer_of_apns(
    apns: ApnsProvider, server: Http2Server, status: int, reason: str, outcome: Outcome
) -> None:
    server.answer = lambda _request: refused(status, reason)
    assert await push(apns) == outcome


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"reason": 5}', b"\xff" * 60_000])
async def test_a_broken_answer_is_judged_by_its_status(apns: ApnsProvider, server: Http2Server, body: bytes) -> None:
    server.answer = lambda _request: Reply(503, body, (("retry-after", "60"),))
    assert await push(apns) == Retry("status_503", timedelta(seconds=60))
    server.answer = lambda _request: Reply(410, body)
    assert await push(apns) == Gone()


async def test_an_expired_provider_token_is_made_anew(apns: ApnsProvider, server: Http2Server, wall: Clock) -> None:
    server.answer = lambda _request: refused(403, "ExpiredProviderToken")
    await push(apns)
    wall.seconds += 1
    server.answer = lambda _request: Reply()
    assert await push(apns) == Accepted()
    first, second = (request.headers["authorization"] for request in server.requests)
    assert first != second


async def test_a_silent_server_is_a_timeout(server: Http2Server, wall: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "REQUEST_SECONDS_MAX", 0.2)
    server.answer = lambda _request: None
    async with PlatformClient(tls=server.client_tls) as client:
        credentials = ApnsCredentials(APNS_KEY, "k", "t")
        provider = ApnsProvider(client, credentials, url=server.url, alert_text="x", wall_seconds=wall)
        assert await push(provider) == Retry("timeout")


async def test_a_goaway_loses_no_later_push(apns: ApnsProvider, server: Http2Server) -> None:
    server.go_away_after = 1
    outcomes = [await push(apns) for _ in range(4)]
    assert outcomes.count(Accepted()) >= 2
    assert set(outcomes) <= {Accepted(), Retry("connection")}
    assert server.connections >= 2


async def test_a_certificate_that_nobody_vouches_for_is_not_talked_to(server: Http2Server, wall: Clock) -> None:
    async with PlatformClient() as client:
        credentials = ApnsCredentials(APNS_KEY, "k", "t")
        provider = ApnsProvider(client, credentials, url=server.url, alert_text="x", wall_seconds=wall)
        assert await push(provider) == Retry("connection")
    assert server.requests == []


async def test_a_token_cannot_leave_its_place_in_the_path(apns: ApnsProvider, server: Http2Server) -> None:
    await push(apns, token="../../evil?x=1#y")
    assert server.requests[0].path == "/3/device/..%2F..%2Fevil%3Fx%3D1%23y"


def pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def test_credentials_that_cannot_be_used_are_told_by_the_name_of_their_setting(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.p8", tmp_path / "bad.p8"
    good.write_bytes(pem(APNS_KEY))
    assert ApnsCredentials.load(good, "k", "t").key_id == "k"
    for content in (b"", b"not a key", pem(RSA_KEY)):
        bad.write_bytes(content)
        with pytest.raises(CredentialsUnusable, match="apns_key_file"):
            ApnsCredentials.load(bad, "k", "t")
    for document in (
        b"",
        b"[]",
        b"{}",
        json.dumps({"private_key": 5}).encode(),
        account_json("https://x", pem(APNS_KEY)),
    ):
        bad.write_bytes(document)
        with pytest.raises(CredentialsUnusable, match="fcm_credentials_file"):
            ServiceAccount.load(bad)


def account_json(token_url: str, key: bytes) -> bytes:
    return json.dumps(
        {
            "type": "service_account",
            "project_id": "example-project",
            "client_email": "push@example-project.iam.gserviceaccount.com",
            "private_key_id": "key-1",
            "private_key": key.decode(),
            "token_uri": token_url,
        }
    ).encode()


class Fcm:
    """Both halves of Google: the token endpoint and the sender."""

    def __init__(self, server: Http2Server) -> None:
        self.server = server
        self.grants: list[Request] = []
        self.sent: list[Request] = []
        self.grant = Reply(200, json.dumps({"access_token": "t0", "expires_in": 3600}).encode())
        self.reply = Reply(200, b'{"name": "projects/example-project/messages/1"}')
        server.answer = self.answer

    def answer(self, request: Request) -> Reply:
        if request.path == "/token":
            self.grants.append(request)
            return self.grant
        self.sent.append(request)
        return self.reply


@pytest.fixture
def google(server: Http2Server) -> Fcm:
    return Fcm(server)


@pytest.fixture
def fcm(google: Fcm, client: PlatformClient, tmp_path: Path, wall: Clock) -> FcmProvider:
    path = tmp_path / "account.json"
    path.write_bytes(account_json(google.server.url + "/token", pem(RSA_KEY)))
    return FcmProvider(client, ServiceAccount.load(path), url=google.server.url, wall_seconds=wall)


async def send(fcm: FcmProvider) -> Outcome:
    return await fcm.push(Target(ROUTE, {"token": "fcm-token"}, "background"))


async def test_an_fcm_push_is_a_data_message_that_says_wake(fcm: FcmProvider, google: Fcm) -> None:
    assert await send(fcm) == Accepted()
    [request] = google.sent
    assert request.path == "/v1/projects/example-project/messages:send"
    assert request.headers["authorization"] == "Bearer t0"
    assert json.loads(request.body) == {
        "message": {
            "token": "fcm-token",
            "data": {"wake": "1"},
            "android": {"priority": "HIGH", "collapse_key": "wake", "ttl": "86400s"},
        }
    }


async def test_the_access_token_is_asked_for_with_a_signed_assertion(fcm: FcmProvider, google: Fcm) -> None:
    await send(fcm)
    [request] = google.grants
    form = parse_qs(request.body.decode())
    assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    token_url = google.server.url + "/token"
    claims = jwt.decode(
        form["assertion"][0], RSA_KEY.public_key(), algorithms=["RS256"], audience=token_url,
        options={"verify_exp": False, "verify_iat": False},
    )  # fmt: skip
    assert claims["iss"] == "push@example-project.iam.gserviceaccount.com"
    assert claims["scope"] == "https://www.googleapis.com/auth/firebase.messaging"
    assert claims["exp"] - claims["iat"] == 3600


async def test_many_pushes_ask_for_one_token_and_a_new_one_before_it_ends(
    fcm: FcmProvider, google: Fcm, wall: Clock
) -> None:
    await asyncio.gather(*(send(fcm) for _ in range(20)))
    assert len(google.grants) == 1
    wall.seconds += 3600 - 299
    await send(fcm)
    assert len(google.grants) == 2


def fcm_error(status: int, code: str) -> Reply:
    details = [{"@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": code}]
    return Reply(status, json.dumps({"error": {"code": status, "status": "X", "details": details}}).encode())


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (fcm_error(404, "UNREGISTERED"), Gone()),
        (Reply(404, b'{"error": {"status": "NOT_FOUND"}}'), Misconfigured("refused")),
        (fcm_error(400, "INVALID_ARGUMENT"), Misconfigured("refused")),
        (fcm_error(403, "SENDER_ID_MISMATCH"), Misconfigured("refused")),
        (fcm_error(401, "THIRD_PARTY_AUTH_ERROR"), Retry("token")),
        (fcm_error(429, "QUOTA_EXCEEDED"), Retry("status_429")),
        (fcm_error(500, "INTERNAL"), Retry("status_500")),
        (Reply(503, b"<html>", (("retry-after", "30"),)), Retry("status_503", timedelta(seconds=30))),
    ],
)
async def test_every_answer_of_fcm(fcm: FcmProvider, google: Fcm, reply: Reply, outcome: Outcome) -> None:
    google.reply = reply
    assert await send(fcm) == outcome


async def test_a_token_that_was_revoked_early_is_asked_for_anew(fcm: FcmProvider, google: Fcm) -> None:
    await send(fcm)
    google.reply = Reply(401)
    assert await send(fcm) == Retry("token")
    google.reply = Reply()
    assert await send(fcm) == Accepted()
    assert len(google.grants) == 2


@pytest.mark.parametrize(
    ("grant", "outcome"),
    [
        (Reply(400, b'{"error": "invalid_grant"}'), Misconfigured("credentials")),
        (Reply(401), Misconfigured("credentials")),
        (Reply(503), Retry("token")),
        (Reply(200, b"{}"), Retry("token")),
        (Reply(200, b'{"access_token": 5, "expires_in": "x"}'), Retry("token")),
    ],
)
async def test_without_an_access_token_nothing_is_sent(
    fcm: FcmProvider, google: Fcm, grant: Reply, outcome: Outcome
) -> None:
    google.grant = grant
    assert await send(fcm) == outcome
    assert google.sent == []
