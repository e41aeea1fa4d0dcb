"""Where a channel lives: on the one server there is, or on the shard of a cluster that owns its slot (ADR 0080).

On a cluster channels are sharded: a message goes to the one shard that its subscribers are connected to, and not over
the cluster's bus to all. The client's own map of slots says which; it is read anew when a shard refuses, breaks or
falls silent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.cluster import PipelineCommand
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError

from store.redis_client import is_cluster, whole

EVERYWHERE: Final = ""  # the place of a server that is no cluster, and of every slot while the map is not known

Message = tuple[bytes, bytes]  # channel, payload


class RedisPlaces:
    """Knows the place of a channel, opens connections to it for subscriptions, and publishes there."""

    def __init__(self, redis: Redis) -> None:
        client: Any = redis
        self._redis = client
        self._cluster: Any = client if is_cluster(redis) else None
        self._owned: Any = None  # the map that `_owners` was read from
        self._owners: set[str] = set()
        self.subscribe, self.unsubscribe = (
            (b"SUBSCRIBE", b"UNSUBSCRIBE") if self._cluster is None else (b"SSUBSCRIBE", b"SUNSUBSCRIBE")
        )

    @property
    def sharded(self) -> bool:
        """Channels have different places."""
        return self._cluster is not None

    def owns(self, place: str) -> bool:
        """The place owns slots, by the map as last learnt."""
        if self._cluster is None:
            return True
        slots = self._cluster.nodes_manager.slots_cache
        if slots is not self._owned:
            self._owned, self._owners = slots, {owners[0].name for owners in slots.values() if owners}
        return place in self._owners

    def slot(self, channel: bytes) -> int:
        """Channels of one slot share their place for ever; one command may name only channels of one slot."""
        return 0 if self._cluster is None else int(self._cluster.keyslot(channel))

    def of_slot(self, slot: int) -> str | None:
        """The place as last learnt; None while nobody owns the slot. No I/O."""
        if self._cluster is None:
            return EVERYWHERE
        owners = self._cluster.nodes_manager.slots_cache.get(slot)
        return str(owners[0].name) if owners else None

    async def learn(self, *, anew: bool = False) -> None:
        """Know the map of slots; with `anew` ask for it although one is known. Raises one of REDIS_TROUBLE."""
        if self._cluster is None:
            return
        if self._cluster.nodes_manager.slots_cache and not anew:
            return
        try:
            await whole(self._cluster.initialize())
            if anew:
                await whole(self._cluster.nodes_manager.initialize(self._cluster.named))
        except IndexError as error:  # what the library makes of an answer without any slot
            raise RedisConnectionError("the cluster has no slots") from error

    async def connect(self, place: str) -> AbstractConnection:
        """A connected socket of its own for subscriptions, outside of every pool. The caller ends it with `disconnect`.

        Raises one of REDIS_TROUBLE.
        """
        if self._cluster is None:
            connection: AbstractConnection = self._redis.connection_pool.make_connection()
        else:
            node = self._node(place)
            connection = node.connection_class(**node.connection_kwargs)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def publish(self, place: str, messages: Sequence[Message]) -> list[Message]:
        """What did not get through. Raises one of REDIS_TROUBLE when that is all of them, or not known."""
        if self._cluster is None:
            pipeline: Any = self._redis.pipeline(transaction=False)
            for channel, payload in messages:
                pipeline.execute_command("PUBLISH", channel, payload)
            results = await pipeline.execute(raise_on_error=False)
        else:
            node = self._node(place)
            results = await _spublish(node, messages)
            if any(isinstance(result, RedisConnectionError) for result in results):
                results = await _spublish(node, messages)  # a pooled connection had died since its last use
        return [message for message, result in zip(messages, results, strict=True) if isinstance(result, BaseException)]

    def _node(self, place: str) -> Any:
        node = self._cluster.nodes_manager.nodes_cache.get(place)
        if node is None:
            raise RedisConnectionError("this shard is not known any more")
        return node


async def _spublish(node: Any, messages: Sequence[Message]) -> list[Any]:
    commands = [PipelineCommand(0, "SPUBLISH", channel, payload) for channel, payload in messages]
    await node.execute_pipeline(commands)
    return [command.result for command in commands]
