"""APNs over HTTP/2 with token authentication: a background push or a fixed text, as the route says.

Apple's "Sending notification requests to APNs" and "Establishing a token-based connection to APNs".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from worker.push.credentials import CredentialsUnusable
from worker.push.http2 import PlatformClient
from worker.push.http_post import Answer, judge_status
from worker.push.outcome import Accepted, Gone, Misconfigured, Outcome, Retry, Target

PRODUCTION_URL: Final = "https://api.push.apple.com"
SANDBOX_URL: Final = "https://api.sandbox.push.apple.com"
COLLAPSE_ID: Final = "wake"
EXPIRATION_SECONDS: Final = 86_400
TOKEN_RENEW_SECONDS: Final = 45 * 60  # refused after an hour, and when renewed more often than every 20 minutes

_GONE_REASONS: Final = frozenset({"Unregistered", "ExpiredToken", "BadDeviceToken"})
_OUR_TOKEN_REASONS: Final = frozenset({"ExpiredProviderToken"})
_TROUBLE_REASONS: Final = frozenset({"TooManyRequests", "TooManyProviderTokenUpdates", "IdleTimeout", "Shutdown"})


@dataclass(frozen=True, slots=True, repr=False)
class ApnsCredentials:
    key: ec.EllipticCurvePrivateKey
    key_id: str
    team_id: str

    @classmethod
    def load(cls, path: Path, key_id: str, team_id: str) -> ApnsCredentials:
        """Read Apple's .p8 file; raises CredentialsUnusable."""
        try:
            key = load_pem_private_key(path.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise CredentialsUnusable(f"apns_key_file: {type(error).__name__}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CredentialsUnusable("apns_key_file: not an elliptic-curve key")
        return cls(key, key_id, team_id)


class ApnsProvider:
    def __init__(
        self,
        client: PlatformClient,
        credentials: ApnsCredentials,
        *,
        url: str,
        alert_text: str,
        wall_seconds: Callable[[], float],
    ) -> None:
        self._client = client
        self._credentials = credentials
        self._url = url.rstrip("/")
        self._wall_seconds = wall_seconds
        self._token: tuple[float, str] | None = None
        self._bodies = {
            "background": _json({"aps": {"content-available": 1}}),
            # The app's notification extension may fetch and show something better; the text itself says nothing.
            "alert": _json({"aps": {"alert": {"body": alert_text}, "mutable-content": 1, "sound": "default"}}),
        }

    def host(self, target: Target) -> str:
        return urlsplit(self._url).netloc

    async def push(self, target: Target) -> Outcome:
        alert = target.mode == "alert"
        headers = {
            "authorization": f"bearer {self._authorization()}",
            "apns-topic": target.settings["topic"],
            "apns-push-type": "alert" if alert else "background",
            "apns-priority": "10" if alert else "5",  # 10 is refused for background pushes
            "apns-expiration": str(int(self._wall_seconds()) + EXPIRATION_SECONDS),
            "apns-collapse-id": COLLAPSE_ID,
            "content-type": "application/json",
        }
        url = f"{self._url}/3/device/{quote(target.settings['token'], safe='')}"
        answer = await self._client.post(url, headers=headers, body=self._bodies["alert" if alert else "background"])
        return self._judge(answer) if isinstance(answer, Answer) else answer

    def _judge(self, answer: Answer) -> Outcome:
        if answer.status == 200:
            return Accepted()
        reason = _reason(answer.body)
        if reason in _GONE_REASONS:
            return Gone()
        if reason in _OUR_TOKEN_REASONS:
            self._token = None
            return Retry("token")
        if reason in _TROUBLE_REASONS:
            return Retry("status_429" if answer.status == 429 else "status_other", answer.retry_after)
        return judge_status(answer, gone=frozenset({410})) or Misconfigured("refused")

    def _authorization(self) -> str:
        now = self._wall_seconds()
        if self._token is None or not now - TOKEN_RENEW_SECONDS < self._token[0] <= now:
            credentials = self._credentials
            claims = {"iss": credentials.team_id, "iat": int(now)}
            token = jwt.encode(claims, credentials.key, algorithm="ES256", headers={"kid": credentials.key_id})
            self._token = (now, token)
        return self._token[1]


def _reason(body: bytes) -> str:
    try:
        document: Any = json.loads(body)
    except ValueError:
        return ""
    reason = document.get("reason") if isinstance(document, dict) else None
    return reason if isinstance(reason, str) else ""


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
