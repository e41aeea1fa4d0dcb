"""Web Push: RFC 8030 with VAPID (RFC 8292). Also what UnifiedPush distributors speak."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from protocol.ids import from_text
from worker.push import webpush_body
from worker.push.http_post import Answer, HttpPoster, judge_status
from worker.push.outcome import Accepted, Misconfigured, Outcome, Target
from worker.push.vapid import Vapid

_GONE: Final = frozenset({404, 410})
TTL_SECONDS: Final = 86_400  # a phone that is off longer finds its mail by itself
TOPIC: Final = "wake"  # a later push takes the place of one that was not delivered yet


class WebPushProvider:
    def __init__(self, poster: HttpPoster, vapid: Vapid) -> None:
        self._poster = poster
        self._vapid = vapid

    def host(self, target: Target) -> str:
        return urlsplit(target.settings["endpoint"]).netloc

    async def push(self, target: Target) -> Outcome:
        endpoint = target.settings["endpoint"]
        parts = urlsplit(endpoint)
        headers = {
            "TTL": str(TTL_SECONDS),
            "Urgency": "high",
            "Topic": TOPIC,
            "Authorization": self._vapid.authorization(f"{parts.scheme}://{parts.netloc}"),
        }
        body = b""
        if "p256dh" in target.settings:
            try:
                body = webpush_body.encrypt(from_text(target.settings["p256dh"]), from_text(target.settings["auth"]))
            except ValueError:
                return Misconfigured("bad_keys")
            headers["Content-Encoding"] = "aes128gcm"
            headers["Content-Type"] = "application/octet-stream"
        answer = await self._poster.post(endpoint, headers=headers, body=body)
        return judge_status(answer, gone=_GONE) or Accepted() if isinstance(answer, Answer) else answer
