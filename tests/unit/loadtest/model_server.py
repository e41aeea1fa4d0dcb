"""A mailbox server in a hundred lines and in memory, honest or with one planted fault that the swarm must notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from protocol.codec import decode_client_frame, encode_server_frame
from protocol.errors import ErrorCode, Outcome
from protocol.frames import (
    Ack,
    AckResult,
    Entry,
    Error,
    Hello,
    MailboxBatch,
    Reauth,
    Send,
    SendAck,
    SendResult,
    Welcome,
)
from protocol.ids import MessageId
from protocol.limits import WireLimits

LIMITS = WireLimits(
    max_frame_bytes=4 * 1024 * 1024, envelope_bytes_max=65_536, ttl_s_min=60, ttl_s_default=600, ttl_s_max=600
)


class Planted(StrEnum):
    """What the server does wrong, once, at its fifth SEND."""

    NOTHING = "nothing"
    LOSES = "loses"
    PUSHES_TWICE = "pushes twice"
    CORRUPTS = "corrupts"
    REFUSES = "refuses"  # legal, with not_committed
    REFUSES_AND_STORES = "refuses and stores"
    CUTS = "cuts"


class ModelServer:
    """Mailboxes by device id; a token is the device's id in hex."""

    def __init__(self, planted: Planted = Planted.NOTHING) -> None:
        self.planted = planted
        self.mailboxes: dict[bytes, dict[bytes, Entry]] = {}
        self.sessions: dict[bytes, ServerConnection] = {}
        self.sends = 0
        self.tokens_seen: list[str] = []
        self.port = 0
        self._progress = asyncio.Condition()

    async def until_answered(self, sends: int = 0, reauths: int = 0) -> None:
        """Return once that many SENDs and REAUTHs were handled."""
        async with asyncio.timeout(20), self._progress:
            await self._progress.wait_for(lambda: self.sends >= sends and len(self.tokens_seen) >= reauths)

    async def session(self, connection: ServerConnection) -> None:
        try:
            device = bytes(16)
            async for data in connection:
                assert isinstance(data, bytes)
                frame = decode_client_frame(data, hello_seen=device != bytes(16))
                match frame:
                    case Hello(token=token):
                        device = bytes.fromhex(token)
                        await self._hello(connection, device)
                    case Send():
                        await self._send(connection, device, frame)
                    case Ack(ref=ref, mids=mids):
                        for mid in mids:
                            self.mailboxes[device].pop(mid, None)
                        await self._answer(connection, AckResult(ref, ("acked",) * len(mids)))
                    case Reauth(token=token):
                        self.tokens_seen.append(token)
                    case _:
                        raise AssertionError(f"unexpected {frame}")
                async with self._progress:
                    self._progress.notify_all()
        except ConnectionClosed:
            pass

    async def _hello(self, connection: ServerConnection, device: bytes) -> None:
        self.sessions[device] = connection
        waiting = tuple(self.mailboxes.setdefault(device, {}).values())
        await self._answer(connection, Welcome("s", 1_000, 45, 10**12, LIMITS, "watermark", bool(waiting)))
        await self._answer(connection, MailboxBatch(None, waiting, "cursor", False, True))

    async def _send(self, connection: ServerConnection, device: bytes, send: Send) -> None:
        self.sends += 1
        fault = self.planted if self.sends == 5 else Planted.NOTHING
        if fault is Planted.CUTS:
            connection.transport.abort()
            return
        entries: list[tuple[bytes, Entry]] = [
            (e.to, Entry(e.mid, e.pv, e.body if fault is not Planted.CORRUPTS else bytes(len(e.body)), 1_000, 2_000))
            for e in send.envelopes
        ]
        if send.echo:
            entries.append(
                (device, Entry(MessageId(send.cmid[::-1]), 0, None, 1_000, 2_000, cmid=send.cmid, echo=True))
            )
        if fault in (Planted.REFUSES, Planted.REFUSES_AND_STORES):
            code, outcome = ErrorCode.MAILBOX_FULL, Outcome.NOT_COMMITTED
            await self._answer(connection, Error(code, "", True, "r", None, send.cmid, 1, (0,), outcome))
        if fault not in (Planted.LOSES, Planted.REFUSES):
            for to, entry in entries:
                await self._deliver(to, entry, 2 if fault is Planted.PUSHES_TWICE else 1)
        if fault not in (Planted.REFUSES, Planted.REFUSES_AND_STORES):
            results = tuple(SendResult(e.mid, 1_000, 2_000) for e in send.envelopes)
            await self._answer(connection, SendAck(send.cmid, False, results))

    async def _deliver(self, to: bytes, entry: Entry, times: int) -> None:
        self.mailboxes.setdefault(to, {})[entry.mid] = entry
        session = self.sessions.get(to)
        for _ in range(times if session is not None else 0):
            assert session is not None
            await self._answer(session, MailboxBatch(None, (entry,), "cursor", False, True))

    async def _answer(self, connection: ServerConnection, frame: object) -> None:
        try:
            await connection.send(encode_server_frame(frame))  # type: ignore[arg-type]
        except ConnectionClosed:
            pass  # the other side of a delivery may be gone


@asynccontextmanager
async def model_server(planted: Planted = Planted.NOTHING) -> AsyncIterator[ModelServer]:
    """Serve on a free loopback port."""
    model = ModelServer(planted)
    async with serve(
        model.session, "127.0.0.1", 0, subprotocols=[Subprotocol("mailboxd.v1")], compression=None, ping_interval=None
    ) as server:
        model.port = next(iter(server.sockets)).getsockname()[1]
        yield model
