"""How far the mailbox has been read: to the watermark, over HTTP page by page, and once a day from its beginning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mailbox_client.engine_io import GetPage, Page
from mailbox_client.local_store import LocalStore
from mailbox_client.settings import ClientSettings
from protocol.errors import ErrorCode, MailboxError

LAST_WALK: Final = "last_full_walk"
WALK_RETRY_MS: Final = 60_000
WALK_BREATH_MS: Final = 1_000  # at the rate's limit: sends have the same rate and shall not find it used up
CURSOR_REFUSED: Final = frozenset({ErrorCode.CURSOR_INVALID, ErrorCode.CURSOR_EXPIRED})


class Reading:
    """The reading of one device's mailbox.

    There is the stream, which the durable cursor follows: pushed by a WebSocket, pulled here over HTTP. And there is
    the walk from the oldest entry on, which moves no durable cursor: it brings back what was deferred (WIRE, DEFER).
    A long one may take minutes at the rate that the server allows: it goes on where it was after every refusal and in
    the next connection, and begins anew only where its cursor is refused, or in the next process.
    """

    def __init__(self, store: LocalStore, settings: ClientSettings, numbers: Iterator[int]) -> None:
        self._store = store
        self._settings = settings
        self._numbers = numbers
        self.caught_up = False
        self.echoes_wait = False  # sends are refused until our own echoes are read
        self._page: int | None = None  # the request for the stream's next page
        self._watermark: str | None = None  # of this HTTP session
        self._cursor_refused = False
        self._walking = False
        self._walk_page: int | None = None
        self._walk_cursor: str | None = None
        self._walk_at = 0  # server time

    def connection_lost(self) -> list[int]:
        """Start again with the next connection; gives the HTTP requests that nobody waits for any more."""
        waiting = [request for request in (self._page, self._walk_page) if request is not None]
        self.caught_up = False
        self._page = self._walk_page = None
        return waiting

    def reached_watermark(self, server_now: int) -> bool:
        """The stream stands at or past the watermark; True if this is news in this connection."""
        if self.caught_up:
            return False
        self.caught_up = True
        last_walk = self._store.noted_ms(LAST_WALK)
        if last_walk is None:
            last_walk = server_now
            self._store.note_ms(LAST_WALK, last_walk)
        if not self._walking:
            self._walk_at = last_walk + self._settings.full_walk_age_ms
        return True

    # -- the stream over HTTP

    def http_begins(self) -> None:
        self._watermark = None

    def next_page(self, *, app_is_slow: bool) -> GetPage | None:
        """The page to ask for now: on to the watermark, then waiting for something new.

        A slow app stops the polling, as a full window would, but neither the way to the watermark nor the echoes.
        """
        if self._page is not None or (app_is_slow and self.caught_up and not self.echoes_wait):
            return None
        self._page = next(self._numbers)
        wait_s, until = (self._settings.poll_wait_s, None) if self.caught_up else (0, self._watermark)
        return GetPage(self._page, self._store.cursor(), wait_s, until)

    def is_page(self, request: int) -> bool:
        return request == self._page

    def page_came(self, page: Page) -> bool:
        """Take note of the page that was asked for; True if it is the first of its session, which has the watermark."""
        first = self._watermark is None
        if first:
            self._watermark = page.watermark
        self._page = None
        self._cursor_refused = False
        self._store.set_cursor(page.cursor)
        return first

    def page_failed(self, error: MailboxError | None) -> bool:
        """True if the next page can simply be asked for: the cursor was refused, so it starts at the oldest entry.

        Another epoch, or too old; what is known by then is dropped as a duplicate (WIRE, CURSOR_INVALID).
        """
        self._page = None
        refused = error is not None and error.code in CURSOR_REFUSED
        if not refused or self._cursor_refused:
            return False
        self._cursor_refused = True
        self._watermark = None
        self._store.set_cursor(None)
        return True

    # -- the walk

    def walk_soon(self) -> None:
        """The app asks for what was deferred: walk from the oldest entry on as soon as the stream is caught up."""
        self._store.note_ms(LAST_WALK, 0)
        self._walking = False
        self._walk_at = 0

    def next_walk_page(self, server_now: int | None) -> tuple[int, str | None] | None:
        """The request and cursor of the walk's next page, once a day is over."""
        walk_at = self.walk_due_at
        if walk_at is None or server_now is None or server_now < walk_at:
            return None
        if not self._walking:
            self._walking = True
            self._walk_cursor = None
        self._walk_page = next(self._numbers)
        return self._walk_page, self._walk_cursor

    @property
    def walk_due_at(self) -> int | None:
        """The server's time of the walk's next page; None while there can be none."""
        return self._walk_at if self.caught_up and self._walk_page is None else None

    def is_walk_page(self, request: int) -> bool:
        return request == self._walk_page

    def walk_page_came(self, cursor: str, more: bool, server_now: int) -> bool:
        """Take note of a page of the walk; True if it was the last one."""
        self._walk_page = None
        if not self._walking:
            return False  # a walk from the oldest entry on was asked for meanwhile
        self._walk_cursor = cursor
        if more:
            return False
        self._walking = False
        self._store.note_ms(LAST_WALK, server_now)
        self._walk_at = server_now + self._settings.full_walk_age_ms
        return True

    def walk_failed(self, server_now: int, code: ErrorCode | None, retry_after_ms: int | None) -> None:
        """Go on with the walk later, where it is."""
        self._walk_page = None
        if code in CURSOR_REFUSED:
            self._walking = False
        pause_ms = WALK_BREATH_MS if code is ErrorCode.RATE_LIMITED else WALK_RETRY_MS
        self._walk_at = server_now + max(pause_ms, retry_after_ms or 0)
