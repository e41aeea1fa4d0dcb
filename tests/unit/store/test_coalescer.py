"""Group commit: bounds, order, fairness, and what a fault or a cancelled caller does to its neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from protocol.errors import ErrorCode, MailboxError, Outcome
from store.coalescer import Coalescer, Told, Waiting


class Flusher:
    """A flush whose batches stay in flight until the test lets them go."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.started = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.fail_with: Exception | None = None
        self.keep: set[str] = set()
        self.kept: list[Waiting[str, str]] = []
        self.coalescer: Coalescer[str, str] | None = None

    async def __call__(self, batch: Sequence[Waiting[str, str]]) -> Told[str, str]:
        self.batches.append([waiting.item for waiting in batch])
        self.started.set()
        await self.gate.wait()
        if self.fail_with is not None:
            raise self.fail_with
        told = []
        for waiting in batch:
            if waiting.item in self.keep and self.coalescer is not None:
                self.coalescer.hold(waiting.key)
                self.kept.append(waiting)
            else:
                told.append((waiting, waiting.item.upper()))
        return told


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def a_coalescer(
    flusher: Flusher,
    clock: Clock | None = None,
    *,
    entries_max: int = 100,
    bytes_max: int = 1000,
    waiting_max: int = 100,
) -> Coalescer[str, str]:
    coalescer: Coalescer[str, str] = Coalescer(
        "test",
        flusher,
        clock=clock or Clock(),
        entries_max=entries_max,
        bytes_max=bytes_max,
        waiting_max=waiting_max,
        waiting_bytes_max=10_000,
    )
    flusher.coalescer = coalescer
    return coalescer


def submitting(coalescer: Coalescer[str, str], item: str, key: int = 0, size: int = 1) -> asyncio.Task[str]:
    return asyncio.ensure_future(coalescer.submit(item, key=key, entries=1, size=size))


async def test_alone_an_item_goes_at_once() -> None:
    flusher = Flusher()
    assert await a_coalescer(flusher).submit("a", key=1, entries=1, size=1) == "A"
    assert flusher.batches == [["a"]]


async def test_what_comes_during_a_flush_goes_together_in_the_next_one() -> None:
    flusher = Flusher()
    flusher.gate.clear()
    coalescer = a_coalescer(flusher)
    first = submitting(coalescer, "a", 1)
    await flusher.started.wait()
    rest = [submitting(coalescer, item, key) for key, item in enumerate("bcd", 2)]
    await asyncio.sleep(0)
    flusher.gate.set()
    assert await asyncio.gather(first, *rest) == ["A", "B", "C", "D"]
    assert flusher.batches == [["a"], ["b", "c", "d"]]


async def test_one_busy_key_cannot_crowd_out_others() -> None:
    flusher = Flusher()
    flusher.gate.clear()
    coalescer = a_coalescer(flusher, entries_max=2)
    busy = [submitting(coalescer, item, 1) for item in "abcd"]
    await flusher.started.wait()
    other = submitting(coalescer, "z", 2)
    await asyncio.sleep(0)
    flusher.gate.set()
    await asyncio.gather(*busy, other)
    assert "z" in flusher.batches[1]


async def test_items_of_one_key_keep_their_order() -> None:
    flusher = Flusher()
    coalescer = a_coalescer(flusher, entries_max=3)
    tasks = [submitting(coalescer, item, key) for item in "abcdefgh" for key in (1, 2)]
    await asyncio.gather(*tasks)
    flat = [item for batch in flusher.batches for item in batch]
    assert flat[0::2] == list("abcdefgh")
    assert max(map(len, flusher.batches)) <= 3


async def test_a_batch_is_bounded_in_bytes_but_one_item_always_goes() -> None:
    flusher = Flusher()
    coalescer = a_coalescer(flusher, bytes_max=10)
    await asyncio.gather(
        *(submitting(coalescer, item, key, 6) for key, item in enumerate("ab")), submitting(coalescer, "huge", 9, 50)
    )
    assert flusher.batches == [["a"], ["b"], ["huge"]]


async def test_a_full_queue_refuses_the_newcomer_at_once_as_not_committed() -> None:
    flusher = Flusher()
    flusher.gate.clear()
    coalescer = a_coalescer(flusher, waiting_max=2)
    tasks = [submitting(coalescer, "a")]
    await flusher.started.wait()
    tasks += [submitting(coalescer, "b"), submitting(coalescer, "c")]
    await asyncio.sleep(0)
    with pytest.raises(MailboxError) as refused:
        coalescer.put("d", key=0, entries=1, size=1, done=lambda _: pytest.fail("told although refused"))
    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert refused.value.outcome is Outcome.NOT_COMMITTED
    flusher.gate.set()
    assert await asyncio.gather(*tasks) == ["A", "B", "C"]


async def test_an_item_too_old_is_refused_rather_than_written_late() -> None:
    flusher, clock = Flusher(), Clock()
    flusher.gate.clear()
    coalescer = a_coalescer(flusher, clock)
    first = submitting(coalescer, "a", 1)
    await flusher.started.wait()
    late = submitting(coalescer, "b", 2)
    await asyncio.sleep(0)
    clock.now = 31.0
    flusher.gate.set()
    assert await first == "A"
    with pytest.raises(MailboxError) as refused:
        await late
    assert refused.value.outcome is Outcome.NOT_COMMITTED
    assert flusher.batches == [["a"]]


async def test_a_cancelled_caller_changes_nothing_for_its_neighbours() -> None:
    flusher = Flusher()
    flusher.gate.clear()
    coalescer = a_coalescer(flusher)
    cancelled, neighbour = submitting(coalescer, "a", 1), submitting(coalescer, "b", 2)
    await flusher.started.wait()
    cancelled.cancel()
    flusher.gate.set()
    assert await neighbour == "B"
    assert flusher.batches == [["a", "b"]]


async def test_a_caller_that_fails_does_not_reach_its_neighbours() -> None:
    coalescer = a_coalescer(Flusher())

    def broken(_: object) -> None:
        raise RuntimeError("the caller's own bug")

    coalescer.put("a", key=1, entries=1, size=1, done=broken)
    assert await coalescer.submit("b", key=2, entries=1, size=1) == "B"


async def test_an_unexpected_error_answers_internal_with_unknown_outcome_and_the_next_batch_goes_on() -> None:
    flusher = Flusher()
    flusher.fail_with = RuntimeError("a bug in the flush")
    coalescer = a_coalescer(flusher)
    with pytest.raises(MailboxError) as failed:
        await coalescer.submit("a", key=1, entries=1, size=1)
    assert (failed.value.code, failed.value.outcome) == (ErrorCode.INTERNAL, Outcome.UNKNOWN)
    flusher.fail_with = None
    assert await coalescer.submit("b", key=1, entries=1, size=1) == "B"


async def test_while_a_key_is_held_its_later_items_wait_and_others_go_on() -> None:
    flusher = Flusher()
    flusher.keep = {"a"}
    coalescer = a_coalescer(flusher)
    first = submitting(coalescer, "a", 1)
    assert await coalescer.submit("z", key=2, entries=1, size=1) == "Z"
    later = submitting(coalescer, "b", 1)
    assert await coalescer.submit("y", key=2, entries=1, size=1) == "Y"
    assert "b" not in [item for batch in flusher.batches for item in batch]
    coalescer.finish_later([(waiting, "late") for waiting in flusher.kept])
    coalescer.release(1)
    assert await first == "late"
    assert await later == "B"


async def test_an_item_that_was_kept_by_a_flush_that_then_failed_is_told_once() -> None:
    kept: list[Waiting[str, str]] = []

    async def keeps_and_fails(batch: Sequence[Waiting[str, str]]) -> Told[str, str]:
        kept.extend(batch)
        raise RuntimeError("a bug after the item was kept")

    flusher = Flusher()
    coalescer = a_coalescer(flusher)
    coalescer._flush = keeps_and_fails
    told: list[object] = []
    first = asyncio.Event()
    coalescer.put("a", key=1, entries=1, size=1, done=lambda result: (told.append(result), first.set()))
    await first.wait()
    coalescer.finish_later([(waiting, "late") for waiting in kept])
    assert len(told) == 1


async def test_hooks_run_once_after_all_callers_of_a_batch_were_told() -> None:
    flusher = Flusher()
    coalescer = a_coalescer(flusher)
    events: list[str] = []
    coalescer.after_batch.append(lambda: events.append("hook"))
    done = asyncio.Event()
    coalescer.put("a", key=1, entries=1, size=1, done=lambda result: events.append(str(result)))
    coalescer.put("b", key=2, entries=1, size=1, done=lambda result: (events.append(str(result)), done.set()))
    await done.wait()
    await asyncio.sleep(0)
    assert events == ["A", "B", "hook"]


async def test_a_batch_is_out_before_the_callers_of_the_last_one_are_told() -> None:
    events: list[str] = []
    answers: asyncio.Queue[None] = asyncio.Queue()

    async def flush(batch: Sequence[Waiting[str, str]]) -> Told[str, str]:
        names = "".join(waiting.item for waiting in batch)
        events.append(f"written {names}")  # as the store's calls: before anything is waited for
        await answers.get()
        return [(waiting, names) for waiting in batch]

    flusher = Flusher()
    coalescer = a_coalescer(flusher)
    coalescer._flush = flush
    first = asyncio.Event()
    coalescer.put("a", key=1, entries=1, size=1, done=lambda _: (events.append("told a"), first.set()))
    await asyncio.sleep(0)
    coalescer.put("b", key=2, entries=1, size=1, done=lambda _: events.append("told b"))
    answers.put_nowait(None)
    await first.wait()  # without the second answer: nobody waits for the batch behind theirs
    assert events == ["written a", "written b", "told a"]
    answers.put_nowait(None)
    assert await coalescer.drain(5.0) is True
    assert events[3:] == ["told b"]


async def test_drain_finishes_what_is_queued_and_refuses_what_comes_after() -> None:
    flusher = Flusher()
    flusher.gate.clear()
    coalescer = a_coalescer(flusher)
    tasks = [submitting(coalescer, item, key) for key, item in enumerate("abc")]
    await flusher.started.wait()
    draining = asyncio.ensure_future(coalescer.drain(5.0))
    await asyncio.sleep(0)
    with pytest.raises(MailboxError):
        coalescer.put("d", key=0, entries=1, size=1, done=lambda _: None)
    flusher.gate.set()
    assert await draining is True
    assert await asyncio.gather(*tasks) == ["A", "B", "C"]


async def test_a_drain_that_runs_out_of_time_tells_every_caller() -> None:
    flusher = Flusher()
    flusher.gate.clear()
    coalescer = a_coalescer(flusher, entries_max=1)
    first = submitting(coalescer, "a", 1)
    await flusher.started.wait()
    waiting = submitting(coalescer, "b", 2)
    await asyncio.sleep(0)
    assert await coalescer.drain(0.01) is False
    for task in (first, waiting):
        with pytest.raises(MailboxError):
            await task
