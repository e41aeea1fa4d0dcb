"""Group commit: many callers, one transaction, and no timer.

While one flush runs the next batch gathers; alone, an item goes at once. Items of one key keep their order, and keys
take turns, so one busy sender cannot crowd out others. There is no task, future or timer per item: `put` takes a
callback.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

import structlog

from protocol.errors import ErrorCode, MailboxError, Outcome
from store.faults import overloaded, unknown_outcome

Item = TypeVar("Item")
Result = TypeVar("Result")

ITEM_AGE_MAX_S: Final = 30.0  # older items are refused rather than written late

log = structlog.get_logger(__name__)


class Waiting(Generic[Item, Result]):
    """An item on its way: what it weighs, since when it waits, whom to tell."""

    __slots__ = ("bytes", "done", "entries", "item", "key", "since", "told")

    def __init__(
        self,
        item: Item,
        key: int,
        entries: int,
        size: int,
        since: float,
        done: Callable[[Result | MailboxError], None],
    ) -> None:
        self.item = item
        self.key = key
        self.entries = entries
        self.bytes = size
        self.since = since
        self.done = done
        self.told = False

    def finish(self, result: Result | MailboxError) -> None:
        """Tell the caller, once: a flush that failed after it kept an item must not have it answered twice.

        A caller that fails is a bug of its own and must not reach its neighbours.
        """
        if self.told:
            return
        self.told = True
        try:
            self.done(result)
        except Exception:
            log.exception("the caller of a batch failed")


Told: TypeAlias = Sequence[tuple[Waiting[Item, Result], Result | MailboxError]]


class Coalescer(Generic[Item, Result]):
    """Joins concurrent calls into one flush at a time.

    `flush` gets the batch and returns a result for each item, but for those that it keeps: it holds their key and hands
    their results to `finish_later`. It must not raise for expected faults; what it does raise is logged, and its items
    answer INTERNAL.
    """

    def __init__(
        self,
        name: str,
        flush: Callable[[Sequence[Waiting[Item, Result]]], Awaitable[Told[Item, Result]]],
        *,
        clock: Callable[[], float],
        entries_max: int,
        bytes_max: int,
        waiting_max: int,
        waiting_bytes_max: int,
        item_age_max_s: float = ITEM_AGE_MAX_S,
    ) -> None:
        self._name = name
        self._flush = flush
        self._clock = clock
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._waiting_max = waiting_max
        self._waiting_bytes_max = waiting_bytes_max
        self._item_age_max_s = item_age_max_s
        self._queues: dict[int, deque[Waiting[Item, Result]]] = {}
        self._turn: deque[int] = deque()  # keys with something to take, each once
        self._held: set[int] = set()
        self._waiting = 0
        self._waiting_bytes = 0
        self._in_flight = 0
        self._due: list[Told[Item, Result]] = []  # decided, and the callers not yet told
        self._task: asyncio.Task[None] | None = None
        self._wakeup: asyncio.Future[None] | None = None
        self._idle: asyncio.Future[None] | None = None
        self._closed = False
        self.after_batch: list[Callable[[], None]] = []  # run once after all callers of a batch were told

    @property
    def waiting(self) -> int:
        """Items that no flush has taken yet."""
        return self._waiting

    def put(
        self, item: Item, *, key: int, entries: int, size: int, done: Callable[[Result | MailboxError], None]
    ) -> None:
        """Queue an item; `done` is called once, in the event loop, never from inside `put`.

        Raises UNAVAILABLE (not committed) at once when the queue is full or closed: nothing was queued.
        """
        if self._closed or self._waiting >= self._waiting_max or self._waiting_bytes + size > self._waiting_bytes_max:
            raise overloaded()
        waiting: Waiting[Item, Result] = Waiting(item, key, entries, size, self._clock(), done)
        queue = self._queues.get(key)
        if queue is None:
            self._queues[key] = deque((waiting,))
            if key not in self._held:
                self._turn.append(key)
        else:
            queue.append(waiting)
        self._waiting += 1
        self._waiting_bytes += size
        if self._wakeup is not None:
            if not self._wakeup.done():
                self._wakeup.set_result(None)
        elif self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"{self._name}-coalescer")

    async def submit(self, item: Item, *, key: int, entries: int, size: int) -> Result:
        """The awaitable form, for callers with a task of their own. Cancelling it does not recall the item."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def done(result: Result | MailboxError) -> None:
            if future.done():
                return
            if isinstance(result, MailboxError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.put(item, key=key, entries=entries, size=size, done=done)
        return await future

    def hold(self, key: int) -> None:
        """Take nothing more of this key until `release`: something of it has not been decided."""
        if key not in self._held:
            self._held.add(key)
            if key in self._queues:
                self._turn.remove(key)

    def release(self, key: int) -> None:
        """Go on with a held key."""
        if key in self._held:
            self._held.remove(key)
            if key in self._queues:
                self._turn.append(key)
                if self._wakeup is not None and not self._wakeup.done():
                    self._wakeup.set_result(None)

    def finish_later(self, results: Told[Item, Result]) -> None:
        """Tell the callers of items that a flush had kept."""
        self._tell(results)

    async def drain(self, timeout_s: float) -> bool:
        """Take nothing new, wait until everything queued was told; False when the time was not enough."""
        self._closed = True
        if self._task is None:
            return True
        if self._waiting or self._in_flight:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._idle,), timeout=timeout_s)
        clean = not (self._waiting or self._in_flight)
        self._task.cancel()
        await asyncio.wait((self._task,))
        for queue in self._queues.values():
            for waiting in queue:
                waiting.finish(overloaded())
        self._queues.clear()
        self._turn.clear()
        return clean

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        batch: Sequence[Waiting[Item, Result]] = ()
        try:
            while True:
                batch = self._take()
                if not batch:
                    self._tell_due()
                    if not self._turn:  # else a caller queued something more
                        await self._something_to_take()
                    continue
                self._in_flight = len(batch)
                if self._due:
                    # The flush writes its statement within this turn of the loop (store.driver_call), and in the next
                    # one the callers of the last batch are told while the database works on this one.
                    loop.call_soon(self._tell_due)
                told = await self._flushed(batch)
                self._due.append(told)
                self._in_flight, batch = 0, ()
        except asyncio.CancelledError:
            self._tell_due()
            self._tell([(waiting, unknown_outcome()) for waiting in batch])
            raise

    async def _something_to_take(self) -> None:
        if self._idle is not None and not self._waiting and not self._idle.done():
            self._idle.set_result(None)
        self._wakeup = asyncio.get_running_loop().create_future()
        await self._wakeup

    async def _flushed(self, batch: Sequence[Waiting[Item, Result]]) -> Told[Item, Result]:
        try:
            return await self._flush(batch)
        except Exception:
            log.exception("a batch failed", coalescer=self._name, items=len(batch))
            error = MailboxError(ErrorCode.INTERNAL, outcome=Outcome.UNKNOWN)
            return [(waiting, error) for waiting in batch]

    def _take(self) -> list[Waiting[Item, Result]]:
        """The next batch: one item of each key in turn, until a bound is reached. At least one, whatever its size."""
        batch: list[Waiting[Item, Result]] = []
        stale: list[tuple[Waiting[Item, Result], Result | MailboxError]] = []
        turn, queues = self._turn, self._queues
        entries = size = 0
        oldest_allowed = self._clock() - self._item_age_max_s
        while turn:
            key = turn[0]
            queue = queues[key]
            waiting = queue[0]
            if batch and (entries + waiting.entries > self._entries_max or size + waiting.bytes > self._bytes_max):
                break
            turn.popleft()
            queue.popleft()
            if queue:
                turn.append(key)
            else:
                del queues[key]
            self._waiting -= 1
            self._waiting_bytes -= waiting.bytes
            if waiting.since < oldest_allowed:
                stale.append((waiting, overloaded()))
                continue
            entries += waiting.entries
            size += waiting.bytes
            batch.append(waiting)
        self._tell(stale)
        return batch

    def _tell_due(self) -> None:
        due, self._due = self._due, []
        for results in due:
            self._tell(results)

    def _tell(self, results: Told[Item, Result]) -> None:
        if not results:
            return
        for waiting, result in results:
            waiting.finish(result)
        for hook in self.after_batch:
            hook()
