"""Values of settings that have a written form of their own, as an environment variable or in TOML."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import BeforeValidator, PlainSerializer

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ListenAddress(NamedTuple):
    """Where a process listens. Port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _listen(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    host, colon, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise ValueError("must be HOST:PORT, for example 0.0.0.0:8080 or [::]:8080")
    return ListenAddress(host, int(port))


def _list(value: Any) -> Any:
    """A comma list in the environment, a list in TOML."""
    return tuple(item.strip() for item in value.split(",") if item.strip()) if isinstance(value, str) else value


def _networks(value: Any) -> Any:
    try:
        return tuple(ipaddress.ip_network(item) for item in _list(value))
    except (TypeError, ValueError) as error:
        raise ValueError(f"must be networks like 10.0.0.0/8 or 127.0.0.1 with commas between: {error}") from None


def _origins(value: Any) -> Any:
    origins = _list(value)
    for origin in origins:
        parts = urlsplit(str(origin))
        if (
            parts.scheme not in ("http", "https")
            or not parts.netloc
            or parts.path
            or parts.query
            or "@" in parts.netloc
        ):
            raise ValueError(f"{origin} is not an origin like https://app.example")
    return origins


Listen = Annotated[ListenAddress, BeforeValidator(_listen), PlainSerializer(str)]
Networks = Annotated[tuple[Network, ...], BeforeValidator(_networks)]
Origins = Annotated[tuple[str, ...], BeforeValidator(_origins)]
