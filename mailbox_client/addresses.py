"""The server's address as the app gives it, for either door."""

from __future__ import annotations

from urllib.parse import urlsplit


def http_url(url: str) -> str:
    """The address of the HTTP door without a slash at its end. Raises ValueError, also for other schemes."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("the server's address starts with http:// or https://, and names a host")
    return url.rstrip("/")


def socket_url(url: str) -> str:
    """The address of /v1/ws on the server whose HTTP door is at `url`."""
    scheme, _, rest = http_url(url).partition("://")
    return ("wss://" if scheme == "https" else "ws://") + rest + "/v1/ws"
