"""Everything that a client can do to a real server, well and badly, with recognisable values in every field."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg

from protocol.frames import Ack, Defer, PullMailbox, Reauth, Send, SendEnvelope
from protocol.ids import ClientMessageId, DeviceId, MessageId, from_text, id_from_text, to_text
from protocol.packing import pack
from runtime.keyring import KEYRING_FILE
from tests.support.accounts import Keys
from tests.support.canaries import Canaries
from tests.support.command import run
from tests.support.http_account import Answer, HttpAccount
from tests.support.http_account import ask as ask_from
from tests.support.http_door import registration_body
from tests.support.raw_client import RawClient
from tests.support.up import Up, until

BODY: Final = b"CANARY-CIPHERTEXT-" + b"x" * 46
CLIENT_ADDRESS: Final = "203.0.113.177"
ask = partial(ask_from, address=CLIENT_ADDRESS)


async def break_table(dsn: str, table: str, check: str) -> None:
    """From here on writes to the table fail the way a bug would, with the whole row in the driver's message."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"ALTER TABLE {table} ADD CONSTRAINT canary CHECK ({check}) NOT VALID")
    finally:
        await connection.close()


async def mend_table(dsn: str, table: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT canary")
    finally:
        await connection.close()


class Flow:
    """Everything that a client can do, well and badly, with canaries in every field."""

    def __init__(self, up: Up, data_dir: Path) -> None:
        self.up = up
        self.data_dir = data_dir
        self.url, self.other_url = up.report["urls"]
        self.dsn = up.report["postgres_dsn"]
        self.canaries = Canaries()
        self.error_bodies: list[bytes] = []

    def note(self, answer: Answer) -> Answer:
        """Keep what an error says: it may go into other people's logs."""
        if answer.status >= 400:
            self.error_bodies.append(answer.raw)
        return answer

    def account(self, url: str, **registration: Any) -> HttpAccount:
        account = HttpAccount.register(
            url, Keys(bundle=b"CANARY-BUNDLE-" + os.urandom(32)), address=CLIENT_ADDRESS, **registration
        )
        self.know(account)
        return account

    def know(self, account: HttpAccount) -> None:
        plant = self.canaries.plant
        plant("device id", account.device_id)
        plant("identity id", account.identity_id)
        plant("identity bundle", account.keys.bundle)
        plant("public key", account.keys.public)
        plant("private key", bytes(account.keys.signing))
        plant("token", account.token)
        plant("token", account.token.rpartition(".")[2])

    def envelope(self, to: str) -> dict[str, Any]:
        message_id = b"CANARY-M" + os.urandom(8)
        self.canaries.plant("message id", message_id)
        return {"to": to, "message_id": to_text(message_id), "protocol_version": 1, "body": to_text(BODY)}

    def cmid(self) -> bytes:
        cmid = b"CANARY-C" + os.urandom(8)
        self.canaries.plant("client message id", cmid)
        return cmid

    def key(self, name: str) -> str:
        self.canaries.plant("idempotency key", f"CANARY-KEY-{name}")
        return f"CANARY-KEY-{name}"

    def play(self) -> None:
        plant = self.canaries.plant
        plant("ciphertext", BODY)
        plant("client address", CLIENT_ADDRESS)
        self.secrets()
        invite = run("admin", "invites", "create", "--data-dir", str(self.data_dir), "--json").json["invite"]
        plant("invite", invite)
        self.policy("registration=invite")
        alice, bob = self.account(self.url, invite=invite), None
        self.note(ask(self.url, "POST", "/v1/identities", registration_body(Keys(), alice.instance, invite)))
        again = registration_body(alice.keys, alice.instance)
        assert ask(self.url, "POST", "/v1/identities", again, key=self.key("register")).status == 201
        self.policy("registration=open")
        bob = self.account(self.other_url)
        self.bad_requests(alice, bob)
        self.mail(alice, bob)
        self.prekeys(alice, bob)
        self.routes(alice, bob)
        asyncio.run(self.sockets(alice, bob))
        self.database_faults(alice, bob)
        self.devices(alice)
        for account in (alice, bob):
            for challenge in account.challenges:
                plant("challenge", challenge)

    def secrets(self) -> None:
        """The server's own keys are nowhere but in their file."""
        keyring = json.loads(next(self.data_dir.rglob(KEYRING_FILE)).read_text())

        def walk(value: Any) -> Iterator[str]:
            if isinstance(value, dict):
                for name, each in value.items():
                    if name == "secret":
                        yield str(each)
                    else:
                        yield from walk(each)
            elif isinstance(value, list):
                for each in value:
                    yield from walk(each)

        found = list(walk(keyring))
        assert len(found) >= 5, "the keyring's form has changed: look for its secrets again"
        for key in ask(self.url, "GET", "/v1/instance").content["signing_keys"]:
            self.canaries.plant("public key", from_text(key["public_key"]))
        for text in found:
            self.canaries.plant("server key", text)

    def policy(self, setting: str) -> None:
        assert run("admin", "policy", "set", setting, "--data-dir", str(self.data_dir)).code == 0
        name, _, value = setting.partition("=")
        for url in (self.url, self.other_url):
            until(lambda url=url: ask(url, "GET", "/v1/instance").content[name] == value, what="policy in effect")  # type: ignore[misc]

    def bad_requests(self, alice: HttpAccount, bob: HttpAccount) -> None:
        """Canaries where nothing belongs: in names, in wrong types, behind broken signatures."""
        for body in (
            {"envelopes": [{**self.envelope(bob.id), "pad": 99}], "client_message_id": to_text(self.cmid())},
            {"envelopes": {to_text(BODY): to_text(BODY)}, to_text(BODY): 1},
            {"envelopes": [to_text(BODY)], "client_message_id": to_text(BODY)},
        ):
            self.note(alice.call("POST", "/v1/envelopes", body))
        self.note(alice.call("POST", "/v1/envelopes", {"envelopes": []}, key=self.key("bad")))
        self.note(alice.call("GET", f"/v1/mailbox?cursor={to_text(BODY)}"))
        self.note(alice.call("POST", f"/v1/devices/{bob.id}/revocation", {"challenge": to_text(BODY)}))
        self.note(ask(self.url, "GET", "/v1/mailbox", token=f"{alice.token[:-8]}AAAAAAAA"))
        self.note(ask(self.url, "GET", f"/v1/{alice.id}/{alice.token}"))
        for purpose in ("token", "device.revoke"):
            challenge = alice.challenge(purpose)
            body = {"device_id": alice.id, "challenge": to_text(challenge), "signature": to_text(bytes(64))}
            self.note(ask(self.url, "POST", "/v1/auth/tokens", body))

    def mail(self, alice: HttpAccount, bob: HttpAccount) -> None:
        sent = {"client_message_id": to_text(self.cmid()), "envelopes": [self.envelope(bob.id)]}
        assert alice.call("POST", "/v1/envelopes", sent).status == 201
        assert alice.call("POST", "/v1/envelopes", sent).status == 200
        stays = {"envelopes": [self.envelope(bob.id)]}
        assert alice.call("POST", "/v1/envelopes", stays, key=self.key("send")).status == 201
        conflict = {**stays["envelopes"][0], "body": to_text(BODY + b"!")}
        other = {"client_message_id": to_text(self.cmid()), "envelopes": [conflict]}
        assert self.note(alice.call("POST", "/v1/envelopes", other)).status == 409
        reused = {**sent, "envelopes": [self.envelope(bob.id)]}
        assert self.note(alice.call("POST", "/v1/envelopes", reused)).status == 409
        unknown = os.urandom(16)
        self.canaries.plant("device id", unknown)
        nobody = {"client_message_id": to_text(self.cmid()), "envelopes": [self.envelope(to_text(unknown))]}
        assert self.note(alice.call("POST", "/v1/envelopes", nobody)).status == 404
        page = bob.call("GET", "/v1/mailbox").content
        assert len(page["entries"]) == 2
        self.canaries.plant("cursor", page["cursor"])
        self.note(alice.call("GET", f"/v1/mailbox?cursor={page['cursor']}"))
        bob.call("POST", "/v1/mailbox/acks", {"message_ids": [sent["envelopes"][0]["message_id"]]})

    def prekeys(self, alice: HttpAccount, bob: HttpAccount) -> None:
        def public_key() -> str:
            self.canaries.plant("public key", key := b"CANARY-PREKEY-" + os.urandom(18))
            return to_text(key)

        signature = b"CANARY-SIGNATURE-" + os.urandom(47)
        self.canaries.plant("public key", signature)
        last_resort = {"key_id": 9, "public_key": public_key(), "signature": to_text(signature)}
        body = {"one_time": [{"key_id": n, "public_key": public_key()} for n in range(3)], "last_resort": last_resort}
        assert bob.call("PUT", "/v1/prekeys", body, key=self.key("keys")).status == 200
        again = {"one_time": [{"key_id": 1, "public_key": public_key()}]}
        assert self.note(bob.call("PUT", "/v1/prekeys", again)).status == 400
        path = f"/v1/identities/{to_text(bob.identity_id)}/prekey-claims"
        assert alice.call("POST", path, {}, key=self.key("claim")).status == 201

    def routes(self, alice: HttpAccount, bob: HttpAccount) -> None:
        """A provider that is not there, and one that is refused: the worker tries both."""
        for account, body in (
            (alice, {"provider": "fcm", "token": "CANARY-PUSH-TOKEN-1"}),
            (alice, {"provider": "apns", "token": "CANARY-PUSH-TOKEN-2", "topic": "CANARY-TOPIC", "mode": "alert"}),
            (bob, {"provider": "webpush", "endpoint": "http://127.0.0.1:9/CANARY-PUSH-TOKEN-3"}),
            (bob, {"provider": "gateway", "url": "https://CANARY-PUSH-HOST.invalid/CANARY-PUSH-TOKEN-4"}),
        ):
            assert account.call("PUT", "/v1/push-route", body, key=self.key(f"route-{body['provider']}")).status == 200
        for text in ("CANARY-PUSH-TOKEN", "CANARY-PUSH-HOST", "CANARY-TOPIC"):
            self.canaries.plant("push token", text)
        self.note(bob.call("PUT", "/v1/push-route", {"provider": "webpush", "endpoint": "CANARY-PUSH-TOKEN"}))
        envelope = {"client_message_id": to_text(self.cmid()), "envelopes": [self.envelope(bob.id)]}
        assert alice.call("POST", "/v1/envelopes", envelope).status == 201

    async def sockets(self, alice: HttpAccount, bob: HttpAccount) -> None:
        """The same over the WebSocket, and frames that are none."""
        alice.token, bob.token = alice.fresh_token(), bob.fresh_token()
        self.know(alice)
        self.know(bob)
        mine, theirs = await self.socket(self.url), await self.socket(self.other_url)
        await mine.hello(alice.token, client="CANARY-CLIENT-NAME", instance=b"CANARY-INSTANCE!", attempt=1)
        await theirs.hello(bob.token)
        self.canaries.plant("client name", "CANARY-CLIENT-NAME")
        self.canaries.plant("client instance", b"CANARY-INSTANCE!")
        sent = self.envelope(bob.id)
        mid = MessageId(id_from_text(sent["message_id"]))
        one = SendEnvelope(bob.device_id, mid, 1, BODY)
        mine.send(
            Send(ClientMessageId(self.cmid()), (one,)),
            Send(ClientMessageId(self.cmid()), (one._replace(body=BODY + b"?"),)),
            Send(ClientMessageId(self.cmid()), (one._replace(to=DeviceId(os.urandom(16))),)),
        )
        broken = bob.token[:-8] + "AAAAAAAA"
        theirs.send(PullMailbox(1, cursor=to_text(BODY)), PullMailbox(2), Defer((mid,)), Reauth(broken))
        theirs.send(Reauth(bob.token), Ack(3, (mid,)))
        for client, errors in ((mine, 2), (theirs, 2)):
            while len(client.errors()) < errors:
                await client.frame()
        mine.send_message(BODY)
        theirs.send_message(pack((2, {"cmid": BODY, "envelopes": [BODY]})))
        for client in (mine, theirs):
            await client.closed()
            # `cmid` says to which SEND an ERROR belongs, and only its sender hears it.
            self.error_bodies += [repr(error._replace(cmid=None)).encode() for error in client.errors()]
        stranger = await self.socket(self.url)
        stranger.send_message(pack((1, {"token": alice.token[:-8]})))
        await stranger.closed()
        for client in (mine, theirs, stranger):
            client.cut()
            with suppress(ConnectionError):
                await client.writer.wait_closed()

    async def socket(self, url: str) -> RawClient:
        parts = urlsplit(url)
        client = await RawClient.connect(str(parts.hostname), int(parts.port or 0))
        assert (await client.upgrade(headers={"X-Forwarded-For": CLIENT_ADDRESS})).status == 101
        return client

    def database_faults(self, alice: HttpAccount, bob: HttpAccount) -> None:
        """Writes that the database refuses with the row in its message; a gateway that is killed."""
        path = f"/v1/identities/{to_text(bob.identity_id)}/prekey-claims"
        send = {"client_message_id": to_text(self.cmid()), "envelopes": [self.envelope(bob.id)]}
        challenge = {"device_id": bob.id, "purpose": "token"}
        route = {"provider": "fcm", "token": "CANARY-PUSH-TOKEN-5"}
        for table, check, ask_it in (
            ("push_routes", "provider <> 'fcm'", lambda: alice.call("PUT", "/v1/push-route", route)),
            ("prekeys", "state <> 'consumed'", lambda: alice.call("POST", path, {})),
            ("envelopes", "kind <> 0", lambda: alice.call("POST", "/v1/envelopes", send)),
            ("mailbox_owners", "contact_at IS NULL", lambda: alice.call("GET", "/v1/mailbox")),
            ("auth_challenges", "false", lambda: ask(self.url, "POST", "/v1/auth/challenges", challenge)),
        ):
            asyncio.run(break_table(self.dsn, table, check))
            answer = self.note(ask_it())
            asyncio.run(mend_table(self.dsn, table))
            assert answer.status in (200, 500, 503), (table, answer)
        os.kill(self.up.report["pids"]["gateways"][1], signal.SIGKILL)

    def devices(self, alice: HttpAccount) -> None:
        """Another phone, and the end of the first."""
        new = Keys()
        self.canaries.plant("public key", new.public)
        addition = alice.keys.addition(
            alice.instance, alice.identity_id, alice.device_id, alice.challenge("device.add"), new, alice.device_id
        )
        body = {
            "device_public_key": to_text(new.public),
            "proof": to_text(addition.proof),
            "challenge": to_text(addition.challenge),
            "signature": to_text(addition.signature),
            "replaces": alice.id,
        }
        added = alice.call("POST", "/v1/devices", body, key=self.key("phone"))
        assert added.status == 201, added
        self.canaries.plant("device id", from_text(added.content["device_id"]))
        assert self.note(alice.call("GET", "/v1/mailbox")).status == 403
