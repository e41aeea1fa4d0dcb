"""The project's own push-gateway protocol (docs/push-gateway.md): a POST with the wake route's id, and nothing else.

Seed 001, 2.7: whoever runs the gateway learns which route is to be woken and when; never a content, sender or device.
"""

from __future__ import annotations

import json
from typing import Final
from urllib.parse import urlsplit

from protocol.ids import to_text
from worker.push.http_post import Answer, HttpPoster, judge_status
from worker.push.outcome import Accepted, Outcome, Target

_GONE: Final = frozenset({404, 410})
_HEADERS: Final = {"Content-Type": "application/json"}


class GatewayProvider:
    def __init__(self, poster: HttpPoster) -> None:
        self._poster = poster

    def host(self, target: Target) -> str:
        return urlsplit(target.settings["url"]).netloc

    async def push(self, target: Target) -> Outcome:
        body = json.dumps({"wake_route_id": to_text(target.wake_route_id)}).encode("ascii")
        answer = await self._poster.post(target.settings["url"], headers=_HEADERS, body=body)
        return judge_status(answer, gone=_GONE) or Accepted() if isinstance(answer, Answer) else answer
