"""The model server behind a real socket: HTTP and WebSocket on one loopback port, with switches for a bad network."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from protocol import http_answers, http_shapes
from protocol.errors import ErrorCode, MailboxError
from protocol.frames import Send
from protocol.http_values import BodyFormat, Fields, parse_body, render_body
from protocol.ids import DeviceId
from protocol.limits import MAX_FRAME_BYTES
from protocol.signed_messages import register_message, token_message
from tests.simulation.model_server import Connection, ModelPolicy, ModelServer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ModelGateway:
    """Serves one ModelServer. The switches act from the next request on."""

    def __init__(self, policy: ModelPolicy | None = None) -> None:
        self.clock_skew_ms = 0
        self.model = ModelServer(lambda: int(time.time() * 1000) + self.clock_skew_ms, policy)
        self.websockets_blocked = False  # a proxy that does not let upgrades through
        self.down = False  # every request is cut without an answer
        self.requests: list[str] = []
        self.url = ""
        self._challenges: dict[bytes, DeviceId] = {}
        self._arrivals: dict[DeviceId, asyncio.Event] = {}
        self._open: set[web.WebSocketResponse] = set()
        self.model.on_entry = lambda device: self._arrived(device).set()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_FRAME_BYTES, middlewares=[self._errors])
        app.router.add_get("/v1/ws", self._websocket)
        app.router.add_get("/v1/instance", self._instance)
        app.router.add_post("/v1/identities", self._register)
        app.router.add_post("/v1/auth/challenges", self._challenge)
        app.router.add_post("/v1/auth/tokens", self._token)
        app.router.add_post("/v1/envelopes", self._send)
        app.router.add_get("/v1/mailbox", self._pull)
        app.router.add_post("/v1/mailbox/acks", self._ack)
        return app

    def cut_all(self) -> None:
        """Cut every WebSocket without a close frame."""
        for socket in list(self._open):
            transport = socket._req.transport if socket._req is not None else None
            if transport is not None:
                transport.abort()

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        if self.down:
            assert request.transport is not None
            request.transport.abort()
            raise web.HTTPServiceUnavailable
        try:
            return await handler(request)
        except MailboxError as error:
            return _answer(http_answers.problem(error, "request"), error.http_status)

    async def _body(self, request: web.Request) -> Fields:
        return parse_body(await request.read(), BodyFormat.MSGPACK)

    def _device(self, request: web.Request) -> DeviceId:
        return self.model.device_of(request.headers.get("Authorization", "").removeprefix("Bearer "))[0]

    # -- calls

    async def _instance(self, _request: web.Request) -> web.Response:
        policy = self.model.policy
        return _answer(
            http_answers.instance(
                self.model.instance_id, [], 1, "open", policy.protocol_versions, policy.limits, bytes(65)
            )
        )

    async def _register(self, request: web.Request) -> web.Response:
        asked = http_shapes.registration(await self._body(request))
        message = register_message(self.model.instance_id, asked.identity_public_bundle, asked.device_public_key)
        _verify(asked.device_public_key, asked.signature, message)
        identity, device = self.model.register(asked.device_public_key)
        return _answer(http_answers.registered(identity, device), 201)

    async def _challenge(self, request: web.Request) -> web.Response:
        asked = http_shapes.challenge_request(await self._body(request))
        challenge = (len(self._challenges) + 1).to_bytes(32, "big")
        self._challenges[challenge] = asked.device_id
        context = http_shapes.CHALLENGE_CONTEXTS[asked.purpose]
        return _answer(http_answers.challenge(challenge, context, self.model.now_ms + 60_000), 201)

    async def _token(self, request: web.Request) -> web.Response:
        asked = http_shapes.token_request(await self._body(request))
        public_key = self.model.public_key_of(asked.device_id)
        if public_key is None or self._challenges.pop(asked.challenge, None) != asked.device_id:
            raise MailboxError(ErrorCode.UNAUTHENTICATED)
        message = token_message(self.model.instance_id, asked.device_id, asked.challenge)
        _verify(public_key, asked.signature, message)
        token, ends, reauth_before = self.model.make_token(asked.device_id)
        return _answer(http_answers.token(token, ends, (ends - self.model.now_ms) // 1000, reauth_before), 201)

    async def _send(self, request: web.Request) -> web.Response:
        device = self._device(request)
        body = http_shapes.submit_body(await self._body(request), None)
        assert body.cmid is not None
        duplicate, results = self.model.send(device, Send(body.cmid, body.envelopes, body.echo))
        return _answer(http_answers.submitted(duplicate, results), 200 if duplicate else 201)

    async def _pull(self, request: web.Request) -> web.Response:
        device = self._device(request)
        asked = http_shapes.mailbox_query(request.query)
        page = self.model.pull(device, asked.cursor, asked.limit, asked.until)
        if not page.entries and asked.wait_s:
            arrived = self._arrived(device)
            arrived.clear()
            try:
                async with asyncio.timeout(asked.wait_s):
                    await arrived.wait()
            except TimeoutError:
                pass
            page = self.model.pull(device, asked.cursor, asked.limit, asked.until)
        return _answer(http_answers.mailbox(*page))

    async def _ack(self, request: web.Request) -> web.Response:
        device = self._device(request)
        mids = http_shapes.ack_ids(await self._body(request))
        self.model.ack(device, mids)
        return _answer(http_answers.acked(len(mids)))

    def _arrived(self, device: DeviceId) -> asyncio.Event:
        return self._arrivals.setdefault(device, asyncio.Event())

    # -- the WebSocket

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        if self.websockets_blocked:
            raise web.HTTPForbidden
        socket = web.WebSocketResponse(protocols=["mailboxd.v1"], compress=False, max_msg_size=MAX_FRAME_BYTES)
        await socket.prepare(request)
        self._open.add(socket)
        outbox: asyncio.Queue[bytes | tuple[int | None, str]] = asyncio.Queue()
        connection = Connection(self.model, outbox.put_nowait, lambda code, reason: outbox.put_nowait((code, reason)))
        writer = asyncio.create_task(_write(request, socket, outbox))
        try:
            async for message in socket:
                if message.type is WSMsgType.BINARY:
                    connection.receive(message.data)
        finally:
            connection.lost()
            self._open.discard(socket)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
        return socket


async def _write(
    request: web.Request, socket: web.WebSocketResponse, outbox: asyncio.Queue[bytes | tuple[int | None, str]]
) -> None:
    while True:
        item = await outbox.get()
        if isinstance(item, bytes):
            await socket.send_bytes(item)
            continue
        code, reason = item
        if code is None and request.transport is not None:
            request.transport.abort()
        else:
            await socket.close(code=code or WSCloseCode.OK, message=reason.encode())
        return


def _answer(value: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(
        body=render_body(value, BodyFormat.MSGPACK), status=status, content_type=BodyFormat.MSGPACK.value
    )


def _verify(public_key: bytes, signature: bytes, message: bytes) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except InvalidSignature as error:
        raise MailboxError(ErrorCode.UNAUTHENTICATED) from error


@asynccontextmanager
async def model_gateway(policy: ModelPolicy | None = None) -> AsyncIterator[ModelGateway]:
    """A gateway on a free loopback port, gone at the end."""
    gateway = ModelGateway(policy)
    runner = web.AppRunner(gateway.application(), shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        gateway.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield gateway
    finally:
        await runner.cleanup()
