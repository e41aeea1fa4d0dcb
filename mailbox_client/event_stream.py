"""Events for any number of readers, each at its own pace."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

from mailbox_client.events import Event, Stopped

EVENTS_KEPT: Final = 1_024


class EventStream:
    """A reader hears what is published while it reads; one that falls 1,024 events behind loses the oldest."""

    def __init__(self) -> None:
        self._readers: list[tuple[deque[Event], asyncio.Event]] = []

    def publish(self, event: Event) -> None:
        for queue, bell in self._readers:
            queue.append(event)
            bell.set()

    async def read(self) -> AsyncGenerator[Event, None]:
        """Until the client stops, that event included."""
        queue: deque[Event] = deque(maxlen=EVENTS_KEPT)
        bell = asyncio.Event()
        reader = (queue, bell)
        self._readers.append(reader)
        try:
            while True:
                while queue:
                    event = queue.popleft()
                    yield event
                    if isinstance(event, Stopped):
                        return
                bell.clear()
                await bell.wait()
        finally:
            self._readers.remove(reader)
