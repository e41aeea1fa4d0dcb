"""One write a connection and turn of the loop: what has something to say queues here until the turn's end.

What nobody waits for may stay a little longer: on a busy gateway the next thing to say to the same client is never far,
and then one write, one packet and one wake-up of the client carry both (ADR 0075).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

PATIENCE_S: Final = 0.02
PATIENT_FEW: Final = 16  # fewer connections than this do not wait: there is nothing to save


class Flushable(Protocol):
    """A connection with queued messages."""

    def flush(self) -> None:
        """Hand everything queued to the transport. Never raises."""
        ...


class FlushQueue:
    """So what a batch of commits, a page and a new request give rise to in one turn goes out in one write."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float]) -> None:
        """`now`: monotonic seconds."""
        self._loop = loop
        self._call_soon = loop.call_soon
        self.now = now
        self._dirty: list[Flushable] = []
        self._patient: list[Flushable] = []
        self._turn_ends = False  # the flush of this turn is under way
        self._timer = False

    def add(self, connection: Flushable) -> None:
        """Flush it in this turn; once, however much it has to say."""
        if not self._turn_ends:
            self._turn_ends = True
            self._call_soon(self._flush)
        self._dirty.append(connection)

    def add_patient(self, connection: Flushable) -> None:
        """Flush it within PATIENCE_S, in this turn if few wait; whoever has more to say meanwhile takes it along."""
        if not self._turn_ends:
            self._turn_ends = True
            self._call_soon(self._flush)
        self._patient.append(connection)

    def _flush(self) -> None:
        self._turn_ends = False
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()
        if not self._patient or self._timer:
            return
        if len(self._patient) < PATIENT_FEW:
            self._flush_patient()
        else:
            self._timer = True
            self._loop.call_later(PATIENCE_S, self._patience_ends)

    def _patience_ends(self) -> None:
        self._timer = False
        self._flush_patient()

    def _flush_patient(self) -> None:
        patient, self._patient = self._patient, []
        for connection in patient:
            connection.flush()
