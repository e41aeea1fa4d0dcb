"""The library's side of one connection, while something out of the ordinary is in progress (ADR 0041).

It is fed whole frames, so between two of them it is at a frame boundary: it can be dropped whenever no fragmented
message and no closing handshake is under way, and made anew for the next uncommon frame.
"""

from __future__ import annotations

import logging
from typing import Final

from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

CLOSING_MESSAGE_BYTES_MAX: Final = 16 * 1024

_LOG: Final = logging.getLogger("gateway.ws_library")
_LOG.setLevel(logging.ERROR)  # it would tell of every closed connection


class TextMessage(Exception):
    """A text message came, which the contract does not know. What is behind it does not count."""


class UncommonFrames:
    """websockets' Sans-I/O protocol with the fragments that it hands out joined."""

    __slots__ = ("_fragments", "_protocol")

    def __init__(self) -> None:
        self._protocol = ServerProtocol(state=OPEN, max_size=None, logger=_LOG)
        self._fragments: list[bytes] = []

    def feed(self, frame: bytes | bytearray, message_bytes_max: int) -> list[bytes]:
        """One whole frame, or the start of one that will not be accepted; gives the messages that it completes.

        Raises TextMessage. Pings are answered by what `to_send` gives, other faults by a close frame there.
        """
        protocol = self._protocol
        protocol.max_message_size = message_bytes_max
        protocol.receive_data(frame)
        messages: list[bytes] = []
        for event in protocol.events_received():
            if not isinstance(event, Frame) or event.opcode is Opcode.CLOSE:
                break
            if event.opcode is Opcode.TEXT:
                raise TextMessage
            if event.opcode is Opcode.BINARY or event.opcode is Opcode.CONT:
                self._fragments.append(bytes(event.data))
                if event.fin:
                    messages.append(b"".join(self._fragments))
                    self._fragments = []
        return messages

    def close(self, code: int, reason: str) -> None:
        """Begin the closing handshake. From here on a large frame ends in everything's being dropped."""
        self._protocol.send_close(code, reason)

    def feed_closing(self, data: bytes | bytearray) -> None:
        """Whatever comes after the close frame: only the other side's close counts."""
        self._protocol.max_message_size = CLOSING_MESSAGE_BYTES_MAX
        self._protocol.receive_data(data)
        self._protocol.events_received()

    def to_send(self) -> list[bytes]:
        """What it has to say; empty bytes stand for the end of the stream."""
        return self._protocol.data_to_send()

    @property
    def ended(self) -> bool:
        """A close frame was sent or answered."""
        return self._protocol.state is not OPEN

    @property
    def both_closed(self) -> bool:
        return self._protocol.close_rcvd is not None

    @property
    def idle(self) -> bool:
        """Nothing is under way: it may be dropped."""
        return not self.ended and self._protocol.current_size is None

    @property
    def held_bytes(self) -> int:
        """Bytes of fragments that are no message yet."""
        return sum([len(fragment) for fragment in self._fragments])
