"""What a log line may not hold, taken out on the way: ciphertext, tokens, push tokens, ids, addresses.

Three nets, since one forgotten call must not be enough: a field whose name says secret is never shown, bytes are never
shown whatever the field is called, and any text (exceptions included: a driver quotes the row it choked on) loses what
looks like an id, a token, an address, a URL's credentials or a long run of hex or base64.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

HIDDEN: Final = "[hidden]"

# Matched as whole words of a field's name: `push_token`, `token_hash`, but not `tokens_issued`.
_SECRET_WORDS: Final = frozenset(
    {
        "address",
        "auth",
        "authorization",
        "body",
        "challenge",
        "ciphertext",
        "cmid",
        "cookie",
        "cursor",
        "dsn",
        "echo",
        "endpoint",
        "envelope",
        "forwarded",
        "ip",
        "key",
        "mid",
        "p256dh",
        "password",
        "payload",
        "peer",
        "plaintext",
        "proof",
        "secret",
        "signature",
        "token",
        "url",
    }
)
# Names that hold such a word and are harmless.
_PLAIN_FIELDS: Final = frozenset({"key_id", "token_age_s"})

_TEXT: Final = re.compile(
    r"""
      \b[a-z][a-z0-9+.-]*://[^\s'"<>]+                                    # any URL: host, path and credentials
    | \beyJ[\w-]{8,}(?:\.[\w-]+)*                                         # a JWT, whole or cut
    | \b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b            # a uuid, as PostgreSQL prints ids
    | \b(?:\d{1,3}\.){3}\d{1,3}\b                                         # IPv4
    | (?<![\w:])(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{0,4}(?![\w:])       # IPv6, most forms
    | (?<![\w:])(?:[0-9a-fA-F]{1,4}:)*[0-9a-fA-F]{0,4}::[0-9a-fA-F:.]*(?!\w)   # IPv6, shortened
    | (?:\\x|\b)[0-9a-fA-F]{16,}\b                                        # hex: bytea, digests
    | (?<![\w+/-])(?=[\w+/-]*[A-Z])[\w+/-]{20,}={0,2}(?![\w+/-])           # base64 of 15 bytes and more
    | b(['"])(?:(?!\1)[^\\]|\\.)*\1                                       # the repr of bytes
    """,
    re.VERBOSE,
)


def scrub(text: str) -> str:
    """Return the text with everything taken out that could be an id, a token, an address or ciphertext."""
    return _TEXT.sub(HIDDEN, text)


def is_secret_field(name: str) -> bool:
    return name not in _PLAIN_FIELDS and not _SECRET_WORDS.isdisjoint(name.lower().split("_"))


def scrub_value(value: object) -> Any:
    """A value as a log line may show it: numbers as they are, text scrubbed, bytes by their length only."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return scrub(value)
        case bytes() | bytearray() | memoryview():
            return f"[{len(value)} bytes]"
        case Mapping():
            return {
                str(name): HIDDEN if is_secret_field(str(name)) else scrub_value(item) for name, item in value.items()
            }
        case list() | tuple() | set() | frozenset():
            return [scrub_value(item) for item in value]
        case _:
            return scrub(str(value))


# What the logging machinery itself puts on a line, and where a process listens; nothing of it comes from a request.
_OWN_FIELDS: Final = frozenset(
    {"level", "logger", "process", "device_tag", "timestamp", "error", "listen", "ops_listen"}
)


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: the last one before rendering."""
    for name, value in event.items():
        if name in _OWN_FIELDS:
            continue
        event[name] = HIDDEN if is_secret_field(name) else scrub_value(value)
    return event
