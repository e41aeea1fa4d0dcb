"""A WebSocket client made of bytes: it sends what a test wants sent, well-formed or not, and shows what comes back."""

from __future__ import annotations

import asyncio
import base64
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from protocol.codec import decode_server_frame, encode_client_frame
from protocol.frames import (
    Ack,
    ClientFrame,
    Error,
    Hello,
    MailboxBatch,
    PushEvents,
    Send,
    SendAck,
    SendEnvelope,
    ServerFrame,
    Welcome,
)
from protocol.ids import ClientMessageId, DeviceId, MessageId

WAIT_SECONDS: Final = 30.0

TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 0x1, 0x2, 0x0, 0x8, 0x9, 0xA

Frame = TypeVar("Frame", bound=ServerFrame)


class Closed(Exception):
    """The server ended the connection: with a close frame, or (code 1006) without."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


def ws_frame(
    payload: bytes,
    opcode: int = BINARY,
    *,
    fin: bool = True,
    masked: bool = True,
    rsv: int = 0,
    length: int | None = None,
) -> bytes:
    """One frame as a client sends it; `length` says something else than the truth."""
    size = len(payload) if length is None else length
    first = bytes(((0x80 if fin else 0) | rsv << 4 | opcode,))
    mask_bit = 0x80 if masked else 0
    if size < 126:
        head = first + bytes((mask_bit | size,))
    elif size < 65_536:
        head = first + bytes((mask_bit | 126,)) + size.to_bytes(2, "big")
    else:
        head = first + bytes((mask_bit | 127,)) + size.to_bytes(8, "big")
    if not masked:
        return head + payload
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


@dataclass
class HttpAnswer:
    status: int
    headers: dict[str, str]
    body: bytes = b""


@dataclass(repr=False)
class RawClient:
    """One TCP connection. `frame` and its kin wait at most WAIT_SECONDS."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    seen: list[ServerFrame] = field(default_factory=list)  # everything that came, in order
    pings: int = 0
    answers_pings: bool = True

    @classmethod
    async def connect(cls, host: str, port: int, **options: Any) -> RawClient:
        """A bare connection; `options` go to asyncio.open_connection."""
        reader, writer = await asyncio.open_connection(host, port, **options)
        return cls(reader, writer)

    # HTTP

    async def request(self, head: str, body: bytes = b"") -> HttpAnswer:
        """Send a request as it stands (lines ended by \\n here) and read its answer."""
        self.writer.write(head.replace("\n", "\r\n").encode("latin-1") + body)
        return await self.http_answer()

    async def http_answer(self) -> HttpAnswer:
        async with asyncio.timeout(WAIT_SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *fields = head.rstrip("\r\n").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
            size = int(headers.get("content-length", "0"))
            body = await self.reader.readexactly(size)
        return HttpAnswer(int(line.split(" ")[1]), headers, body)

    async def upgrade(
        self, *, path: str = "/v1/ws", protocol: str | None = "mailboxd.v1", headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        """Ask for the WebSocket."""
        lines = {
            "Host": "mailboxd.test",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
            "Sec-WebSocket-Version": "13",
            **({"Sec-WebSocket-Protocol": protocol} if protocol is not None else {}),
            **(headers or {}),
        }
        return await self.request(f"GET {path} HTTP/1.1\n" + "".join(f"{k}: {v}\n" for k, v in lines.items()) + "\n")

    # Out

    def send_raw(self, data: bytes) -> None:
        self.writer.write(data)

    def send_message(self, message: bytes) -> None:
        """One binary message."""
        self.writer.write(ws_frame(message))

    def send(self, *frames: ClientFrame) -> None:
        """Frames in one write."""
        self.writer.write(b"".join(ws_frame(encode_client_frame(frame)) for frame in frames))

    # In

    async def next(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame that is no ping; Closed at the end."""
        while True:
            try:
                first, second = await self.reader.readexactly(2)
                size = second & 0x7F
                if size == 126:
                    size = int.from_bytes(await self.reader.readexactly(2), "big")
                elif size == 127:
                    size = int.from_bytes(await self.reader.readexactly(8), "big")
                payload = await self.reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                raise Closed(1006) from error
            opcode = first & 0x0F
            if opcode == PING:
                self.pings += 1
                if self.answers_pings:
                    self.writer.write(ws_frame(payload, PONG))
                continue
            if opcode == CLOSE:
                self.writer.write(ws_frame(payload, CLOSE))
                raise Closed(struct.unpack("!H", payload[:2])[0], payload[2:].decode())
            return opcode, payload

    async def frame(self, within_seconds: float = WAIT_SECONDS) -> ServerFrame:
        """The next frame of the contract."""
        async with asyncio.timeout(within_seconds):
            opcode, payload = await self.next()
        assert opcode == BINARY
        frame = decode_server_frame(payload)
        assert frame is not None
        self.seen.append(frame)
        return frame

    async def expect(self, kind: type[Frame], within_seconds: float = WAIT_SECONDS) -> Frame:
        """The next frame of this kind; PUSH_EVENTS are passed over unless asked for, anything else is a failure."""
        while True:
            frame = await self.frame(within_seconds)
            if isinstance(frame, kind):
                return frame
            assert isinstance(frame, PushEvents), str(frame)[:500]

    async def find(self, kind: type[Frame], within_seconds: float = WAIT_SECONDS) -> Frame:
        """The next frame of this kind, whatever comes before it (which is kept in `seen`)."""
        while not isinstance(frame := await self.frame(within_seconds), kind):
            pass
        return frame

    async def closed(self, within_seconds: float = WAIT_SECONDS) -> Closed:
        """How the server ends the connection; frames before that are kept in `seen`."""
        try:
            while True:
                await self.frame(within_seconds)
        except Closed as closed:
            return closed

    def errors(self) -> list[Error]:
        return [frame for frame in self.seen if isinstance(frame, Error)]

    # The contract

    async def hello(self, token: str, **fields: Any) -> Welcome:
        self.send(Hello(token, **fields))
        return await self.expect(Welcome)

    async def caught_up(self) -> list[MailboxBatch]:
        """Every pushed batch up to the one that says `caught_up`."""
        batches: list[MailboxBatch] = []
        while not batches or not batches[-1].caught_up:
            batches.append(await self.expect(MailboxBatch))
        return batches

    async def deliver(self, to: DeviceId, body: bytes = b"sealed", *, echo: bool = False, **fields: Any) -> MessageId:
        """SEND one envelope and wait for its SEND_ACK."""
        mid = MessageId(os.urandom(16))
        cmid = ClientMessageId(os.urandom(16))
        self.send(Send(cmid, (SendEnvelope(to, mid, 1, body, **fields),), echo))
        answer = await self.expect(SendAck)
        assert answer.cmid == cmid
        return mid

    def ack(self, *mids: MessageId, ref: int = 1) -> None:
        self.send(Ack(ref, mids))

    def cut(self) -> None:
        """End the connection without a word."""
        self.writer.transport.abort()

    async def leave(self) -> None:
        """Close in good order."""
        self.writer.write(ws_frame(struct.pack("!H", 1000), CLOSE))
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while await self.reader.read(65_536):
                    pass
        except ConnectionError:
            pass
        self.writer.close()
