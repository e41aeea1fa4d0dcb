"""A device that speaks plain HTTP to a server in another process, by the standard library alone."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from protocol.ids import DeviceId, IdentityId, InstanceId, from_text, id_from_text, to_text
from tests.support.accounts import Keys
from tests.support.http_door import registration_body


class Answer(NamedTuple):
    status: int
    content: Any
    raw: bytes


def ask(
    url: str,
    method: str,
    path: str,
    body: Any = None,
    *,
    token: str | None = None,
    key: str | None = None,
    address: str | None = None,
) -> Answer:
    """One request with a JSON body; errors are answers like any other. `address`: whom a proxy says that it is from."""
    headers = {"Content-Type": "application/json"}
    if address is not None:
        headers["X-Forwarded-For"] = address
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    if key is not None:
        headers["Idempotency-Key"] = key
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, method=method, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            status, raw = response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            status, raw = error.code, error.read()
    return Answer(status, json.loads(raw) if raw[:1] == b"{" else None, raw)


@dataclass
class HttpAccount:
    """An identity with one device, registered at `url`."""

    url: str
    keys: Keys
    instance: InstanceId
    identity_id: IdentityId
    device_id: DeviceId
    token: str = field(default="", repr=False)
    challenges: list[bytes] = field(default_factory=list)
    address: str | None = None

    @classmethod
    def register(
        cls, url: str, keys: Keys | None = None, *, invite: str | None = None, address: str | None = None
    ) -> HttpAccount:
        """With a fresh token."""
        keys = keys or Keys()
        instance = InstanceId(id_from_text(ask(url, "GET", "/v1/instance").content["instance_id"]))
        answer = ask(url, "POST", "/v1/identities", registration_body(keys, instance, invite), address=address)
        assert answer.status == 201, answer
        account = cls(
            url,
            keys,
            instance,
            IdentityId(id_from_text(answer.content["identity_id"])),
            DeviceId(id_from_text(answer.content["device_id"])),
            address=address,
        )
        account.token = account.fresh_token()
        return account

    @property
    def id(self) -> str:
        return to_text(self.device_id)

    def challenge(self, purpose: str = "token") -> bytes:
        body = {"device_id": self.id, "purpose": purpose}
        answer = ask(self.url, "POST", "/v1/auth/challenges", body, address=self.address)
        self.challenges.append(from_text(answer.content["challenge"]))
        return self.challenges[-1]

    def fresh_token(self) -> str:
        challenge = self.challenge()
        signature = self.keys.token_signature(self.instance, self.device_id, challenge)
        body = {"device_id": self.id, "challenge": to_text(challenge), "signature": to_text(signature)}
        answer = ask(self.url, "POST", "/v1/auth/tokens", body, address=self.address)
        assert answer.status == 201, answer
        return str(answer.content["token"])

    def call(self, method: str, path: str, body: Any = None, *, key: str | None = None) -> Answer:
        return ask(self.url, method, path, body, token=self.token, key=key, address=self.address)
