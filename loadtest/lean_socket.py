"""A WebSocket client that costs a load generator almost nothing: an `asyncio.Protocol`, one write per wake-up.

Only what a well-behaved server sends is understood; anything else ends the connection with a reason, since a load
generator that hides a server's mistake measures nothing. Not for apps: they use `mailbox_client`.
"""

from __future__ import annotations

import asyncio
import base64
import os
from struct import Struct
from typing import Any, Final, cast

import msgpack  # type: ignore[import-untyped]

from protocol.frames import FrameType

SUBPROTOCOL: Final = "mailboxd.v1"
# RFC 6455 asks a client for a mask, and any key is legal. With the zero key masking is the identity and costs nothing.
_ZERO_MASK: Final = bytes(4)
_BINARY_FIN: Final = 0x82
_PING: Final = 0x89
_PONG: Final = 0x8A
_CLOSE: Final = 0x88

pack: Final = msgpack.Packer(use_bin_type=True, autoreset=True).pack


def frame_head(size: int, opcode: int = _BINARY_FIN) -> bytes:
    """The head of one masked message of `size` bytes, zero mask key included."""
    if size < 126:
        return bytes((opcode, 0x80 | size)) + _ZERO_MASK
    if size < 65_536:
        return bytes((opcode, 0x80 | 126)) + size.to_bytes(2, "big") + _ZERO_MASK
    return bytes((opcode, 0x80 | 127)) + size.to_bytes(8, "big") + _ZERO_MASK


def message(value: object) -> bytes:
    """One whole binary message, head included."""
    payload = cast(bytes, pack(value))
    return frame_head(len(payload)) + payload


def hello(token: str, **options: Any) -> bytes:
    return message([FrameType.HELLO, {"token": token, **options}])


def ack(ref: int, mids: list[bytes]) -> bytes:
    return message([FrameType.ACK, {"ref": ref, "mids": mids}])


class SendTemplate:
    """SENDs of one envelope each with bodies of one size, made by joining pre-packed parts."""

    def __init__(self, payload_bytes: int, *, echo: bool) -> None:
        probe = bytes(range(1, 17)), bytes(range(17, 33)), bytes(range(33, 49))
        body = bytes(payload_bytes)
        packed = cast(
            bytes,
            pack(
                [
                    FrameType.SEND,
                    {
                        "cmid": probe[0],
                        "echo": echo,
                        "envelopes": [{"to": probe[1], "mid": probe[2], "pv": 1, "body": body}],
                    },
                ]
            ),
        )
        first, rest = packed.split(probe[0])
        second, rest = rest.split(probe[1])
        third, rest = rest.split(probe[2])
        self._head = frame_head(len(packed)) + first
        self._to = second
        self._mid = third
        self._body = rest[: len(rest) - payload_bytes]  # the body is the last value packed

    def message(self, cmid: bytes, to: bytes, mid: bytes, body: bytes) -> bytes:
        """One whole SEND; `body` must have the template's size."""
        return b"".join((self._head, cmid, self._to, to, self._mid, mid, self._body, body))


class Layout:
    """Messages that differ from an example in values of fixed length alone: read in one step, without building maps.

    Any other message, also one that says the same in another form, is not of the layout and is for the unpacker.
    """

    def __init__(self, example: object, *values: bytes | int) -> None:
        """`values`: those that differ, in the order packed, each once in the example. An int takes eight bytes."""
        rest = cast(bytes, pack(example))
        form, literals = ">", []
        for value in values:
            literal, rest = rest.split(value.to_bytes(8, "big") if isinstance(value, int) else value)
            literals.append(literal)
            form += f"{len(literal)}s" + ("Q" if isinstance(value, int) else f"{len(value)}s")
        struct = Struct(f"{form}{len(rest)}s")
        self.size = struct.size
        self._unpack = struct.unpack
        self._literals = (*literals, rest)

    def read(self, message: bytes) -> tuple[Any, ...] | None:
        """The values of a message of `size` bytes, None if it is of another layout."""
        values = self._unpack(message)
        return values[1::2] if values[::2] == self._literals else None


class LeanSocket(asyncio.Protocol):
    """One connection. Subclasses say what to do with each frame and put their answers into `out`.

    `out` is written once after all frames of a wake-up were handled; call `flush` when something was put there at
    another time. `lost` is called once, however the connection ends.
    """

    def __init__(self, host: str, token: str) -> None:
        self.out: list[bytes] = []
        self.transport: asyncio.Transport | None = None
        self.close_code: int | None = None
        self.close_reason = ""
        self._host = host
        self._token = token
        self._open = False
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 0

    # -- what a subclass fills in

    def hello_message(self) -> bytes:
        """The first message after the upgrade."""
        return hello(self._token)

    def message(self, message: bytes) -> None:
        """Handle one server frame as it came in."""
        kind, body = msgpack.unpackb(message)
        self.frame(kind, body)

    def frame(self, kind: int, body: dict[str, Any]) -> None:
        """Handle one server frame."""
        raise NotImplementedError

    def wake_up_ends(self) -> None:
        """All frames that arrived together are handled; what answers them as a whole goes into `out` now."""

    def lost(self, reason: str) -> None:
        """The connection has ended."""

    def admitted(self) -> None:
        """The upgrade was accepted; HELLO leaves now."""

    def upgrade_refused(self, status_line: str, retry_after_s: int | None) -> None:
        """The server answered the upgrade with something else; the connection ends by itself."""

    # -- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        key = base64.b64encode(os.urandom(16)).decode()
        self.transport.write(
            f"GET /v1/ws HTTP/1.1\r\nHost: {self._host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        if self._have:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                return  # no joining while a large batch still comes in
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._have = 0
        if not self._open:
            data = self._upgraded(data)
            if not self._open:
                return
        rest = self._messages(data)
        if rest:
            self._chunks.append(rest)
            self._have = len(rest)
        self.wake_up_ends()
        if self.out:
            self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        reason = (
            f"closed with {self.close_code} {self.close_reason}" if self.close_code else str(exc or "connection lost")
        )
        self.lost(reason.strip())

    def flush(self) -> None:
        """Write what is in `out` in one call."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(b"".join(self.out))
        self.out.clear()

    def close(self) -> None:
        """Close normally (1000) and let go at once."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(frame_head(2, _CLOSE) + (1000).to_bytes(2, "big"))
            self.transport.close()

    def cut(self) -> None:
        """Let the connection vanish without a word of the protocol."""
        if self.transport is not None:
            self.transport.abort()

    # -- inside

    def _upgraded(self, data: bytes) -> bytes:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._chunks.append(data)
            self._have = len(data)
            self._need = 0
            return b""
        if not data.startswith(b"HTTP/1.1 101 "):
            head = data[:end].decode("latin-1").split("\r\n")
            wait = next((line[12:].strip() for line in head if line.lower().startswith("retry-after:")), "")
            self.upgrade_refused(head[0], int(wait) if wait.isdecimal() else None)
            self.cut()
            return b""
        self._open = True
        self.admitted()
        self.out.append(self.hello_message())
        return data[end + 4 :]

    def _messages(self, data: bytes) -> bytes:
        """Handle every whole message in `data`; what is left over is returned."""
        position, end = 0, len(data)
        while end - position >= 2:
            size, head = data[position + 1], 2
            if size == 126:
                size, head = int.from_bytes(data[position + 2 : position + 4], "big"), 4
            elif size == 127:
                size, head = int.from_bytes(data[position + 2 : position + 10], "big"), 10
            start = position + head
            stop = start + size
            if stop > end:
                self._need = stop - position
                return data[position:]
            opcode = data[position]
            if opcode == _BINARY_FIN:
                self.message(data[start:stop])
            else:
                self._control(opcode, data[start:stop])
            position = stop
        self._need = 2
        return data[position:]

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == _PING:
            self.out.append(frame_head(len(payload), _PONG) + payload)
        elif opcode == _CLOSE:
            if len(payload) >= 2:
                self.close_code = int.from_bytes(payload[:2], "big")
                self.close_reason = payload[2:].decode("utf-8", "replace")
            if self.transport is not None:
                self.transport.close()
        elif opcode != _PONG:
            self.close_reason = f"the server sent opcode {opcode:#x}"
            self.cut()
