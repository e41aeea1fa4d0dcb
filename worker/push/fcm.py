"""FCM HTTP v1 with a service account (OAuth 2.0, RFC 7523): a data message that says "wake" and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from worker.push.credentials import CredentialsUnusable
from worker.push.http2 import PlatformClient
from worker.push.http_post import Answer, judge_status
from worker.push.outcome import Accepted, Gone, Misconfigured, Outcome, Retry, Target

URL: Final = "https://fcm.googleapis.com"
SCOPE: Final = "https://www.googleapis.com/auth/firebase.messaging"
GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TTL: Final = "86400s"
_ASSERTION_SECONDS: Final = 3_600
_RENEW_BEFORE_SECONDS: Final = 300


@dataclass(frozen=True, slots=True, repr=False)
class ServiceAccount:
    project_id: str
    email: str
    key: rsa.RSAPrivateKey
    key_id: str
    token_url: str

    @classmethod
    def load(cls, path: Path) -> ServiceAccount:
        """Read the JSON file of a service account; raises CredentialsUnusable."""
        try:
            document = json.loads(path.read_bytes())
            key = load_pem_private_key(document["private_key"].encode(), None)
            account = (
                document["project_id"],
                document["client_email"],
                document["private_key_id"],
                document["token_uri"],
            )
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise CredentialsUnusable(f"fcm_credentials_file: {type(error).__name__}") from None
        if not isinstance(key, rsa.RSAPrivateKey) or not all(isinstance(value, str) for value in account):
            raise CredentialsUnusable("fcm_credentials_file: not a service account")
        project, email, key_id, token_url = account
        return cls(project, email, key, key_id, token_url)


class FcmProvider:
    def __init__(
        self, client: PlatformClient, account: ServiceAccount, *, url: str, wall_seconds: Callable[[], float]
    ) -> None:
        self._client = client
        self._account = account
        self._url = f"{url.rstrip('/')}/v1/projects/{account.project_id}/messages:send"
        self._wall_seconds = wall_seconds
        self._token: tuple[float, str] | None = None  # until when, and what
        self._renewing = asyncio.Lock()

    def host(self, target: Target) -> str:
        return urlsplit(self._url).netloc

    async def push(self, target: Target) -> Outcome:
        token = await self._access_token()
        if not isinstance(token, str):
            return token
        message = {
            "token": target.settings["token"],
            "data": {"wake": "1"},
            "android": {"priority": "HIGH", "collapse_key": "wake", "ttl": TTL},
        }
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        body = json.dumps({"message": message}, separators=(",", ":")).encode()
        answer = await self._client.post(self._url, headers=headers, body=body)
        return self._judge(answer, token) if isinstance(answer, Answer) else answer

    def _judge(self, answer: Answer, token: str) -> Outcome:
        code = _error_code(answer.body) if answer.status >= 400 else ""
        if answer.status == 401:
            if self._token is not None and self._token[1] == token:
                self._token = None  # revoked early: the next push gets a new one
            return Retry("token")
        if code == "UNREGISTERED":
            return Gone()
        # A 404 without that code is a wrong project, not a dead route.
        return judge_status(answer, gone=frozenset()) or Accepted()

    async def _access_token(self) -> str | Outcome:
        """A token that is good for some minutes yet; one renewal at a time, whose outcome all waiters share."""
        async with self._renewing:
            now = self._wall_seconds()
            if self._token is not None and now < self._token[0]:
                return self._token[1]
            answer = await self._ask_for_token(now)
            if not isinstance(answer, Answer):
                return Retry("token")
            if answer.status in (400, 401, 403):
                return Misconfigured("credentials")
            token, lifetime = _token_of(answer)
            if token is None:
                return Retry("token", answer.retry_after)
            self._token = (now + max(0, lifetime - _RENEW_BEFORE_SECONDS), token)
            return token

    async def _ask_for_token(self, now: float) -> Answer | Retry:
        account = self._account
        claims = {
            "iss": account.email,
            "scope": SCOPE,
            "aud": account.token_url,
            "iat": int(now),
            "exp": int(now) + _ASSERTION_SECONDS,
        }
        assertion = jwt.encode(claims, account.key, algorithm="RS256", headers={"kid": account.key_id})
        body = urlencode({"grant_type": GRANT, "assertion": assertion}).encode("ascii")
        headers = {"content-type": "application/x-www-form-urlencoded"}
        return await self._client.post(account.token_url, headers=headers, body=body)


def _token_of(answer: Answer) -> tuple[str | None, int]:
    try:
        document: Any = json.loads(answer.body)
        token, lifetime = document["access_token"], int(document["expires_in"])
    except (ValueError, TypeError, KeyError):
        return None, 0
    return (token, lifetime) if answer.status == 200 and isinstance(token, str) else (None, 0)


def _error_code(body: bytes) -> str:
    """The FCM error code in a google.rpc.Status."""
    try:
        details: Any = json.loads(body)["error"]["details"]
        return next(str(detail["errorCode"]) for detail in details if "errorCode" in detail)
    except (ValueError, TypeError, KeyError, StopIteration):
        return ""
