"""Who is calling, behind proxies that the operator listed."""

from __future__ import annotations

from asyncio import BaseTransport
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address


def _parse(text: str) -> Address | None:
    text = text.strip()
    if text.startswith("["):  # an IPv6 address with a port
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:  # an IPv4 address with a port
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def client_address(peer: str, forwarded_for: Sequence[str], trusted: Sequence[Network]) -> str:
    """The address that limits and audits go by: the nearest hop that is no trusted proxy.

    `forwarded_for` holds the request's X-Forwarded-For headers in order. It is read from its right end, and only as far
    as the hop before is trusted, so what a client writes into it itself never counts. An IPv6 client is its /64,
    since one host has all of that.
    """
    address = _parse(peer)
    if address is None:
        return peer  # a Unix socket or something else without an address: one bucket
    hops = [hop for header in forwarded_for for hop in header.split(",")] if trusted else []
    while hops and any(address in network for network in trusted if network.version == address.version):
        hop = _parse(hops.pop())
        if hop is None:
            break
        address = hop
    if isinstance(address, IPv6Address) and not address.is_loopback:
        return f"{ip_network((int(address) >> 64 << 64, 64)).network_address}/64"
    return str(address)


def peer_of(transport: BaseTransport) -> str:
    """The address of the other end of the socket; `local` for a Unix socket."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else "local"


def is_trusted(peer: str, trusted: Sequence[Network]) -> bool:
    """Whether this peer is one of the listed proxies."""
    address = _parse(peer)
    return address is not None and any(address in network for network in trusted if network.version == address.version)


def is_loopback(address: str) -> bool:
    """True for what `client_address` gives for this very machine."""
    parsed = _parse(address)
    return parsed is not None and parsed.is_loopback
