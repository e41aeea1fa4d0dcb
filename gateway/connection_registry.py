"""Who is connected to this process: by device, by wake channel, and everybody."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.session import DeviceSession
    from protocol.ids import DeviceId


class ConnectionRegistry:
    """At most one session a device delivers: the one that the database's epoch names, as far as this process knows."""

    def __init__(self) -> None:
        self._by_device: dict[DeviceId, DeviceSession] = {}
        self._by_channel: dict[bytes, DeviceSession] = {}
        self._everybody: dict[DeviceSession, None] = {}

    def __len__(self) -> int:
        """All WebSocket connections, those before HELLO included."""
        return len(self._everybody)

    @property
    def sessions(self) -> int:
        """Devices with a live session here."""
        return len(self._by_device)

    def add(self, session: DeviceSession) -> None:
        """A connection was upgraded; it has no device yet."""
        self._everybody[session] = None

    def remove(self, session: DeviceSession) -> bool:
        """The connection is gone. True when it was its device's session here."""
        self._everybody.pop(session, None)
        device = session.device
        if device is None or self._by_device.get(device) is not session:
            return False
        del self._by_device[device]
        self._by_channel.pop(session.channel, None)
        return True

    def bind(self, session: DeviceSession) -> DeviceSession | None:
        """Make it its device's session; gives the one that it replaces here, if any."""
        device = session.device
        if device is None:
            raise RuntimeError("a session is bound once its device is known")
        before = self._by_device.get(device)
        self._by_device[device] = session
        self._by_channel[session.channel] = session
        return before

    def of_device(self, device: DeviceId) -> DeviceSession | None:
        """The live session of a device on this gateway."""
        return self._by_device.get(device)

    def of_channel(self, channel: bytes) -> DeviceSession | None:
        """The live session whose wakes come on this channel."""
        return self._by_channel.get(channel)

    def channels(self) -> Collection[bytes]:
        return self._by_channel.keys()

    def live(self) -> list[DeviceSession]:
        """The live sessions at this moment."""
        return list(self._by_device.values())

    def everybody(self) -> Iterator[DeviceSession]:
        """All connections at this moment."""
        return iter(list(self._everybody))
