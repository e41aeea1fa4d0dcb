"""Submit: the requests of all sessions, one transaction a batch, one verdict a request (seed 000, 3.1).

Two lanes. The first skips mailboxes that somebody else holds; what it had to skip goes, all together, to the second,
which waits. While a session has such a deferred SEND its later ones wait, so SENDs of one session commit in order.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import asyncpg
import structlog

from protocol.errors import MailboxError
from protocol.fingerprint import InstanceSecret
from runtime import faultpoints
from store.coalescer import ITEM_AGE_MAX_S, Coalescer, Told, Waiting
from store.faults import Fault, overloaded, unknown_outcome
from store.policy_rules import Policy
from store.postgres import Lane, LaneFault, Postgres
from store.records import SubmitRequest, Submitted
from store.sql_files import load_sql
from store.submit_columns import answers_of, columns_of, keys_of
from store.submit_plain import PlainColumns, plain_answers_of, plain_columns_of

ENTRIES_MAX: Final = 256  # envelopes in one batch; a commit costs about the same for one as for all of them
BYTES_MAX: Final = 8 * 1024 * 1024
WAITING_MAX: Final = 20_000
WAITING_BYTES_MAX: Final = 128 * 1024 * 1024
LOCK_TIMEOUT_MS: Final = 500
JUDGED_BATCHES: Final = 50  # after a batch that turned out to hold a repeat or a refusal
SOLO_S: Final = 60.0  # how long a session whose data broke a batch gets batches of its own
SOLO_SESSIONS_MAX: Final = 1_000

log = structlog.get_logger(__name__)

Item = Waiting[SubmitRequest, Submitted]
Done = Callable[[Submitted | MailboxError], None]


class Secrets(Protocol):
    """The fingerprint secrets of the key ring."""

    @property
    def fingerprint(self) -> InstanceSecret: ...
    @property
    def fingerprint_old(self) -> InstanceSecret | None: ...


class SubmitStore:
    """Accepts SENDs durably: an answer that is no error was committed before it was given."""

    def __init__(
        self,
        postgres: Postgres,
        policy: Callable[[], Policy],
        secrets: Callable[[], Secrets],
        clock: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._secrets = secrets
        self._clock = clock
        self._sql = load_sql("submit")
        self._lane = postgres.lane("submit")
        self._waiting_lane = postgres.lane("submit-waiting", lock_timeout_ms=LOCK_TIMEOUT_MS)
        self._coalescer: Coalescer[SubmitRequest, Submitted] = Coalescer(
            "submit",
            self._flush,
            clock=clock,
            entries_max=ENTRIES_MAX,
            bytes_max=BYTES_MAX,
            waiting_max=WAITING_MAX,
            waiting_bytes_max=WAITING_BYTES_MAX,
        )
        self._deferred: deque[Item] = deque()
        self._stuck: deque[Item] = deque()  # timed out on a lock even alone: tried again apart from the others
        self._deferred_of: Counter[int] = Counter()  # by session; a session in here is held
        self._deferred_task: asyncio.Task[None] | None = None
        self._solo: dict[int, float] = {}
        self._judged_batches = 0  # how many of the next batches are judged without trying the plain call first
        self.wakes_due: list[Callable[[], None]] = []  # called after a commit that opened intents of devices away

    @property
    def waiting(self) -> int:
        """Requests that are queued or deferred."""
        return self._coalescer.waiting + len(self._deferred) + len(self._stuck)

    @property
    def after_batch(self) -> list[Callable[[], None]]:
        """Hooks that run once after all callers of a batch were told."""
        return self._coalescer.after_batch

    def put(self, request: SubmitRequest, done: Done) -> None:
        """Queue a SEND; `done` gets Submitted after the commit, or the refusal. UNAVAILABLE at once when full."""
        entries = len(request.envelopes)
        size = sum([len(envelope.body) for envelope in request.envelopes])
        self._coalescer.put(request, key=request.session, entries=entries, size=size, done=done)

    async def submit(self, request: SubmitRequest) -> Submitted:
        """The awaitable form. Cancelling it does not recall the request: a repeat with the same key tells."""
        size = sum([len(envelope.body) for envelope in request.envelopes])
        return await self._coalescer.submit(request, key=request.session, entries=len(request.envelopes), size=size)

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests, finish what is queued; False when something had to be refused after all."""
        clean = await self._coalescer.drain(timeout_s)
        if self._deferred_task is not None:
            _, late = await asyncio.wait((self._deferred_task,), timeout=timeout_s)
            if late:
                self._deferred_task.cancel()
                await asyncio.wait((self._deferred_task,))
                clean = False
        await self._lane.close()
        await self._waiting_lane.close()
        return clean

    async def _flush(self, batch: Sequence[Item]) -> Told[SubmitRequest, Submitted]:
        if self._solo:
            self._forget_solo()
        alone = [item for item in batch if item.key in self._solo] if self._solo else ()
        if not alone:
            return await self._run(self._lane, batch, wait=False)
        told = list(await self._run(self._lane, [item for item in batch if item.key not in self._solo], wait=False))
        for item in alone:
            told += await self._run(self._lane, (item,), wait=False)
        return told

    async def _run(self, lane: Lane, batch: Sequence[Item], *, wait: bool) -> Told[SubmitRequest, Submitted]:
        """One batch through one lane. What stays undecided goes to `_deferred` with its session held."""
        if not batch:
            return ()
        await faultpoints.reach("submit.before_call")
        try:
            answers = await self._call(lane, [item.item for item in batch], wait=wait)
        except LaneFault as failure:
            return await self._after_fault(lane, batch, failure, wait=wait)
        await faultpoints.reach("submit.after_commit")
        told = []
        for item, answer in zip(batch, answers, strict=True):
            if answer is None:
                self._defer(item)
            else:
                told.append((item, answer))
        return told

    async def _call(
        self, lane: Lane, requests: Sequence[SubmitRequest], *, wait: bool
    ) -> list[Submitted | MailboxError | None]:
        secrets = self._secrets()
        secret, old = secrets.fingerprint, secrets.fingerprint_old
        policy = self._policy()
        keys = [keys_of(secret, request) for request in requests]
        # While a secret rotates, a repeat may be recorded under the old one, where no unique key would notice it.
        if old is None and not self._judged_batches:
            plain = plain_columns_of(requests, keys, secret, policy, wait=wait)
            if plain is not None and (row := await self._call_plain(lane, plain)) is not None:
                self._ring(row)
                return plain_answers_of(requests, plain, row, lane.epoch)
        self._judged_batches = max(0, self._judged_batches - 1)
        old_keys = [keys_of(old, request) for request in requests] if old is not None else []
        columns = columns_of(requests, keys, old_keys, secret, policy, wait=wait)
        (row,) = await lane.call(self._sql["submit_batch_v1"], *columns.arguments)
        self._ring(row)
        return answers_of(requests, columns, row, lane.epoch)

    async def _call_plain(self, lane: Lane, columns: PlainColumns) -> asyncpg.Record | None:
        """None when the batch holds a repeat or a refusal after all: nothing of it was written."""
        try:
            (row,) = await lane.call(self._sql["submit_plain_v1"], *columns.arguments)
        except LaneFault as failure:
            if failure.fault not in (Fault.CAREFUL, Fault.DATA):
                raise
            self._judged_batches = JUDGED_BATCHES
            return None
        return row

    def _ring(self, row: asyncpg.Record) -> None:
        if row["wakes_due"]:
            for hook in self.wakes_due:
                hook()

    async def _after_fault(
        self, lane: Lane, batch: Sequence[Item], failure: LaneFault, *, wait: bool
    ) -> Told[SubmitRequest, Submitted]:
        if failure.fault is Fault.LOCKED and wait:
            if len(batch) == 1:
                self._stuck.append(batch[0])  # until it is too old
                return ()
        elif failure.fault is Fault.DATA:
            if len(batch) == 1:
                log.error("a request broke its batch", exc_info=failure.__cause__)
                if len(self._solo) < SOLO_SESSIONS_MAX:
                    self._solo[batch[0].key] = self._clock() + SOLO_S
                return [(batch[0], failure.error())]
        else:
            error = failure.error()
            return [(item, error) for item in batch]
        middle = len(batch) // 2
        first = await self._run(lane, batch[:middle], wait=wait)
        # What the first half left undecided must not be overtaken by the same session's requests of the second.
        rest = []
        stuck = {item.key for item in self._stuck} if wait else ()
        for item in batch[middle:]:
            if not wait and item.key in self._deferred_of:
                self._defer(item)
            elif item.key in stuck:
                self._stuck.append(item)
            else:
                rest.append(item)
        return [*first, *await self._run(lane, rest, wait=wait)]

    def _forget_solo(self) -> None:
        now = self._clock()
        for session in [session for session, until in self._solo.items() if until <= now]:
            del self._solo[session]

    def _defer(self, item: Item) -> None:
        self._deferred.append(item)
        self._deferred_of[item.key] += 1
        self._coalescer.hold(item.key)
        if self._deferred_task is None or self._deferred_task.done():
            self._deferred_task = asyncio.get_running_loop().create_task(self._run_deferred(), name="submit-waiting")

    async def _run_deferred(self) -> None:
        while self._deferred or self._stuck:
            await self._run_waiting(self._deferred)
            await self._run_waiting(self._stuck)

    async def _run_waiting(self, queue: deque[Item]) -> None:
        batch, told = self._take_waiting(queue)
        try:
            told += await self._run(self._waiting_lane, batch, wait=True)
        except asyncio.CancelledError:
            self._settle([(item, unknown_outcome()) for item in (*batch, *self._deferred, *self._stuck)])
            self._deferred.clear()
            self._stuck.clear()
            raise
        except Exception:
            log.exception("a deferred batch failed", items=len(batch))
            told += [(item, unknown_outcome()) for item in batch]
        self._settle(told)

    def _take_waiting(self, queue: deque[Item]) -> tuple[list[Item], list[tuple[Item, Submitted | MailboxError]]]:
        """What waits there, oldest first, within the bounds of a batch; apart from it what is too old."""
        batch: list[Item] = []
        stale: list[tuple[Item, Submitted | MailboxError]] = []
        entries = size = 0
        oldest_allowed = self._clock() - ITEM_AGE_MAX_S
        stuck = {item.key for item in self._stuck} if queue is self._deferred else ()
        while queue:
            item = queue[0]
            if batch and (entries + item.entries > ENTRIES_MAX or size + item.bytes > BYTES_MAX):
                break
            queue.popleft()
            if item.since < oldest_allowed:
                stale.append((item, overloaded()))
            elif item.key in stuck:
                self._stuck.append(item)
            else:
                entries += item.entries
                size += item.bytes
                batch.append(item)
        return batch, stale

    def _settle(self, told: Told[SubmitRequest, Submitted]) -> None:
        """Tell the callers of deferred requests, and let their sessions go on once nothing of them is deferred."""
        self._coalescer.finish_later(told)
        for item, _ in told:
            self._deferred_of[item.key] -= 1
            if not self._deferred_of[item.key]:
                del self._deferred_of[item.key]
                self._coalescer.release(item.key)
