"""Where one gateway listens: the port for devices, with what stands before its door, and the one for operations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from gateway.acceptor import Acceptor
from gateway.connection_limits import ConnectionLimits
from gateway.listener import Front
from gateway.metrics import GatewayMetrics
from gateway.tls import TlsIdentity
from runtime.config import GatewayConfig
from runtime.setting_types import ListenAddress

BACKLOG: Final = 4_096


async def listen(
    config: GatewayConfig,
    *,
    front: Front,
    ops: Callable[[], asyncio.Protocol],
    tls: TlsIdentity | None,
    limits: ConnectionLimits,
    connections_per_address: Callable[[], int],
    metrics: GatewayMetrics,
    stack: AsyncExitStack,
) -> list[ListenAddress]:
    """Accept connections from here on until `stack` ends it; returns where: for devices, for operations.

    Raises OSError for an address that cannot be had.
    """
    ops_port = await _serve_plain(ops, config.ops_listen, stack)
    if tls is None and not config.proxy_protocol:
        return [await _serve_plain(front, config.listen, stack), ops_port]
    acceptor = Acceptor(
        front,
        limits=limits,
        tls=tls,
        proxy_header_from=config.trusted_proxies if config.proxy_protocol else (),
        connections_per_address=connections_per_address,
        metrics=metrics,
    )
    stack.push_async_callback(acceptor.close)
    return [await acceptor.listen(config.listen, BACKLOG), ops_port]


async def _serve_plain(
    protocols: Callable[[], asyncio.Protocol], address: ListenAddress, stack: AsyncExitStack
) -> ListenAddress:
    """With nothing between accepting and the first byte the loop does it all."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(protocols, address.host, address.port, backlog=BACKLOG)
    stack.callback(server.close)
    return ListenAddress(*server.sockets[0].getsockname()[:2])
