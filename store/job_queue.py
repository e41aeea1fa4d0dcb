"""The queue between dispatcher and workers: one Redis stream with one consumer group (ADR 0060).

It hands out and forgets: lease by idle time, at least once, in no promised order. Nothing in it matters: the outbox
has it all, and an emptied, trimmed or unreachable queue is filled again from there. A message holds references only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from protocol.ids import is_id
from store.outbox import Publication
from store.redis_client import REDIS_TROUBLE, whole

GROUP: Final = b"workers"
MESSAGES_MAX: Final = 20_000  # the stream is cut here; what falls off comes back through the outbox's deadline
PIPELINE_MAX: Final = 250
BLOCK_MS: Final = 500  # well below the socket's timeout, and how long a stop waits for the receive in flight


class QueueLost(Exception):
    """The stream or its group was gone: it is there again, empty. Publish what was published before once more."""


class QueueUnreachable(Exception):
    """Redis did not answer. What was asked may or may not have happened."""


class Delivery(NamedTuple):
    """One message handed to this consumer. `deliveries` counts how often, this time included."""

    message_id: bytes
    event_id: bytes
    task_type: str
    task_version: int
    generation: int
    deliveries: int


class QueueDepth(NamedTuple):
    messages: int  # waiting or handed out
    handed_out: int


def stream_name(instance_tag: str) -> bytes:
    """The stream of one instance."""
    return f"mb:{{{instance_tag}}}:jobs".encode("ascii")


class JobQueue:
    """One consumer's view. Every method raises QueueUnreachable; a cancelled caller never cancels a command."""

    def __init__(self, redis: Any, instance_tag: str, *, consumer: bytes) -> None:
        """`consumer`: a name that no other process has now or had with messages still pending."""
        self._redis = redis
        self._stream = stream_name(instance_tag)
        self._consumer = consumer
        self._reclaim_from: Any = b"0-0"

    async def publish(self, publications: Sequence[Publication]) -> None:
        """Hand all of them to the queue. When it raises, some may have gone out: twice is allowed, never is not."""
        for start in range(0, len(publications), PIPELINE_MAX):
            pipeline = self._redis.pipeline(transaction=False)
            for publication in publications[start : start + PIPELINE_MAX]:
                pipeline.xadd(self._stream, _fields(publication), maxlen=MESSAGES_MAX, approximate=True)
            await self._answered(pipeline.execute())

    async def receive(self, limit: int, *, block_ms: int = BLOCK_MS) -> list[Delivery]:
        """Up to `limit` new messages, after waiting at most `block_ms` for the first. Raises QueueLost."""
        answer = await self._grouped(
            self._redis.xreadgroup(GROUP, self._consumer, {self._stream: b">"}, count=limit, block=block_ms)
        )
        messages = [message for _stream, found in _streams(answer) for message in found]
        return await self._deliveries([(message_id, fields, 1) for message_id, fields in messages])

    async def reclaim(self, limit: int, *, lease_ms: int) -> list[Delivery]:
        """Take over up to `limit` messages that a consumer has held for `lease_ms` without an end. Raises QueueLost."""
        answer = await self._grouped(
            self._redis.xautoclaim(
                self._stream, GROUP, self._consumer, lease_ms, start_id=self._reclaim_from, count=limit
            )
        )
        self._reclaim_from, messages = answer[0], [item for item in answer[1] if item is not None and item[1]]
        if not messages:
            return []
        counts = await self._grouped(
            self._redis.xpending_range(
                self._stream, GROUP, messages[0][0], messages[-1][0], limit * 10, consumername=self._consumer
            )
        )
        times = {item["message_id"]: int(item["times_delivered"]) for item in counts}
        return await self._deliveries(
            [(message_id, fields, times.get(message_id, 1)) for message_id, fields in messages]
        )

    async def settle(self, message_ids: Sequence[bytes]) -> None:
        """Forget messages, once PostgreSQL knows what became of them."""
        if message_ids:
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.xack(self._stream, GROUP, *message_ids)
            pipeline.xdel(self._stream, *message_ids)
            await self._answered(pipeline.execute())

    async def depth(self) -> QueueDepth:
        """Raises QueueLost."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.xlen(self._stream)
        pipeline.xpending(self._stream, GROUP)
        messages, pending = await self._grouped(pipeline.execute())
        return QueueDepth(int(messages), int(pending["pending"]))

    async def leave(self) -> None:
        """Take this consumer out of the group, if nothing is pending with it."""
        pending = await self._answered(
            self._redis.xpending_range(self._stream, GROUP, b"-", b"+", 1, consumername=self._consumer)
        )
        if not pending:
            await self._answered(self._redis.xgroup_delconsumer(self._stream, GROUP, self._consumer))

    async def _deliveries(self, messages: Sequence[tuple[bytes, dict[bytes, bytes], int]]) -> list[Delivery]:
        deliveries, unreadable = [], []
        for message_id, fields, times in messages:
            delivery = _parse(message_id, fields, times)
            if delivery is None:
                unreadable.append(message_id)
            else:
                deliveries.append(delivery)
        await self.settle(unreadable)  # not ours; the outbox still has whatever it may have been
        return deliveries

    async def _grouped(self, command: Any) -> Any:
        """The command's answer; a missing group is made, and that is told."""
        try:
            return await self._run(command)
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise QueueUnreachable(type(error).__name__) from error
        try:
            # From the beginning: messages may have come before the group.
            await self._run(self._redis.xgroup_create(self._stream, GROUP, id="0", mkstream=True))
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise QueueUnreachable(type(error).__name__) from error
        raise QueueLost

    async def _answered(self, command: Any) -> Any:
        try:
            return await self._run(command)
        except ResponseError as error:  # read-only, out of memory, …: it will not do it now
            raise QueueUnreachable(type(error).__name__) from error

    async def _run(self, command: Any) -> Any:
        try:
            return await whole(command)
        except ResponseError:
            raise  # an answer; for the caller to read
        except REDIS_TROUBLE as error:
            raise QueueUnreachable(type(error).__name__) from error


def _fields(publication: Publication) -> dict[str, str]:
    return {
        "event_id": publication.event_id.hex(),
        "task_type": publication.task_type,
        "task_version": str(publication.task_version),
        "ref": str(publication.generation),
    }


def _parse(message_id: bytes, fields: dict[bytes, bytes], deliveries: int) -> Delivery | None:
    try:
        event_id = bytes.fromhex(fields[b"event_id"].decode("ascii"))
        task_type = fields[b"task_type"].decode("ascii")
        task_version, generation = int(fields[b"task_version"]), int(fields[b"ref"])
    except (KeyError, ValueError):
        return None
    return Delivery(message_id, event_id, task_type, task_version, generation, deliveries) if is_id(event_id) else None


def _streams(answer: Any) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """An XREADGROUP answer of either protocol version as pairs."""
    if not answer:
        return []
    if isinstance(answer, dict):
        return [(name, found[0] if found and isinstance(found[0], list) else found) for name, found in answer.items()]
    return list(answer)
