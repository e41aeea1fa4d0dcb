"""The PROXY protocol: who connected to the proxy before us, in front of everything else (HAProxy's proxy-protocol.txt).

Versions 1 (a line of text) and 2 (binary), as `send-proxy` and `send-proxy-v2` write them. Pure. Strict, since what is
read here decides whom limits hold: whatever is not exactly a header is refused, and never taken for the client's bytes.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

HEADER_BYTES_MAX: Final = 4_096  # version 2 with its TLVs; addresses alone are 52 bytes, version 1 is 107 at most

_V1_START: Final = b"PROXY "
_V1_BYTES_MAX: Final = 107
_V1_FAMILIES: Final = {"TCP4": IPv4Address, "TCP6": IPv6Address}
_V2_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_FIXED_BYTES: Final = 16
_V2_LOCAL, _V2_PROXY = 0x20, 0x21
_V2_FAMILIES: Final = {0x10: 4, 0x20: 16}  # bytes of one address
_V2_ADDRESSES: Final = {0x00: 0, 0x10: 12, 0x20: 36, 0x30: 216}  # bytes of both ends by family: none, IPv4, IPv6, Unix
_STREAM: Final = 0x01


class BadProxyHeader(ValueError):
    """This is no PROXY header."""


class ProxyHeader(NamedTuple):
    """`client` connected to the proxy; None where the proxy speaks for itself (its health checks) or does not know."""

    client: str | None
    length: int  # bytes; what follows is the client's


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """The header that `data` begins with; None while it is incomplete, and then all of `data` belongs to it.

    Raises BadProxyHeader as early as it is clear that this is none.
    """
    if data.startswith(_V2_SIGNATURE[: len(data)]):
        return _version_2(data)
    if data.startswith(_V1_START[: len(data)]):
        return _version_1(data)
    raise BadProxyHeader("neither version 1 nor version 2")


def _version_1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\n", 0, _V1_BYTES_MAX)
    if end < 0:
        if len(data) >= _V1_BYTES_MAX:
            raise BadProxyHeader("version 1 without an end")
        return None
    line = data[:end]
    if not line.endswith(b"\r") or not line.isascii():
        raise BadProxyHeader("version 1 is one line of ASCII that ends in CR LF")
    words = line[:-1].decode("ascii").split(" ")
    if words[1] == "UNKNOWN":
        return ProxyHeader(None, end + 1)  # whatever else stands in the line
    family = _V1_FAMILIES.get(words[1])
    if family is None or len(words) != 6:
        raise BadProxyHeader("version 1 names a protocol, two addresses and two ports")
    try:
        client, _ = family(words[2]), family(words[3])
    except ValueError as error:
        raise BadProxyHeader("version 1 with an address that is none") from error
    if "%" in words[2] or not (_is_port(words[4]) and _is_port(words[5])):
        raise BadProxyHeader("version 1 with a port that is none")
    return ProxyHeader(str(client), end + 1)


def _is_port(text: str) -> bool:
    return text.isdigit() and len(text) <= 5 and str(int(text)) == text and int(text) <= 65_535


def _version_2(data: bytes) -> ProxyHeader | None:
    if len(data) < _V2_FIXED_BYTES:
        return None
    command, kind = data[12], data[13]
    family, transport = kind & 0xF0, kind & 0x0F
    length = _V2_FIXED_BYTES + int.from_bytes(data[14:16], "big")
    if command not in (_V2_LOCAL, _V2_PROXY):
        raise BadProxyHeader("version 2 with an unknown command")
    if family not in _V2_ADDRESSES or transport > 2 or length > HEADER_BYTES_MAX:
        raise BadProxyHeader("version 2 with an unknown family or transport, or too long")
    if command == _V2_PROXY and length < _V2_FIXED_BYTES + _V2_ADDRESSES[family]:
        raise BadProxyHeader("version 2 shorter than its addresses")
    if len(data) < length:
        return None
    size = _V2_FAMILIES.get(family)
    if command == _V2_LOCAL or size is None or transport != _STREAM:
        return ProxyHeader(None, length)
    packed = data[_V2_FIXED_BYTES : _V2_FIXED_BYTES + size]
    return ProxyHeader(str(IPv4Address(packed) if size == 4 else IPv6Address(packed)), length)
