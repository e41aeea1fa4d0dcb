"""WebSockets of the simulation: the library's own state machines on both ends of a wire that may break at any byte."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from mailbox_client.engine_io import FrameReceived, SocketLost, SocketOpened
from mailbox_client.transport_ws import CLOSE_TIMEOUT_S, SUBPROTOCOL, loss_of
from protocol.client_session import ClientSession, ContractBroken
from protocol.codec import decode_client_frame, decode_server_frame, encode_client_frame
from protocol.errors import MailboxError
from protocol.frames import ClientFrame, Hello, Ping, Send
from protocol.limits import MAX_FRAME_BYTES
from tests.simulation.model_server import Connection
from tests.simulation.wire import Wire

if TYPE_CHECKING:
    from tests.simulation.device import SimDevice
    from tests.simulation.world import World

ADDRESS: Final = parse_uri("ws://mailbox.example/v1/ws")
BUSY_S: Final = 2
HEAD_END: Final = b"\r\n\r\n"
_SILENT = logging.getLogger("tests.simulation.websockets")
_SILENT.disabled = True


class SimSocket:
    """The client's end, in the place of `mailbox_client.transport_ws`. What it puts and hears is audited."""

    def __init__(self, world: World, device: SimDevice, number: int) -> None:
        self._world = world
        self._device = device
        self._number = number
        self._told = False  # the client wants to hear nothing more, or has heard of the end
        self._opened = False
        self._audit = ClientSession(opened_at=world.seconds)
        self._ws = ClientProtocol(ADDRESS, subprotocols=[SUBPROTOCOL], max_size=MAX_FRAME_BYTES, logger=_SILENT)
        self.wire = wire = world.new_wire(device)
        if world.random.random() < world.weather.refused and world.random.random() < 0.5:
            self._world.schedule.after(wire.latency(), lambda: self._tell(SocketLost(number, unreachable=True)))
            return
        wire.to_client.take = self._heard
        wire.to_client.ended = self._ended
        ServerEnd(world, device, wire, self)
        self._ws.send_request(self._ws.connect())
        self._flush()

    # -- as the client's adapter

    def put(self, frame: ClientFrame) -> None:
        data = encode_client_frame(frame)
        try:
            self._audit.sending(frame, len(data), self._world.seconds)
        except ContractBroken as broken:
            self._world.fault(f"the client broke the contract: {broken}")
        if self._ws.state is State.OPEN:
            self._ws.send_binary(data)
            self._flush()

    def leave(self, *, at_once: bool) -> None:
        """The client closes: in good order, or without a word and with part of what was under way lost."""
        self._told = True
        if at_once:
            self.wire.break_now(silent=False)
        elif self._ws.state is State.OPEN:
            self._ws.send_close(1000)
            self._flush()
        else:
            self.wire.to_server.finish()

    # -- the wire

    def _heard(self, data: bytes) -> None:
        ws = self._ws
        try:
            ws.receive_data(data)
        except EOFError:
            return  # the closing handshake took too long, and was over without it
        for event in ws.events_received():
            if self._told:
                continue
            if not isinstance(event, Frame):
                self._handshake_over()
            elif event.opcode is Opcode.BINARY:
                self._frame(event.data)
            elif event.opcode is Opcode.CLOSE:
                self._world.schedule.after(int(CLOSE_TIMEOUT_S * 1000), self._ended)
        if ws.handshake_exc is not None:
            self._tell(loss_of(self._number, ws.handshake_exc))
        self._flush()

    def _handshake_over(self) -> None:
        if self._ws.handshake_exc is None:
            self._opened = True
            lost = self._ws.subprotocol != SUBPROTOCOL
            self._tell(SocketLost(self._number) if lost else SocketOpened(self._number))

    def _frame(self, data: bytes | bytearray | memoryview) -> None:
        frame = decode_server_frame(bytes(data))
        if frame is None:
            return
        try:
            self._audit.receive(frame, self._world.seconds)
        except ContractBroken as broken:
            self._world.fault(f"the server broke the contract: {broken}")
        self._tell(FrameReceived(self._number, frame))

    def _ended(self) -> None:
        ws = self._ws
        if not self._told:
            ws.receive_eof()
            if not self._opened:
                self._tell(SocketLost(self._number))
            elif ws.state is State.CLOSED:
                self._tell(loss_of(self._number, ws.close_exc))
            else:
                self._tell(SocketLost(self._number))
        self.wire.to_server.finish()

    def _tell(self, one: SocketOpened | SocketLost | FrameReceived) -> None:
        if self._told:
            return
        if isinstance(one, SocketLost):
            self._told = True
            self.wire.to_server.finish()
        self._device.step(one)

    def _flush(self) -> None:
        for data in self._ws.data_to_send():
            if data:
                self.wire.to_server.write(data)
            else:
                self.wire.to_server.finish()


class ServerEnd:
    """The server's end: the upgrade, or what a proxy makes of it, then frames to and from a model connection.

    `socket` is the client's end, None for a doubled connection: nobody hears what the server says to that.
    """

    def __init__(self, world: World, device: SimDevice, wire: Wire | None, socket: SimSocket | None) -> None:
        self._world = world
        self._device = device
        self._wire = wire
        self._socket = socket
        self._ws = ServerProtocol(subprotocols=[SUBPROTOCOL], max_size=MAX_FRAME_BYTES, logger=_SILENT)
        self._connection: Connection | None = None
        self._mute = world.weather.mute
        self._said: bytes | None = b"" if wire is not None and world.may_double() else None
        if wire is not None:
            wire.to_server.take = self.heard
            wire.to_server.ended = self.ended
        if self._said is not None:
            world.schedule.after(world.random.choice([10, 1_000, 60_000]), self._double)

    def heard(self, data: bytes) -> None:
        if self._said is not None:
            self._said += data
        try:
            self._ws.receive_data(data)
        except EOFError:
            return
        for event in self._ws.events_received():
            if isinstance(event, Request):
                self._upgrade(event)
            elif isinstance(event, Frame) and event.opcode is Opcode.BINARY and not self._mute:
                self._frame(bytes(event.data))
            elif isinstance(event, Frame) and event.opcode is Opcode.CLOSE:
                self._lost()
        self._flush()

    def ended(self) -> None:
        self._ws.receive_eof()
        self._lost()
        self._flush()

    def _double(self) -> None:
        """Something on the way makes the same connection again, and says what was said on it until now."""
        said, self._said = self._said, None
        ghost = ServerEnd(self._world, self._device, None, None)
        head, end, frames = (said or b"").partition(HEAD_END)
        for data in (head + end, frames):  # the upgrade is answered before what follows it is looked at
            ghost.heard(data)
        self._world.schedule.after(self._world.random.choice([10, 10_000]), ghost.ended)

    def _upgrade(self, request: Request) -> None:
        world, ws = self._world, self._ws
        if world.weather.blocked:
            ws.send_response(ws.reject(HTTPStatus.FORBIDDEN, "no upgrades here"))
        elif world.random.random() < world.weather.refused:
            self._refuse(request)
        else:
            response = ws.accept(request)
            ws.send_response(response)
            if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
                self._connection = Connection(world.server, self._say, self._close)

    def _refuse(self, request: Request) -> None:
        ws = self._ws
        kind = self._world.random.choice(["busy", "gateway", "no subprotocol", "hangs", "gone"])
        if kind == "busy":
            response = ws.reject(HTTPStatus.SERVICE_UNAVAILABLE, "")
            response.headers["Retry-After"] = str(BUSY_S)
            ws.send_response(response)
        elif kind == "gateway":
            ws.send_response(ws.reject(HTTPStatus.BAD_GATEWAY, "<html>no gateway behind the proxy</html>"))
        elif kind == "no subprotocol":
            response = ws.accept(request)
            del response.headers["Sec-WebSocket-Protocol"]
            ws.send_response(response)
        elif kind == "gone" and self._wire is not None:
            self._wire.break_now(silent=False)

    def _frame(self, data: bytes) -> None:
        connection, world = self._connection, self._world
        if connection is None:
            return
        try:
            frame = decode_client_frame(data)
        except MailboxError:
            frame = None  # the model connection says so itself
        if isinstance(frame, Ping):
            connection.receive(data)  # answered without the database
            return
        if isinstance(frame, Send):
            if self._socket is not None:
                world.history.send_arrives(self._device, frame, world.history.synced_at(self._device, self._socket))
            else:
                world.history.doubled(self._device, frame)
        world.at_database(lambda: self._serve(connection, frame, data))

    def _serve(self, connection: Connection, frame: ClientFrame | None, data: bytes) -> None:
        world = self._world
        if connection.ended:
            if isinstance(frame, Send) and connection.device is not None:
                world.commit_late(connection.device, frame)
            return
        connection.receive(data)
        if isinstance(frame, Hello) and self._socket is not None and not connection.ended:
            world.history.synced(self._socket)

    def _say(self, message: bytes) -> None:
        if self._ws.state is State.OPEN:
            self._ws.send_binary(message)
            self._flush()

    def _close(self, code: int | None, reason: str) -> None:
        if code is None:
            if self._wire is not None:
                self._wire.break_now(silent=False)
        elif self._ws.state is State.OPEN:
            self._ws.send_close(code, reason)
            self._flush()

    def _lost(self) -> None:
        if self._connection is not None and not self._connection.ended:
            self._connection.lost()

    def _flush(self) -> None:
        for data in self._ws.data_to_send():
            if self._wire is None:
                continue
            if data:
                self._wire.to_client.write(data)
            else:
                self._wire.to_client.finish()
