"""Messages between the engine and the app's loops: handed over by the one, taken and settled by the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from mailbox_client.local_store import StoredMessage
from mailbox_client.pulse import Pulse
from protocol.ids import MessageId


class HandedOver:
    """What the store calls handed over, in this process: not looked at yet, or in the app's hands."""

    def __init__(self) -> None:
        self.pulse = Pulse()  # something came, or nothing will come any more
        self._waiting: deque[StoredMessage] = deque()
        self._in_hand: dict[MessageId, None] = {}
        self._asked = False

    def ask(self) -> bool:
        """True if the engine is to be asked for messages now: one question at a time."""
        asks, self._asked = not self._asked, True
        return asks

    def came(self, messages: Sequence[StoredMessage]) -> None:
        """The engine's answer, which may be empty."""
        self._asked = False
        self._waiting.extend(messages)
        if messages:
            self.pulse.ring()

    def take(self) -> StoredMessage | None:
        """The next one, in the app's hands from here on."""
        if not self._waiting:
            return None
        message = self._waiting.popleft()
        self._in_hand[message.entry.mid] = None
        return message

    def settled(self, mids: Iterable[MessageId]) -> None:
        for mid in mids:
            self._in_hand.pop(mid, None)

    def give_up(self, *, clean: bool) -> tuple[MessageId, ...]:
        """Those to give back at the end. After a crash what is in hand is not: its crash is to be counted."""
        back = [message.entry.mid for message in self._waiting]
        self._waiting.clear()
        return tuple([*self._in_hand, *back] if clean else back)
