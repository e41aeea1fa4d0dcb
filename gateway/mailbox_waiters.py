"""HTTP requests that wait for mail: who waits for which device, rung by a commit here or a wake from elsewhere.

A ring is a hint. Whoever waits reads the database before and after, so a lost one costs the time that it asked to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from protocol.errors import ErrorCode, MailboxError
from protocol.ids import DeviceId
from runtime.doorbell import Doorbell
from store.wake import WakeNames


class MailboxWaiters:
    """Bounded: past `waiting_max` the newcomer is refused and nobody is evicted.

    The wake listener sets `on_first` and `on_last`: a channel is subscribed while somebody waits on it.
    """

    def __init__(self, names: WakeNames, waiting_max: int) -> None:
        self._names = names
        self._waiting_max = waiting_max
        self._by_channel: dict[bytes, dict[Doorbell, None]] = {}
        self._released = False
        self.waiting = 0
        self.on_first: Callable[[bytes], None] = _nobody_listens
        self.on_last: Callable[[bytes], None] = _nobody_listens

    def channels(self) -> Collection[bytes]:
        """The wake channels that somebody waits on, for subscribing them all again."""
        return self._by_channel.keys()

    @property
    def released(self) -> bool:
        """This process drains: nobody should wait any more."""
        return self._released

    @contextmanager
    def wait_for(self, device: DeviceId) -> Iterator[Doorbell]:
        """A doorbell that rings when the device's mailbox may have changed. Enter it before the first read.

        Raises MailboxError UNAVAILABLE when too many wait already.
        """
        if self.waiting >= self._waiting_max:
            raise MailboxError(ErrorCode.UNAVAILABLE, "Too many requests wait already.", retry_after_ms=5_000)
        channel = self._names.device(device)
        doorbell = Doorbell()
        ringing = self._by_channel.setdefault(channel, {})
        ringing[doorbell] = None
        self.waiting += 1
        if len(ringing) == 1:
            self.on_first(channel)
        try:
            yield doorbell
        finally:
            self.waiting -= 1
            del ringing[doorbell]
            if not ringing:
                del self._by_channel[channel]
                self.on_last(channel)

    def ring_device(self, device: DeviceId) -> None:
        """Something was committed for this device here."""
        if self._by_channel:
            self.ring_channel(self._names.device(device))

    def ring_channel(self, channel: bytes) -> None:
        """A wake came in on this channel."""
        for doorbell in self._by_channel.get(channel, ()):
            doorbell.ring()

    def ring_all(self) -> None:
        """Wakes may have been lost: everybody looks again."""
        for ringing in self._by_channel.values():
            for doorbell in ringing:
                doorbell.ring()

    def release_all(self) -> None:
        """From here on nobody waits; those who do answer at once with what there is."""
        self._released = True
        self.ring_all()


def _nobody_listens(_channel: bytes) -> None:
    """Before the wake listener is there, only commits in this process ring."""
