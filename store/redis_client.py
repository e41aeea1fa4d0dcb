"""Connections to Redis or Valkey: bounded in time, never cancelled in the middle of a command.

A cancelled command leaves its reply in the socket for the next one who uses it. So whoever must not wait runs the
command to its end with `whole`; the socket timeout bounds it. Nothing that matters lives here: Redis may be emptied at
any moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final, TypeVar, cast
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import ConstantBackoff, NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException, RedisError

T = TypeVar("T")

CONNECT_TIMEOUT_S: Final = 2.0
SOCKET_TIMEOUT_S: Final = 10.0  # above every BLOCK that is asked for (2 s)
CONNECTIONS_MAX: Final = 64
CLUSTER_REPEATS: Final = 2  # of a command, each with the map of slots read anew

# What a command may raise when Redis is away or unwell.
REDIS_TROUBLE: Final = (RedisError, RedisClusterException, OSError, TimeoutError)

_OPTIONS: Final[dict[str, Any]] = {
    "protocol": 2,
    "socket_connect_timeout": CONNECT_TIMEOUT_S,
    "socket_timeout": SOCKET_TIMEOUT_S,
    "socket_keepalive": True,
}


def connect(url: str) -> Redis:
    """A client with a bounded pool; it connects at the first command. Replies are bytes.

    `redis://`, `rediss://`, `unix://`; `redis+cluster://host:port,host:port`;
    `redis+sentinel://[user:password@]host:port,host:port/SERVICE[/DATABASE]` (ADR 0042). ValueError for another form.
    """
    scheme, _, rest = url.partition("://")
    base, _, kind = scheme.partition("+")
    if kind == "cluster":
        return _cluster(base, rest)
    # One repeat at once: a pooled connection may have died since its last use.
    retry = Retry(ConstantBackoff(0.02), 1, supported_errors=(RedisConnectionError,))
    if kind == "sentinel":
        return _sentinel(base, url, retry)
    # A Unix socket takes no keepalive, and the library refuses to be asked for it.
    options = {name: value for name, value in _OPTIONS.items() if scheme != "unix" or name != "socket_keepalive"}
    return Redis.from_url(url, max_connections=CONNECTIONS_MAX, retry=retry, **options)


def _cluster(base: str, rest: str) -> Redis:
    """Commands here name their keys with one hash tag, so a cluster client stands in for a plain one."""
    login, _, places = rest.rpartition("@")
    names = places.partition("/")[0].split(",")
    parsed = [urlsplit(f"{base}://{name}") for name in names]
    if not all(part.hostname and part.port for part in parsed):
        raise ValueError("a cluster URL is redis+cluster://HOST:PORT,HOST:PORT")
    user, _, password = login.partition(":")
    options = _OPTIONS | {"ssl": base == "rediss", "username": unquote(user) or None}
    # Any of the named nodes will do to learn the others. A shard that is away takes only its own slots with it.
    client: Any = ClusterClient(
        startup_nodes=[ClusterNode(part.hostname or "", part.port or 0) for part in parsed],
        password=unquote(password) or None,
        require_full_coverage=False,
        max_connections=CONNECTIONS_MAX,
        retry=Retry(ConstantBackoff(0.02), CLUSTER_REPEATS),
        **options,
    )
    client.named = [(part.hostname, part.port) for part in parsed]
    return cast(Redis, client)


def is_cluster(redis: object) -> bool:
    """It speaks to a cluster: keys and channels have slots, and slots have places."""
    return isinstance(redis, ClusterClient)


class ClusterClient(RedisCluster):
    """Keeps the nodes of its URL: the library forgets them for those that it found, which may all have moved."""

    named: Sequence[tuple[str, int]] = ()


def _sentinel(base: str, url: str, retry: Retry) -> Redis:
    parts = urlsplit(url)
    login, _, places = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if not service or not places:
        raise ValueError("a sentinel URL is redis+sentinel://HOST:PORT,HOST:PORT/SERVICE")
    hosts = []
    for place in places.split(","):
        host, _, port = place.rpartition(":")
        hosts.append((host.strip("[]"), int(port)))
    user, _, password = login.partition(":")
    options = _OPTIONS | {"ssl": base == "rediss"}
    if login:
        options |= {"username": unquote(user) or None, "password": unquote(password) or None}
    # One that is away is not asked again and again, with pauses of seconds: the next one knows as well.
    watching = _OPTIONS | {"retry": Retry(NoBackoff(), 0)}
    sentinel: Any = Sentinel(hosts, sentinel_kwargs=watching, **_OPTIONS)  # type: ignore[no-untyped-call]
    master: _BehindSentinel = sentinel.master_for(
        service,
        redis_class=_BehindSentinel,
        db=int(database or 0),
        max_connections=CONNECTIONS_MAX,
        retry=retry,
        **options,
    )
    master.watchers = sentinel.sentinels
    return master


class _BehindSentinel(Redis):
    """Closes the connections to the Sentinels with its own."""

    watchers: Sequence[Redis] = ()

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        for watcher in self.watchers:
            await watcher.aclose()


async def whole(command: Awaitable[T]) -> T:
    """Run a command to its end: a cancelled caller leaves at once, the command does not."""
    task = asyncio.ensure_future(command)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise
