"""What `send` and `listen` say on standard error while they work: how far they are, and what they wait for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

LIVE_EVERY_S: Final = 0.5  # on a terminal, where one line is written over and over
LINE_EVERY_S: Final = 5.0  # elsewhere, each time a line of its own
SHORT_WAIT_MS: Final = 1_000  # a shorter one is over before anybody has read of it
_ERASE_LINE: Final = "\r\x1b[K"


class Progress:
    """Counts bytes and tells of them now and then, and of what is waited for.

    `verb` says what happens to the bytes; `whole` is how many there will be, where that is known.
    """

    def __init__(
        self,
        verb: str,
        whole: int | None = None,
        *,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._verb = verb
        self._whole = whole
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty()
        self._now = now
        self._every_s = LIVE_EVERY_S if self._live else LINE_EVERY_S
        self._next = now() + self._every_s
        self._moved = 0
        self._waiting = ""
        self._dirty = False  # a live line stands there

    def moved(self, count: int) -> None:
        """So many bytes more are done."""
        self._moved += count
        self._waiting = ""
        if self._now() >= self._next:
            self._say_how_far()

    def wait(self, reason: str, wait_ms: int) -> None:
        """Nothing moves for a while. Said once for each reason, until something moves."""
        if wait_ms >= SHORT_WAIT_MS and reason != self._waiting:
            self._waiting = reason
            self.line(f"waiting {-(-wait_ms // 1_000)} s: {reason}")

    def goes_on(self) -> None:
        """What was waited for is over."""
        self._waiting = ""

    def line(self, text: str) -> None:
        """Say something that stays there."""
        self.end()
        print(f"mailboxd: {text}", file=self._stream, flush=True)

    def end(self) -> None:
        """Leave no half line behind."""
        if self._dirty:
            self._stream.write(_ERASE_LINE)
            self._stream.flush()
            self._dirty = False

    def _say_how_far(self) -> None:
        self._next = self._now() + self._every_s
        text = f"{_size(self._moved)} {self._verb}"
        if self._whole:
            text += f" ({100 * self._moved // self._whole} %)"
        if self._live:
            self._stream.write(f"{_ERASE_LINE}mailboxd: {text}")
            self._stream.flush()
            self._dirty = True
        else:
            self.line(text)


def _size(count: int) -> str:
    return f"{count / 1_048_576:.1f} MiB" if count >= 1_048_576 else f"{count / 1_024:.0f} KiB"
