"""Where a push may go: clients name the endpoints, and no client may reach inside (DESIGN, "Outbox, queue, wake push").

https only. A name is resolved once, every address judged, and the connection goes to an address that was judged: the
resolver is never asked for a second answer (DNS rebinding). Networks that the operator lists are allowed, there plain
http too.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol
from urllib.parse import SplitResult, urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

RESOLVE_SECONDS_MAX: Final = 5.0

_IPV6_GLOBAL: Final = ipaddress.IPv6Network("2000::/3")
# Addresses that only carry another one, or lead to one inside.
_IPV6_REFUSED: Final = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2002::/16", "3fff::/20", "2001:db8::/32")))
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class AddressRefused(Exception):
    """The push must not go there; the text says why and names no address."""


class ResolveFailed(Exception):
    """No answer from the resolver: perhaps later."""


class Endpoint(NamedTuple):
    """A judged endpoint: connect to one of `addresses`, and to nothing else, under the name `host`."""

    url: str
    host: str
    port: int
    addresses: tuple[str, ...]


class Resolver(Protocol):
    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """All addresses of a name, in the order of preference; OSError when there is none."""
        ...


async def system_resolver(host: str, port: int) -> Sequence[str]:
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


class AddressGuard:
    """Judges endpoints by the addresses that they have now."""

    def __init__(self, networks_allowed: Sequence[Network], *, resolver: Resolver = system_resolver) -> None:
        self._allowed = tuple(networks_allowed)
        self._resolver = resolver

    async def judge(self, url: str) -> Endpoint:
        """Resolve the endpoint once. Raises AddressRefused or ResolveFailed."""
        parts = _split(url)
        host, port = str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80)
        addresses = [address for address in await self._resolve(host, port) if self._may(address, parts.scheme)]
        if not addresses:
            raise AddressRefused("plain http" if parts.scheme == "http" else "no public address")
        return Endpoint(url, host, port, tuple(map(str, addresses)))

    async def _resolve(self, host: str, port: int) -> list[Address]:
        try:
            return [ipaddress.ip_address(host)]
        except ValueError:
            pass
        try:
            async with asyncio.timeout(RESOLVE_SECONDS_MAX):
                found = await self._resolver(host, port)
        except (OSError, TimeoutError, UnicodeError) as error:
            raise ResolveFailed from error
        addresses: list[Address] = []
        for text in found:
            try:
                addresses.append(ipaddress.ip_address(text.partition("%")[0]))
            except ValueError:
                continue
        return addresses

    def _may(self, address: Address, scheme: str) -> bool:
        inner = _inner(address)
        listed = any(address in network or inner in network for network in self._allowed)
        return listed or (scheme == "https" and is_public(address))


def is_public(address: Address) -> bool:
    """True for an address on the open internet, seen through every way of writing one inside another."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = _inner(address)
        if inner is not address:
            return is_public(inner)
        if address not in _IPV6_GLOBAL or any(address in network for network in _IPV6_REFUSED):
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved and not address.is_unspecified


def _inner(address: Address) -> Address:
    """The IPv4 address inside a mapped or translated one, else the address itself."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _split(url: str) -> SplitResult:
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise AddressRefused("not a URL")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise AddressRefused("not a URL") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or port == 0:
        raise AddressRefused("not an https URL")
    return parts
